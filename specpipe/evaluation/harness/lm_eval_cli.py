"""lm-eval's own command line, started with a configuration that is written down first."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import io
import os
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from specpipe.errors import JobError, SpecpipeError

PROMPT_FLAGS = (
    "tasks",
    "num_fewshot",
    "limit",
    "samples",
    "system_instruction",
    "apply_chat_template",
    "fewshot_as_multiturn",
    "include_path",
    "gen_kwargs",
    "seed",
    "metadata",
    "trust_remote_code",
    "confirm_run_unsafe_code",
)
"""What makes an evaluation's requests: lm-eval's flags that are recorded, and must be the same at replay."""
MODELS: Mapping[str, str] = {
    "specpipe-record": "specpipe.evaluation.harness.lm_eval_models:RequestRecorder",
    "specpipe-replay": "specpipe.evaluation.harness.lm_eval_models:Replayer",
}
"""Model names that lm-eval knows, with their classes; the same as the entry points in pyproject.toml."""
_REFUSED: Mapping[str, str] = {
    "cache_requests": "it would reuse the prompts of an earlier evaluation, whatever the other flags say",
    "use_cache": "lm-eval goes past its cache for sampled requests, and would score something that no run wrote",
    "model": "specpipe brings its own",
    "model_args": "specpipe brings its own",
    "output_path": "give the place with --out",
}
_OURS = ("model", "model_args", "output_path", "predict_only", "log_samples", "config", *_REFUSED)


@dataclass(frozen=True, kw_only=True, slots=True)
class EvalFlags:
    """lm-eval's configuration as it understands it, defaults filled in."""

    prompts: Mapping[str, Any]
    """PROMPT_FLAGS and their values, ready for JSON."""
    others: Mapping[str, Any]
    """EvalFlags that change no prompt and no score, such as wandb_args; only those that are not at their default."""


def parse_flags(arguments: Sequence[str], recorded: Mapping[str, Any] | None = None) -> EvalFlags:
    """lm-eval's own reading of its command line, on top of `recorded` flags where there are some.

    Raises JobError for flags that lm-eval does not know or that would make a comparison worthless.
    """
    run, config_of = _parts()
    parser = run()
    with tempfile.TemporaryDirectory() as folder, _captured() as shown:
        base: list[str] = []
        if recorded is not None:
            base = ["--config", _written(Path(folder) / "recorded.yaml", recorded)]
        try:
            namespace = parser.parse_args(["run", *base, *arguments])
            config = config_of(namespace)
            default = config_of(parser.parse_args(["run", "--tasks", "none"]))
        except SystemExit:
            raise JobError(f"lm-eval does not take these flags: {_last_line(shown)}") from None
        except (ValueError, TypeError, OSError) as error:
            raise JobError(f"lm-eval does not take these flags: {error}") from error
    if recorded is not None and getattr(namespace, "config", None) != base[1]:
        raise JobError("--config is refused at replay: the flags are those of the recording")
    _refuse(namespace, config)
    prompts = {name: config[name] for name in PROMPT_FLAGS}
    if not prompts["tasks"]:
        raise JobError("lm-eval is given no task; expected --tasks NAME[,NAME …]")
    if prompts["include_path"]:
        prompts["include_path"] = os.path.abspath(prompts["include_path"])
    known = (*PROMPT_FLAGS, *_OURS)
    others = {name: value for name, value in config.items() if name not in known and value != default[name]}
    return EvalFlags(prompts=prompts, others=others)


def run_harness(configuration: Mapping[str, Any]) -> str:
    """Runs `lm-eval run` in this process with a configuration; gives the tables that it prints.

    Raises JobError for what it does not take; SpecpipeError passes through.
    """
    main = _lm_eval("lm_eval.__main__").cli_evaluate
    register_models()
    with tempfile.TemporaryDirectory() as folder, _captured() as shown:
        path = _written(Path(folder) / "config.yaml", configuration)
        before = sys.argv
        sys.argv = ["lm-eval", "run", "--config", path]
        try:
            main()
        except SpecpipeError:
            raise
        except SystemExit as end:
            if end.code:
                raise JobError(f"lm-eval ended with exit code {end.code}: {_last_line(shown)}") from end
        except (ValueError, KeyError, OSError) as error:
            raise JobError(f"lm-eval failed: {type(error).__name__}: {error}") from error
        finally:
            sys.argv = before
    return "\n".join(line for line in shown.getvalue().splitlines() if line.startswith("|"))


def register_models() -> None:
    """Registers MODELS with lm-eval. lm-eval 0.4.13 does not read entry points; later versions do."""
    registry = _lm_eval("lm_eval.api.registry").model_registry
    for name, target in MODELS.items():
        if name not in registry:
            registry.register(name, target=target)


def _parts() -> tuple[Any, Any]:
    """A maker of lm-eval's argument parser, and a function from its namespace to the configuration."""
    harness, config = _lm_eval("lm_eval._cli").HarnessCLI, _lm_eval("lm_eval.config.evaluate_config").EvaluatorConfig
    return lambda: harness()._parser, lambda namespace: dataclasses.asdict(config.from_cli(namespace))


def _lm_eval(module: str) -> Any:
    os.environ.setdefault("LMEVAL_LOG_LEVEL", "ERROR")
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if not (error.name or "").startswith("lm_eval"):
            raise
        raise JobError(
            "lm-eval is not installed; expected it for `specpipe eval`: pip install 'specpipe[eval]'"
        ) from None


def _refuse(namespace: Any, config: Mapping[str, Any]) -> None:
    for name, why in _REFUSED.items():
        given = getattr(namespace, name, None) is not None
        if given or (name in ("cache_requests", "use_cache") and config[name]):
            raise JobError(f"--{name} is refused: {why}. Leave it out")


def _written(path: Path, values: Mapping[str, Any]) -> str:
    path.write_text(yaml.safe_dump(dict(values), sort_keys=False), encoding="utf-8")
    return str(path)


@contextlib.contextmanager
def _captured() -> Iterator[io.StringIO]:
    shown = io.StringIO()
    with contextlib.redirect_stdout(shown), contextlib.redirect_stderr(shown):
        yield shown


def _last_line(shown: io.StringIO) -> str:
    lines = [line.strip() for line in shown.getvalue().splitlines() if line.strip()]
    return lines[-1] if lines else "it says nothing"
