"""JobSpec: derived values, identity and tuning, and the reference page."""

import json
from pathlib import Path

import pytest

from specpipe.core import EngineConfig, ProposerName, SamplingParams
from specpipe.job import JobSpec, load_job, parse_job
from specpipe.job.job_spec import tuning_fields
from specpipe.job.reference import reference

ROOT = Path(__file__).parents[2]


def job(**sections: object) -> JobSpec:
    base = {"model": {"target": "big", "draft": "small"}, "data": {"path": "rows"}, "output": {"path": "out"}}
    return parse_job({**base, **sections}, source="test")


def test_sharegpt_job_has_the_benchmark_settings() -> None:
    spec = load_job(ROOT / "jobs" / "sharegpt.yaml")
    expected = SamplingParams(temperature=0.0, max_new_tokens=300, ignore_eos=True)
    assert spec.name == "sharegpt" and spec.sampling_params() == expected
    assert (spec.speculation.max_k, spec.workers.slots, spec.data.warmup_rows > 0) == (3, 16, True)
    assert (spec.model.target, spec.draft_model) == ("builtin:tiny", "builtin:tiny")


def test_job_defaults_equal_core_defaults() -> None:
    assert job().sampling_params() == SamplingParams()
    assert job(speculation={"policy": "off"}).engine_config(512) == EngineConfig(max_model_len=512)


def test_with_sampling_fills_only_missing_keys() -> None:
    spec = job(sampling={"defaults": "model", "temperature": 0.3, "stop": ["x"]})
    filled = spec.with_sampling({"temperature": 0.9, "top_k": 20})
    assert filled.sampling_params() == SamplingParams(temperature=0.3, top_k=20, stop=("x",))
    assert filled.identity()["sampling.top_k"] == 20
    assert filled.identity() != spec.identity()


def test_engine_config_copies_the_jobs_values() -> None:
    spec = job(
        workers={"slots": 4, "prefill_budget": 99, "prefix_sharing": False},
        speculation={"method": "invariant", "proposer": "ngram", "num_speculative_tokens": 5, "ngram_max": 6},
    )
    assert spec.engine_config(64) == EngineConfig(
        slots=4,
        max_model_len=64,
        max_k=5,
        proposer="ngram",
        method="invariant",
        ngram_max=6,
        prefill_budget=99,
        prefix_sharing=False,
    )


@pytest.mark.parametrize(
    ("draft", "proposers", "engine"), [("small", ("draft", "ngram"), "auto"), (None, ("ngram",), "ngram")]
)
def test_auto_proposers_depend_on_the_draft_model(draft: str | None, proposers: tuple[str, ...], engine: str) -> None:
    spec = job(model={"target": "big", "draft": draft}, speculation={"policy": "goodput", "proposer": "auto"})
    assert (spec.proposers, spec.engine_config(64).proposer, spec.draft_model) == (proposers, engine, draft)


@pytest.mark.parametrize(
    ("draft", "speculation", "limits", "engine"),
    [
        ("small", {"proposer": "auto", "replay": "runs/a"}, {"draft": 3, "replay": 15, "joined": 15}, "auto"),
        (None, {"proposer": "auto", "replay": "runs/a", "replay_tokens": 2}, {"ngram": 3, "replay": 2}, "auto"),
        (None, {"proposer": "replay", "policy": "fixed"}, {"replay": 15}, "replay"),
        ("small", {"proposer": "replay", "replay": "runs/a", "policy": "off"}, {}, "none"),
    ],
)
def test_replay_adds_proposers_with_a_k_of_their_own(
    draft: str | None, speculation: dict[str, object], limits: dict[ProposerName, int], engine: str
) -> None:
    spec = job(model={"target": "big", "draft": draft}, speculation=speculation)
    config = spec.engine_config(64)
    replay_k = limits.get("replay", 0)
    assert {name: spec.k_limit(name) for name in spec.proposers} == limits
    assert (config.proposer, config.max_k) == (engine, max(limits.values(), default=0))
    assert (config.replay_k, config.corpus_mib) == (replay_k, 64 if replay_k else 0)
    assert config.draft_k == (3 if "joined" in limits else 0)
    assert spec.draft_model == (draft if "draft" in limits else None)


@pytest.mark.parametrize(("policy", "proposer"), [("off", "draft"), ("fixed", "none"), ("off", "none")])
def test_max_k_is_zero_without_drafting(policy: str, proposer: str) -> None:
    speculation = job(speculation={"policy": policy, "proposer": proposer}).speculation
    assert (speculation.max_k, speculation.active_proposer) == (0, "none")


@pytest.mark.parametrize(
    ("length", "k", "rates"),
    [(1, 2, (0.0, 0.0)), (2.75, 3, (1.0, 0.75, 0.0)), (4, 3, (1.0, 1.0, 1.0)), (1.5, 1, (0.5,))],
)
def test_acceptance_length_becomes_rates_summing_to_length_minus_one(
    length: float, k: int, rates: tuple[float, ...]
) -> None:
    spec = job(speculation={"method": "synthetic", "synthetic_acceptance_length": length, "num_speculative_tokens": k})
    assert spec.speculation.rates == spec.engine_config(64).synthetic_rates == rates


def test_given_rates_are_unchanged() -> None:
    assert job(speculation={"method": "synthetic", "synthetic_rates": [0.9, 0.5, 0]}).speculation.rates == (0.9, 0.5, 0)
    assert job().speculation.rates == ()


def test_identity_and_tuning_hold_every_field_once_as_json() -> None:
    spec = job()
    identity, tuning = spec.identity(), spec.tuning()
    dumped = spec.model_dump()
    places = {f"{name}.{key}" for name, value in dumped.items() if isinstance(value, dict) for key in value}
    places |= {name for name, value in dumped.items() if not isinstance(value, dict)}
    assert identity.keys() | tuning.keys() == places and not identity.keys() & tuning.keys()
    assert json.loads(json.dumps(identity)) == identity and json.loads(json.dumps(tuning)) == tuning


def test_tuning_marks_are_on_exactly_these_fields() -> None:
    model = {"model.device", "model.quantize_draft"}
    policy = {"policy", "num_speculative_tokens", "max_running", "applies_to", "proposer", "ngram_min", "ngram_max"}
    policy |= {"replay", "replay_tokens", "corpus_mib"}
    workers = {"prefill_budget", "prefix_sharing"}
    workers |= {"count", "slots", "gpus_per_worker", "cpus_per_worker", "shard_tokens", "max_attempts", "stall_seconds"}
    rest = {"name", "data.warmup_rows", "sampling.defaults", "output.path", "output.max_failed_rows"}
    expected = model | rest | {f"speculation.{key}" for key in policy} | {f"workers.{key}" for key in workers}
    assert tuning_fields() == expected


@pytest.mark.parametrize(
    ("section", "values", "is_identity"),
    [
        ("seed", 3, True),
        ("model", {"target": "other", "draft": "small"}, True),
        ("model", {"target": "big", "draft": "small", "dtype": "float32"}, True),
        ("model", {"target": "big", "draft": "small", "quantize": "fp8"}, True),
        ("model", {"target": "big", "draft": "small", "quantize_draft": "fp8"}, False),
        ("data", {"path": "rows", "limit": 5}, True),
        ("data", {"path": "rows", "system_prompt": "be kind"}, True),
        ("data", {"path": "rows", "on_too_long": "truncate_left"}, True),
        ("model", {"target": "big", "draft": "small", "chat_template_kwargs": {"a": 1}}, True),
        ("sampling", {"top_k": 3}, True),
        ("speculation", {"method": "block"}, True),
        ("output", {"path": "out", "keep_columns": ["label"]}, True),
        ("name", "x", False),
        ("model", {"target": "big", "draft": "small", "device": "cpu"}, False),
        ("data", {"path": "rows", "warmup_rows": 5}, False),
        ("sampling", {"defaults": "model"}, False),
        ("speculation", {"policy": "off"}, False),
        ("speculation", {"num_speculative_tokens": 5, "max_running": 2, "proposer": "ngram"}, False),
        ("speculation", {"policy": "queue_threshold", "applies_to": "new"}, False),
        ("workers", {"count": 4, "slots": 64, "shard_tokens": 1000}, False),
        ("output", {"path": "elsewhere", "max_failed_rows": 9}, False),
    ],
)
def test_only_fields_that_make_outputs_change_identity(section: str, values: object, is_identity: bool) -> None:
    changed = job(**{section: values})
    assert (changed.identity() != job().identity()) is is_identity
    assert (changed.tuning() != job().tuning()) is not is_identity


def test_reference_page_is_current() -> None:
    page = (ROOT / "docs" / "jobs.md").read_text(encoding="utf-8")
    assert page == reference(), "run `python -m specpipe.job.reference > docs/jobs.md`"


def test_every_field_has_a_description() -> None:
    rows = [line for line in reference().splitlines() if line.startswith("| `")]
    assert len(rows) == len(job().identity()) + len(job().tuning())
    assert all(row.rsplit("|", 2)[1].strip() for row in rows)
