"""Model sources: the embedded pair, local folders and the Hugging Face Hub."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from specpipe.errors import ModelError

Role = Literal["target", "draft"]

_BUILTIN = "builtin:"
_DOWNLOADED = ["*.safetensors", "*.json", "*.jinja", "*.model", "*.txt", "*.tiktoken"]
_EXCLUDED = ["original/*", "consolidated*", "onnx/*", "*/*.safetensors"]  # further copies of the same weights
_PICKLES = "pytorch_model*.bin"
_SAMPLE_BYTES = 4096  # fingerprint of a weight file: bytes of each sample
_SAMPLES = 64
_TIMEOUT = 10.0  # seconds; request for a model's metadata


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelSource:
    """A model whose files are in one local folder."""

    path: str
    name: str
    """Name in the job file."""
    revision: str
    """The Hub's commit; for a folder `folder_revision`."""


def resolve(name: str, role: Role, *, trust_remote_code: bool = False, allow_pickle: bool = False) -> ModelSource:
    """Resolves a model name to a local folder, and downloads it if necessary.

    name: `builtin:tiny`, a folder with a config.json, or a Hub name (`org/model`, `org/model@revision`). Hub models are
    downloaded to the Hugging Face cache (HF_HOME); with HF_HUB_OFFLINE=1 they must be there. Downloaded are
    safetensors, configuration and tokenizer files, Python files with trust_remote_code, and with allow_pickle
    pytorch_model*.bin if there are no safetensors. Raises ModelError.
    """
    if name.startswith(_BUILTIN):
        folder, revision = _builtin(name, role), ""
    elif Path(name).expanduser().is_dir():
        folder, revision = Path(name).expanduser().resolve(), ""
    elif name.startswith((".", "/", "~")):
        raise ModelError(f"model folder {name} does not exist; expected a folder with config.json and *.safetensors")
    else:
        folder = _download(name, [*_DOWNLOADED, "*.py"] if trust_remote_code else _DOWNLOADED)
        if allow_pickle and not any(folder.glob("*.safetensors")):
            folder = _download(name, [_PICKLES])
        revision = folder.name
    _check_folder(folder, name, allow_pickle)
    return ModelSource(path=str(folder), name=name, revision=revision or folder_revision(folder))


def cached_file(name: str, file: str, revision: str) -> Path | None:
    """Returns a file of a target model if it is on this machine, else None; downloads nothing.

    revision: `ModelSource.revision`. Raises ModelError for an unknown built-in model.
    """
    if is_on_hub(name):
        import huggingface_hub

        found = huggingface_hub.try_to_load_from_cache(_split(name)[0], file, revision=revision)
        return Path(found) if isinstance(found, str) else None
    path = (_builtin(name, "target") if name.startswith(_BUILTIN) else Path(name).expanduser()) / file
    return path if path.is_file() else None


def is_on_hub(name: str) -> bool:
    """Returns True if `resolve` looks for this name on the Hub: it is not built in and not a local path."""
    return not (name.startswith((_BUILTIN, ".", "/", "~")) or Path(name).expanduser().is_dir())


def folder_revision(folder: Path) -> str:
    """Returns a fingerprint of a model folder: 16 hexadecimal digits.

    Hashes configuration and tokenizer files completely, and size and samples of weight files (256 KB each), so that a
    folder of any size takes milliseconds. A change of few weights may go unnoticed.
    """
    digest = hashlib.sha256()
    for path in sorted(p for p in folder.iterdir() if p.suffix in {".json", ".jinja", ".model", ".txt"}):
        digest.update(path.name.encode() + path.read_bytes())
    for path in sorted([*folder.glob("*.safetensors"), *folder.glob(_PICKLES)]):
        size = path.stat().st_size
        digest.update(f"{path.name} {size}".encode())
        with path.open("rb") as file:
            for sample in range(_SAMPLES):
                file.seek(size * sample // _SAMPLES)
                digest.update(file.read(_SAMPLE_BYTES))
    return digest.hexdigest()[:16]


def _builtin(name: str, role: Role) -> Path:
    root = Path(__file__).parent
    folder = root / name.removeprefix(_BUILTIN) / role
    if not (folder / "config.json").is_file():
        available = sorted(_BUILTIN + p.parent.parent.name for p in root.glob(f"*/{role}/config.json"))
        raise ModelError(f"unknown built-in model {name}; expected one of: {', '.join(available) or 'none'}")
    return folder


def _check_folder(folder: Path, name: str, allow_pickle: bool) -> None:
    if not (folder / "config.json").is_file():
        raise ModelError(f"model {name}: {folder} has no config.json; expected a model saved by save_pretrained()")
    if any(folder.glob("*.safetensors")) or (allow_pickle and any(folder.glob(_PICKLES))):
        return
    raise ModelError(
        f"model {name}: {folder} has no *.safetensors"
        + (f" and no {_PICKLES}" if allow_pickle else "")
        + "; older formats are pickles, which can run code: convert it with model.save_pretrained(folder), or set "
        "model.allow_pickle for one that you trust"
    )


def hub_access(name: str) -> bool:
    """Returns True for a Hub model that is completely cached, False for one that the Hub allows to download.

    Downloads no weights, and sends no request for a cached model. Raises ModelError as `resolve` does.
    """
    import huggingface_hub
    from huggingface_hub import errors

    repo, revision = _split(name)
    with _hub_errors(name):
        try:
            cached = huggingface_hub.snapshot_download(
                repo, revision=revision, allow_patterns=_DOWNLOADED, ignore_patterns=_EXCLUDED, local_files_only=True
            )
            if _is_complete(Path(cached)):
                return True
        except errors.LocalEntryNotFoundError:
            pass
        try:
            url = huggingface_hub.hf_hub_url(repo, "config.json", revision=revision)
            huggingface_hub.get_hf_file_metadata(url, timeout=_TIMEOUT)
        except (errors.HfHubHTTPError, errors.HFValidationError):
            raise
        except Exception as error:  # no network: the HTTP client's own
            raise errors.LocalEntryNotFoundError(str(error)) from error
    return False


def _is_complete(folder: Path) -> bool:
    """Returns True if a cached model has a configuration and all its weight files."""
    indices = [*folder.glob("*.safetensors.index.json")] or [*folder.glob("pytorch_model.bin.index.json")]
    names = {name for path in indices for name in json.loads(path.read_text(encoding="utf-8"))["weight_map"].values()}
    weights = names or {path.name for path in [*folder.glob("*.safetensors"), *folder.glob(_PICKLES)]}
    return bool(weights) and all((folder / name).is_file() for name in (*weights, "config.json"))


def _split(name: str) -> tuple[str, str | None]:
    repo, _, revision = name.partition("@")
    return repo, revision or None


def _download(name: str, patterns: list[str]) -> Path:
    """Downloads a model. Safe for several processes of a node: huggingface_hub locks each file."""
    import huggingface_hub

    repo, revision = _split(name)
    with _hub_errors(name):
        path = huggingface_hub.snapshot_download(
            repo, revision=revision, allow_patterns=patterns, ignore_patterns=_EXCLUDED
        )
    return Path(path)


@contextmanager
def _hub_errors(name: str) -> Iterator[None]:
    """Converts huggingface_hub's errors to ModelError with instructions."""
    from huggingface_hub import errors

    repo, revision = _split(name)
    try:
        yield
    except errors.HFValidationError as error:
        raise ModelError(
            f"model {name} is neither a local folder nor a Hub name; expected builtin:tiny, a folder, org/model or "
            "org/model@revision"
        ) from error
    except errors.GatedRepoError as error:
        raise ModelError(
            f"model {name} is gated: accept its terms at https://huggingface.co/{repo}, then log in with "
            "`hf auth login` or set HF_TOKEN"
        ) from error
    except errors.RevisionNotFoundError as error:
        raise ModelError(f"model {repo} has no revision {revision}; expected a branch, a tag or a commit") from error
    except errors.RepositoryNotFoundError as error:
        raise ModelError(
            f"model {name} is neither a local folder nor on the Hub; check the spelling, and for a private one log in "
            "with `hf auth login` or set HF_TOKEN"
        ) from error
    except errors.LocalEntryNotFoundError as error:
        raise ModelError(
            f"model {name} is neither a local folder nor cached, and the Hub cannot be reached ({_reason(error)}). "
            f"Go online, unset HF_HUB_OFFLINE, or fetch it beforehand: `hf download {repo}` under the same HF_HOME"
        ) from error
    except errors.HfHubHTTPError as error:
        raise ModelError(
            f"the Hub refused model {name} ({error.response.status_code}); check that HF_TOKEN is valid and may read "
            "it, or try again later"
        ) from error
    except OSError as error:
        raise ModelError(f"model {name} could not be downloaded: {error}; check HF_HOME's disk and network") from error


def _reason(error: BaseException) -> str:
    cause = error.__cause__ or error
    return "HF_HUB_OFFLINE is set" if type(cause).__name__ == "OfflineModeIsEnabled" else type(cause).__name__
