"""Sampling defaults of generation_config.json, interpreted as by transformers' generate()."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from transformers import GenerationConfig

from specpipe.errors import ModelError
from specpipe.models.generation import generation_defaults
from specpipe.models.source import ModelSource


def defaults(folder: Path, **values: object) -> dict[str, float | int]:
    (folder / "generation_config.json").write_text(json.dumps(values))
    return generation_defaults(ModelSource(path=str(folder), name="org/some-model", revision="x"))


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (
            {"do_sample": True, "temperature": 0.6, "top_p": 0.9, "eos_token_id": [1, 2]},
            {"temperature": 0.6, "top_k": 50, "top_p": 0.9, "min_p": 0.0},
        ),
        ({"do_sample": True, "top_k": 0}, {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0}),
        ({"temperature": 0.6, "top_p": 0.9}, {"temperature": 0.0}),
        ({"do_sample": False, "max_new_tokens": 2048}, {"temperature": 0.0, "max_new_tokens": 2048}),
        ({"min_new_tokens": 7}, {"temperature": 0.0, "min_tokens": 7}),
        ({"repetition_penalty": 1.0, "num_beams": 1}, {"temperature": 0.0}),
        ({"repetition_penalty": 1.05}, {"temperature": 0.0, "repetition_penalty": 1.05}),
    ],
)
def test_fields_count_as_they_do_in_transformers(tmp_path: Path, given: dict[str, object], expected: object) -> None:
    assert defaults(tmp_path, **given) == expected


def test_what_is_absent_is_what_transformers_takes_for_it(tmp_path: Path) -> None:
    theirs = GenerationConfig._get_default_generation_params()
    ours = defaults(tmp_path, do_sample=True)
    assert {name: ours[name] for name in ("temperature", "top_k", "top_p")} == {
        name: theirs[name] for name in ("temperature", "top_k", "top_p")
    }
    assert theirs["do_sample"] is False and theirs.get("min_p") is None


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"num_beams": 4}, "org/some-model sets num_beams to 4, which is not supported"),
        ({"repetition_penalty": -1}, "repetition_penalty is -1.0; expected above 0"),
        ({"do_sample": True, "temperature": "hot"}, "has temperature 'hot'; expected a number"),
        ({"do_sample": True, "top_p": 1.5}, "top_p is 1.5; expected above 0 and at most 1"),
    ],
)
def test_what_cannot_be_followed_is_refused(tmp_path: Path, given: dict[str, object], message: str) -> None:
    with pytest.raises(ModelError) as caught:
        defaults(tmp_path, **given)
    assert message in str(caught.value)


def test_a_model_without_the_file_says_so(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"has no generation_config\.json; remove sampling"):
        generation_defaults(ModelSource(path=str(tmp_path), name="org/some-model", revision="x"))
    (tmp_path / "generation_config.json").write_text("[1")
    with pytest.raises(ModelError, match="cannot be read"):
        generation_defaults(ModelSource(path=str(tmp_path), name="org/some-model", revision="x"))
