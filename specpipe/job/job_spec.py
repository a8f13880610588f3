"""A whole job, and which of its fields make the outputs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

from pydantic import Field, model_validator

from specpipe.core import EngineConfig, ProposerName, SamplingParams
from specpipe.job.data_section import DataSection
from specpipe.job.field_types import Int, Text
from specpipe.job.job_section import JobSection
from specpipe.job.model_section import ModelSection
from specpipe.job.output_section import OutputSection
from specpipe.job.sampling_section import SAMPLING_FIELDS, SamplingSection
from specpipe.job.speculation_section import SpeculationSection
from specpipe.job.workers_section import WorkersSection

TUNING = frozenset(
    {
        "name",
        "model.device",
        "model.draft_dtype",
        "data.warmup_rows",
        "sampling.defaults",  # the values that they come to are identity
        "speculation.policy",
        "speculation.num_speculative_tokens",
        "speculation.max_running",
        "speculation.proposer",
        "speculation.ngram_min",
        "speculation.ngram_max",
        "workers.count",
        "workers.slots",
        "workers.gpus_per_worker",
        "workers.cpus_per_worker",
        "workers.shard_tokens",
        "workers.max_attempts",
        "workers.stall_seconds",
        "workers.prefill_budget",
        "output.path",
        "output.max_failed_rows",
    }
)
"""Fields that may change when a run is resumed. Every other field is identity."""


class JobSpec(JobSection):
    """A job file, checked. Paths are as given: relative ones resolve against the working directory."""

    name: Text = "job"
    """What the run is called in reports. Left out, it is the job file's name."""
    seed: Annotated[Int, Field(ge=0, lt=2**63)] = 0
    """Seed of the whole job. A row draws from it and its own position in the dataset, never from its shard."""
    model: ModelSection
    data: DataSection
    sampling: SamplingSection = SamplingSection()
    speculation: SpeculationSection = SpeculationSection()
    workers: WorkersSection = WorkersSection()
    output: OutputSection

    @model_validator(mode="after")
    def _draft_is_named(self) -> JobSpec:
        if self.speculation.active_proposer == "draft" and self.model.draft is None:
            raise ValueError(
                "speculation.proposer is draft and model.draft is missing; name a draft model there, "
                "or set speculation.proposer: ngram, or speculation.policy: off"
            )
        return self

    @model_validator(mode="after")
    def _draft_dtype_has_a_draft(self) -> JobSpec:
        if self.model.draft_dtype != "auto" and self.model.draft is None:
            raise ValueError(
                f"model.draft_dtype is {self.model.draft_dtype} and model.draft is missing; name a draft model there, "
                "or leave draft_dtype out"
            )
        return self

    @property
    def draft_model(self) -> str | None:
        """The draft to load; None when no round would use it."""
        return self.model.draft if self.speculation.active_proposer in ("draft", "auto") else None

    @property
    def proposers(self) -> tuple[ProposerName, ...]:
        """Those that a policy may choose from, "none" aside."""
        proposer = self.speculation.active_proposer
        if proposer == "auto":
            return ("draft", "ngram") if self.model.draft else ("ngram",)
        return () if proposer == "none" else (proposer,)

    def sampling_params(self) -> SamplingParams:
        """What a row that brings no values of its own is sampled with."""
        return SamplingParams(**{name: getattr(self.sampling, name) for name in SAMPLING_FIELDS})

    def with_sampling(self, defaults: Mapping[str, object]) -> JobSpec:
        """The job with values for those keys of `sampling` that it does not set itself."""
        own = self.sampling.model_fields_set
        filled = {name: value for name, value in defaults.items() if name not in own}
        return self.model_copy(update={"sampling": self.sampling.model_copy(update=filled)})

    def engine_config(self, max_model_len: int) -> EngineConfig:
        """The engine's part of the job, for a pair whose rows may be `max_model_len` tokens long."""
        speculation, workers = self.speculation, self.workers
        return EngineConfig(
            slots=workers.slots,
            max_model_len=max_model_len,
            max_k=speculation.max_k,
            proposer="auto" if len(self.proposers) > 1 else next(iter(self.proposers), "none"),
            method=speculation.method,
            synthetic_rates=speculation.rates,
            ngram_max=speculation.ngram_max,
            ngram_min=speculation.ngram_min,
            prefill_budget=workers.prefill_budget,
        )

    def identity(self) -> dict[str, object]:
        """What makes the outputs, by dotted name, ready for JSON: a run resumes only where all of it is the same.

        Greedy and invariant runs give the same tokens for any tuning, standard and block runs under `policy: fixed`
        with one K. Changing K, policy or proposer of a sampled standard run keeps the distribution, not the tokens.
        """
        return {place: value for place, value in self._flat().items() if place not in TUNING}

    def tuning(self) -> dict[str, object]:
        """What may change on resume, by dotted name, ready for JSON."""
        return {place: value for place, value in self._flat().items() if place in TUNING}

    def _flat(self) -> dict[str, object]:
        """Every field's value by dotted name."""
        flat: dict[str, object] = {}
        for name, value in self.model_dump(mode="json").items():
            if isinstance(value, dict):
                flat |= {f"{name}.{key}": item for key, item in value.items()}
            else:
                flat[name] = value
        return flat


def default_identity() -> dict[str, object]:
    """The identity fields that a job file may leave out, with what they are then."""
    least = JobSpec(
        model=ModelSection(target="-", draft="-"), data=DataSection(path="-"), output=OutputSection(path="-")
    )
    given = {"model.target", "model.draft", "data.path", "output.path"}
    return {name: value for name, value in least.identity().items() if name not in given}
