"""resolve(): built-in pairs, folders and Hub names, and instructions for every error."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from safetensors.numpy import save_file

from specpipe.errors import ModelError
from specpipe.models.source import folder_revision, resolve

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    import numpy as np

    path = tmp_path / "my-model"
    path.mkdir()
    (path / "config.json").write_text('{"model_type": "llama"}')
    save_file({"weight": np.arange(4096, dtype=np.float32)}, path / "model.safetensors")
    return path


def test_a_folder_is_named_as_given_and_has_a_revision(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder.parent)
    source = resolve("my-model", "draft")
    assert (source.path, source.name) == (str(folder), "my-model")
    assert len(source.revision) == 16 and int(source.revision, 16) >= 0


def test_the_revision_changes_with_weights_and_config(folder: Path) -> None:
    import numpy as np

    first = folder_revision(folder)
    assert folder_revision(folder) == first
    save_file({"weight": np.arange(4096, dtype=np.float32) + 1}, folder / "model.safetensors")
    second = folder_revision(folder)
    (folder / "config.json").write_text('{"model_type": "qwen3"}')
    assert len({first, second, folder_revision(folder)}) == 3


def test_an_unknown_builtin_says_which_exist() -> None:
    with pytest.raises(ModelError, match=r"unknown built-in model builtin:huge; expected one of: builtin:tiny"):
        resolve("builtin:huge", "target")


@pytest.mark.parametrize(
    ("missing", "reason"), [("config.json", "has no config.json"), ("model.safetensors", r"has no \*.safetensors")]
)
def test_an_incomplete_folder_is_refused(folder: Path, missing: str, reason: str) -> None:
    (folder / missing).unlink()
    with pytest.raises(ModelError, match=reason):
        resolve(str(folder), "target")


def test_pickles_are_read_only_where_the_job_allows_them(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(ModelError, match=r"has no \*\.safetensors; older formats are pickles.*model\.allow_pickle"):
        resolve(str(folder), "target")
    first = resolve(str(folder), "target", allow_pickle=True).revision
    (folder / "pytorch_model.bin").write_bytes(b"other weights")
    assert resolve(str(folder), "target", allow_pickle=True).revision != first
    (folder / "pytorch_model.bin").unlink()
    with pytest.raises(ModelError, match=r"and no pytorch_model\*\.bin"):
        resolve(str(folder), "target", allow_pickle=True)


def test_a_missing_path_is_not_looked_up_on_the_hub() -> None:
    with pytest.raises(ModelError, match=r"folder \./nowhere does not exist"):
        resolve("./nowhere", "target")


def test_neither_a_folder_nor_a_hub_name() -> None:
    with pytest.raises(ModelError, match="neither a local folder nor a Hub name"):
        resolve("a/b/c/d", "target")


FILES = {"config.json": b'{"model_type": "llama"}', "model.safetensors": b"weights", "pytorch_model.bin": b"no"}
OLD = {"config.json": b"{}", "pytorch_model.bin": b"old weights"}  # what the Hub has of org/old
FAULTS = {"missing": (404, "RepoNotFound"), "gated": (403, "GatedRepo"), "secret": (401, ""), "broken": (403, "")}


class _Hub(BaseHTTPRequestHandler):
    """The parts of the Hub's HTTP interface that a snapshot needs; the model's name chooses what goes wrong."""

    def do_GET(self) -> None:
        parts = self.path.split("/")
        name = parts[4] if self.path.startswith("/api/models") else parts[2]
        if name in FAULTS:
            self.reply(FAULTS[name][0], b"{}", {"X-Error-Code": FAULTS[name][1]})
        elif "/tree/" in self.path:
            files = OLD if name == "old" else FILES
            listing = [{"type": "file", "path": p, "size": len(b), "oid": p} for p, b in files.items()]
            self.reply(200, json.dumps(listing).encode(), {})
        elif "nowhere" in self.path:
            self.reply(404, b"{}", {"X-Error-Code": "RevisionNotFound"})
        elif self.path.startswith("/api"):
            self.reply(200, json.dumps({"id": f"org/{name}", "sha": COMMIT, "siblings": []}).encode(), {})
        else:
            file = self.path.split("/")[-1]
            body = (OLD if name == "old" else FILES)[file]
            if self.command == "GET":
                self.server.fetched.append(file)  # type: ignore[attr-defined]
                time.sleep(self.server.delay)  # type: ignore[attr-defined]
            self.reply(200, body, {"ETag": f'"{self.path.split("/")[-1]}"', "X-Repo-Commit": COMMIT})

    do_HEAD = do_GET

    def reply(self, status: int, body: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for key, value in ({"Content-Length": str(len(body)), "Content-Type": "application/json"} | headers).items():
            self.send_header(key, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def counting_hub(delay: float = 0.0) -> Iterator[tuple[str, list[str]]]:
    """Address of a Hub, and names of the files fetched from it. delay: seconds per file."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Hub)
    server.fetched, server.delay = [], delay  # type: ignore[attr-defined]
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}", server.fetched  # type: ignore[attr-defined]
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture(scope="module")
def hub() -> Iterator[str]:
    with counting_hub() as (endpoint, _):
        yield endpoint


_RESOLVE = """
import sys
from specpipe.errors import ModelError
from specpipe.models.source import hub_access, resolve
for name in sys.argv[1:]:
    try:
        if name.startswith("ask:"):
            print("cached" if hub_access(name.removeprefix("ask:")) else "on the hub")
            continue
        pickles = name.startswith("pickle:")
        source = resolve(name.removeprefix("pickle:"), "target", allow_pickle=pickles)
        print("found", source.revision, source.path)
    except ModelError as error:
        print("refused", error)
"""


def resolve_in_a_process(home: Path, endpoint: str, *names: str, offline: bool = False) -> list[str]:
    """Resolves names in a process of its own: huggingface_hub reads its settings at import."""
    settings = {"HF_HOME": str(home), "HF_ENDPOINT": endpoint, "HF_HUB_OFFLINE": str(int(offline))}
    settings |= {"HF_HUB_DISABLE_XET": "1", "NO_PROXY": "127.0.0.1", "HF_TOKEN": ""}
    command = [sys.executable, "-c", _RESOLVE, *names]
    done = subprocess.run(command, env=os.environ | settings, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_hub_models_are_fetched_once_and_then_found_offline(hub: str, tmp_path: Path) -> None:
    (online,) = resolve_in_a_process(tmp_path, hub, "org/good")
    found, revision, path = online.split(" ", 2)
    assert (found, revision) == ("found", COMMIT)
    assert sorted(p.name for p in Path(path).iterdir()) == ["config.json", "model.safetensors"]
    names = (f"org/good@{COMMIT}", "org/good", "ask:org/good")
    pinned, offline, access = resolve_in_a_process(tmp_path, hub, *names, offline=True)
    assert pinned == offline == online and access == "cached"


def test_each_refusal_of_the_hub_says_what_to_do(hub: str, tmp_path: Path) -> None:
    names = ("org/missing", "org/gated", "org/secret", "org/good@nowhere", "org/broken")
    missing, gated, secret, revision, broken = resolve_in_a_process(tmp_path, hub, *names)
    assert "neither a local folder nor on the Hub" in missing
    assert "accept its terms at" in gated and "HF_TOKEN" in gated
    assert "HF_TOKEN" in secret
    assert "has no revision nowhere" in revision
    assert "org/broken" in broken and broken.startswith("refused")


def test_offline_without_a_cached_copy_says_how_to_get_one(hub: str, tmp_path: Path) -> None:
    (offline,) = resolve_in_a_process(tmp_path, hub, "org/good", offline=True)
    assert "HF_HUB_OFFLINE is set" in offline and "hf download org/good" in offline
    unreachable = resolve_in_a_process(tmp_path, "http://127.0.0.1:9", "org/good", "ask:org/good")
    assert all("the Hub cannot be reached" in line for line in unreachable)


def test_access_is_checked_without_downloading_anything(hub: str, tmp_path: Path) -> None:
    names = ["ask:org/good", "ask:org/gated", "ask:org/secret", "ask:org/missing"]
    good, gated, secret, missing = resolve_in_a_process(tmp_path, hub, *names)
    assert good == "on the hub" and not list(tmp_path.rglob("*.safetensors"))
    assert "accept its terms" in gated and "HF_TOKEN" in secret and "nor on the Hub" in missing
    _, after = resolve_in_a_process(tmp_path, hub, "org/good", "ask:org/good")
    assert after == "cached"
    (weights,) = tmp_path.rglob("snapshots/*/*.safetensors")
    weights.unlink()
    (again,) = resolve_in_a_process(tmp_path, hub, "ask:org/good", offline=True)
    assert "HF_HUB_OFFLINE is set" in again


def test_processes_that_start_together_download_a_model_once(tmp_path: Path) -> None:
    with counting_hub(delay=0.3) as (endpoint, fetched):  # so that the downloads overlap
        with ThreadPoolExecutor(3) as pool:
            found = list(pool.map(lambda _: resolve_in_a_process(tmp_path, endpoint, "org/good"), range(3)))
        assert found[0] == found[1] == found[2] and found[0][0].startswith(f"found {COMMIT}")
    assert fetched.count("model.safetensors") == 1


def test_pickles_are_downloaded_only_if_allowed_and_needed(hub: str, tmp_path: Path) -> None:
    refused, allowed, better = resolve_in_a_process(tmp_path, hub, "org/old", "pickle:org/old", "pickle:org/good")
    assert "refused" in refused and "model.allow_pickle" in refused
    assert (Path(allowed.split(" ", 2)[2]) / "pytorch_model.bin").is_file()
    assert sorted(p.name for p in Path(better.split(" ", 2)[2]).iterdir()) == ["config.json", "model.safetensors"]
