"""Sampling defaults of a model: generation_config.json, interpreted as transformers' generate() does."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from specpipe.core import SamplingParams
from specpipe.errors import InputError, ModelError
from specpipe.models.source import ModelSource

_SAMPLED: Mapping[str, float | int] = {"temperature": 1.0, "top_k": 50, "top_p": 1.0, "min_p": 0.0}
"""Fields that apply if do_sample is true, with generate()'s defaults."""
_NEUTRAL: Mapping[str, tuple[object, ...]] = {
    "no_repeat_ngram_size": (0,),
    "num_beams": (1,),
    "typical_p": (1, 1.0),
    "epsilon_cutoff": (0, 0.0),
    "eta_cutoff": (0, 0.0),
    "suppress_tokens": ([],),
    "begin_suppress_tokens": ([],),
    "bad_words_ids": ([],),
    "forced_bos_token_id": (),
    "forced_eos_token_id": (),
    "sequence_bias": ({},),
    "guidance_scale": (1, 1.0),
}
"""Unsupported fields that change the output, with the values that have no effect."""


def generation_defaults(source: ModelSource) -> dict[str, float | int]:
    """Returns values for `sampling` from generation_config.json, by their names in a job.

    Always temperature, and for sampled generation top_k, top_p and min_p; repetition_penalty, max_new_tokens and
    min_tokens (from min_new_tokens) if the file sets them. As in transformers, do_sample false or absent is greedy, and
    an absent top_k is 50. Raises ModelError for a missing file and for unsupported fields.
    """
    given = _read(source)
    for name, neutral in _NEUTRAL.items():
        value = given.get(name)
        if value is not None and value not in neutral:
            raise ModelError(
                f"sampling.defaults is model, but generation_config.json of {source.name} sets {name} to {value!r}, "
                "which is not supported; set sampling.defaults: specpipe, and the sampling keys explicitly"
            )
    values = {name: _number(source, name, given.get(name), default) for name, default in _SAMPLED.items()}
    if given.get("do_sample") is not True:
        values = {"temperature": 0.0}
    if given.get("repetition_penalty") not in (None, 1):
        values["repetition_penalty"] = _number(source, "repetition_penalty", given["repetition_penalty"], 1.0)
    for name, parameter in (("max_new_tokens", "max_new_tokens"), ("min_new_tokens", "min_tokens")):
        if given.get(name) is not None:
            values[parameter] = _number(source, name, given[name], 1)
    try:
        SamplingParams(**values)  # type: ignore[arg-type]
    except InputError as error:
        raise ModelError(f"generation_config.json of {source.name}: {error}") from None
    return values


def _read(source: ModelSource) -> dict[str, Any]:
    path = Path(source.path) / "generation_config.json"
    try:
        given = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ModelError(
            f"sampling.defaults is model, but {source.name} has no generation_config.json; remove sampling.defaults"
        ) from None
    except (OSError, ValueError) as error:
        raise ModelError(f"generation_config.json of {source.name} cannot be read: {error}") from None
    if not isinstance(given, dict):
        raise ModelError(f"generation_config.json of {source.name} is not a JSON object; expected names and values")
    return given


def _number(source: ModelSource, name: str, value: object, default: float | int) -> float | int:
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ModelError(f"generation_config.json of {source.name} has {name} {value!r}; expected a number")
    return type(default)(value)
