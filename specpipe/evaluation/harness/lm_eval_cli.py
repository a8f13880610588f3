"""lm-eval's command line: parsing of its flags, and runs in this process from a configuration file."""

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
"""lm-eval's flags that determine an evaluation's requests. They are recorded and must be the same at replay."""
MODELS: Mapping[str, str] = {
    "specpipe-record": "specpipe.evaluation.harness.lm_eval_models:RequestRecorder",
    "specpipe-replay": "specpipe.evaluation.harness.lm_eval_models:Replayer",
}
"""Model names registered with lm-eval, with their classes; the same as the entry points in pyproject.toml."""
_REFUSED: Mapping[str, str] = {
    "cache_requests": "it would reuse the prompts of an earlier evaluation, regardless of the other flags",
    "use_cache": "cached answers do not come from a run, and lm-eval bypasses its cache for sampled requests",
    "model": "specpipe sets it",
    "model_args": "specpipe sets it",
    "output_path": "set the output folder with --out",
}
_RESERVED = ("model", "model_args", "output_path", "predict_only", "log_samples", "config", *_REFUSED)


@dataclass(frozen=True, kw_only=True, slots=True)
class EvalFlags:
    """lm-eval's configuration after parsing, with its defaults."""

    prompts: Mapping[str, Any]
    """PROMPT_FLAGS with their values, as JSON values."""
    others: Mapping[str, Any]
    """Flags that change neither prompts nor scores, such as wandb_args, if not at their default."""


def parse_flags(arguments: Sequence[str], recorded: Mapping[str, Any] | None = None) -> EvalFlags:
    """Parses lm-eval's command line with lm-eval's parser.

    recorded: configuration of a recording, which `arguments` override; None for lm-eval's defaults. Raises JobError for
    flags that lm-eval rejects and for flags that would invalidate a comparison.
    """
    parser, config_of = _parser_and_config()
    with tempfile.TemporaryDirectory() as folder, _captured_output() as captured:
        base: list[str] = []
        if recorded is not None:
            base = ["--config", _write_yaml(Path(folder) / "recorded.yaml", recorded)]
        try:
            namespace = parser.parse_args(["run", *base, *arguments])
            config = config_of(namespace)
            default = config_of(parser.parse_args(["run", "--tasks", "none"]))
        except SystemExit:
            raise JobError(f"lm-eval rejects these flags: {_last_line(captured)}") from None
        except (ValueError, TypeError, OSError) as error:
            raise JobError(f"lm-eval rejects these flags: {error}") from error
    if recorded is not None and getattr(namespace, "config", None) != base[1]:
        raise JobError("--config is refused at replay: the flags are those of the recording")
    _refuse(namespace, config)
    prompts = {name: config[name] for name in PROMPT_FLAGS}
    if not prompts["tasks"]:
        raise JobError("no task for lm-eval; expected --tasks NAME[,NAME …]")
    if prompts["include_path"]:
        prompts["include_path"] = os.path.abspath(prompts["include_path"])
    known = (*PROMPT_FLAGS, *_RESERVED)
    others = {name: value for name, value in config.items() if name not in known and value != default[name]}
    return EvalFlags(prompts=prompts, others=others)


def run_harness(configuration: Mapping[str, Any]) -> str:
    """Runs `lm-eval run` in this process with a configuration. Returns the tables that it prints.

    Raises JobError for a failure of lm-eval, and SpecpipeError of our models unchanged.
    """
    main = _lm_eval("lm_eval.__main__").cli_evaluate
    register_models()
    with tempfile.TemporaryDirectory() as folder, _captured_output() as captured:
        path = _write_yaml(Path(folder) / "config.yaml", configuration)
        before = sys.argv
        sys.argv = ["lm-eval", "run", "--config", path]
        try:
            main()
        except SpecpipeError:
            raise
        except SystemExit as end:
            if end.code:
                raise JobError(f"lm-eval ended with exit code {end.code}: {_last_line(captured)}") from end
        except (ValueError, KeyError, OSError) as error:
            raise JobError(f"lm-eval failed: {type(error).__name__}: {error}") from error
        finally:
            sys.argv = before
    return "\n".join(line for line in captured.getvalue().splitlines() if line.startswith("|"))


def register_models() -> None:
    """Registers MODELS with lm-eval. lm-eval 0.4.13 does not read entry points; later versions do."""
    registry = _lm_eval("lm_eval.api.registry").model_registry
    for name, target in MODELS.items():
        if name not in registry:
            registry.register(name, target=target)


def _parser_and_config() -> tuple[Any, Any]:
    """Returns lm-eval's argument parser, and a function from its namespace to the configuration as a dict."""
    harness, config = _lm_eval("lm_eval._cli").HarnessCLI, _lm_eval("lm_eval.config.evaluate_config").EvaluatorConfig
    return harness()._parser, lambda namespace: dataclasses.asdict(config.from_cli(namespace))


def _lm_eval(module: str) -> Any:
    os.environ.setdefault("LMEVAL_LOG_LEVEL", "ERROR")
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if not (error.name or "").startswith("lm_eval"):
            raise
        raise JobError("lm-eval is not installed, but `specpipe eval` needs it: pip install 'specpipe[eval]'") from None


def _refuse(namespace: Any, config: Mapping[str, Any]) -> None:
    for name, why in _REFUSED.items():
        given = getattr(namespace, name, None) is not None
        if given or (name in ("cache_requests", "use_cache") and config[name]):
            raise JobError(f"--{name} is refused: {why}. Leave it out")


def _write_yaml(path: Path, values: Mapping[str, Any]) -> str:
    path.write_text(yaml.safe_dump(dict(values), sort_keys=False), encoding="utf-8")
    return str(path)


@contextlib.contextmanager
def _captured_output() -> Iterator[io.StringIO]:
    captured = io.StringIO()
    with contextlib.redirect_stdout(captured), contextlib.redirect_stderr(captured):
        yield captured


def _last_line(captured: io.StringIO) -> str:
    lines = [line.strip() for line in captured.getvalue().splitlines() if line.strip()]
    return lines[-1] if lines else "no output"
