"""A checked job, and the split of its fields into identity and tuning."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Annotated

from pydantic import BaseModel, Field, model_validator
from pydantic.fields import FieldInfo

from specpipe.core import EngineConfig, ProposerName, SamplingParams
from specpipe.job.data_section import DataSection
from specpipe.job.field_types import Int, Text, Tuning, TuningMark
from specpipe.job.job_section import JobSection
from specpipe.job.model_section import ModelSection
from specpipe.job.output_section import OutputSection
from specpipe.job.sampling_section import SAMPLING_FIELDS, SamplingSection
from specpipe.job.speculation_section import SpeculationSection
from specpipe.job.workers_section import WorkersSection


class JobSpec(JobSection):
    """A job file after all checks. Paths are unchanged: relative ones resolve against the working directory."""

    name: Tuning[Text] = "job"
    """Name of the run in reports; by default the job file's name."""
    seed: Annotated[Int, Field(ge=0, lt=2**63)] = 0
    """Seed of the job. A row's seed derives from it and the row's position in the dataset, never from its shard."""
    model: ModelSection
    data: DataSection
    sampling: SamplingSection = SamplingSection()
    speculation: SpeculationSection = SpeculationSection()
    workers: WorkersSection = WorkersSection()
    output: OutputSection

    @model_validator(mode="after")
    def _check_draft(self) -> JobSpec:
        if self.speculation.active_proposer == "draft" and self.model.draft is None:
            raise ValueError(
                "speculation.proposer is draft and model.draft is missing; name a draft model, "
                "or set speculation.proposer: ngram, or speculation.policy: off"
            )
        return self

    @model_validator(mode="after")
    def _check_quantize_draft(self) -> JobSpec:
        if self.model.quantize_draft != "none" and self.model.draft is None:
            raise ValueError(
                f"model.quantize_draft is {self.model.quantize_draft} and model.draft is missing; name a draft model, "
                "or leave quantize_draft out"
            )
        return self

    @property
    def draft_model(self) -> str | None:
        """Draft model to load; None when no round would use it."""
        return self.model.draft if self.speculation.active_proposer in ("draft", "auto") else None

    @property
    def proposers(self) -> tuple[ProposerName, ...]:
        """Proposers that a policy may choose from, "none" aside."""
        proposer = self.speculation.active_proposer
        if proposer == "none":
            return ()
        if proposer != "auto":
            return (proposer,)
        if self.speculation.replay_k:
            return ("draft", "replay", "joined") if self.model.draft else ("ngram", "replay")
        return ("draft", "ngram") if self.model.draft else ("ngram",)

    def k_limit(self, proposer: ProposerName) -> int:
        """Returns the largest K of a proposer's rounds."""
        speculation = self.speculation
        follows = proposer in ("replay", "joined")
        return speculation.replay_k if follows else min(speculation.max_k, speculation.num_speculative_tokens)

    def sampling_params(self) -> SamplingParams:
        """Returns the sampling parameters of rows without values of their own."""
        return SamplingParams(**{name: getattr(self.sampling, name) for name in SAMPLING_FIELDS})

    def with_sampling(self, defaults: Mapping[str, object]) -> JobSpec:
        """Returns the job with `defaults` for the keys of `sampling` that its job file leaves out."""
        own = self.sampling.model_fields_set
        filled = {name: value for name, value in defaults.items() if name not in own}
        return self.model_copy(update={"sampling": self.sampling.model_copy(update=filled)})

    def engine_config(self, max_model_len: int) -> EngineConfig:
        """Returns the engine's configuration. `max_model_len`: longest prompt + output of the pair, in tokens."""
        speculation, workers = self.speculation, self.workers
        proposer, joins = speculation.active_proposer, "joined" in self.proposers
        return EngineConfig(
            slots=workers.slots,
            max_model_len=max_model_len,
            max_k=speculation.max_k,
            draft_k=self.k_limit("draft") if joins else 0,
            replay_k=speculation.replay_k,
            corpus_mib=speculation.corpus_mib if speculation.replay_k else 0,
            proposer="ngram" if proposer == "auto" and self.proposers == ("ngram",) else proposer,
            method=speculation.method,
            synthetic_rates=speculation.rates,
            ngram_max=speculation.ngram_max,
            ngram_min=speculation.ngram_min,
            prefill_budget=workers.prefill_budget,
            prefix_sharing=workers.prefix_sharing,
            kv_dtype=self.model.kv_dtype,
        )

    def identity(self) -> dict[str, object]:
        """Returns the fields that make the outputs, by dotted name, as JSON values.

        A run resumes only where all of them are equal. Greedy and invariant runs give the same tokens for any tuning,
        standard and block runs under `policy: fixed` with one K. Changing K, policy or proposer of a sampled standard
        run keeps the distribution, not the tokens.
        """
        return {place: value for place, value in self._flat().items() if place not in tuning_fields()}

    def tuning(self) -> dict[str, object]:
        """Returns the fields that may change when a run is resumed, by dotted name, as JSON values."""
        return {place: value for place, value in self._flat().items() if place in tuning_fields()}

    def _flat(self) -> dict[str, object]:
        """Returns every field's value by dotted name."""
        flat: dict[str, object] = {}
        for name, value in self.model_dump(mode="json").items():
            if isinstance(value, dict):
                flat |= {f"{name}.{key}": item for key, item in value.items()}
            else:
                flat[name] = value
        return flat


def is_tuning(field: FieldInfo) -> bool:
    """Returns whether a field has the type `Tuning[...]`."""
    return any(isinstance(item, TuningMark) for item in field.metadata)


@cache
def tuning_fields() -> frozenset[str]:
    """Returns the dotted names of all tuning fields. Every other field is identity."""
    names = set()
    for name, field in JobSpec.model_fields.items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            names |= {f"{name}.{key}" for key, inner in field.annotation.model_fields.items() if is_tuning(inner)}
        elif is_tuning(field):
            names.add(name)
    return frozenset(names)


def default_identity() -> dict[str, object]:
    """Returns the defaults of all identity fields that a job file may leave out."""
    least = JobSpec(
        model=ModelSection(target="-", draft="-"), data=DataSection(path="-"), output=OutputSection(path="-")
    )
    given = {"model.target", "model.draft", "data.path", "output.path"}
    return {name: value for name, value in least.identity().items() if name not in given}
