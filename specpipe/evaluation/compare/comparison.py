"""Comparison of two runs: scores, texts and logits, with a verdict."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from specpipe.errors import DataError
from specpipe.evaluation.compare.compared_run import ComparedRun
from specpipe.evaluation.compare.logit_gaps import LogitGap
from specpipe.evaluation.compare.paired_scores import MetricComparison, compare_scores
from specpipe.evaluation.compare.perplexity import PERPLEXITIES
from specpipe.evaluation.compare.text_comparison import TextComparison, compare_outputs
from specpipe.evaluation.harness.samples_files import EvalSample, SampleKey, read_samples

_FLIPS = 100
_COARSENESS = ("float32", "float16", "bfloat16")


@dataclass(frozen=True, kw_only=True, slots=True)
class Flip:
    """A document with different scores of one metric in A and B."""

    task: str
    doc_id: int
    filter: str
    metric: str
    score_a: float
    score_b: float
    prompt: str
    target: str
    answers_a: tuple[str, ...]
    answers_b: tuple[str, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Comparison:
    """Comparison of B with A."""

    a: ComparedRun
    b: ComparedRun
    metrics: tuple[MetricComparison, ...]
    flips: tuple[Flip, ...]
    """The first 100 changed scores, of all metrics."""
    texts: TextComparison | None
    """Comparison of outputs; None unless A and B are runs."""
    gaps: tuple[LogitGap, ...] = ()
    """Logits at first differing positions, if requested."""
    unexplained: int = 0
    """Greedy rows whose outputs differ, where logits were not requested and rounding is no reason."""
    only_a: int = 0
    """Number of scored documents that only A has."""
    only_b: int = 0

    @property
    def differs(self) -> bool:
        """True for a difference that neither chance nor rounding explains."""
        if self.unexplained or any(m.finding == "different" for m in self.metrics):
            return True
        return any(not gap.is_tie for gap in self.gaps)

    @property
    def verdict(self) -> str:
        """The result as one sentence."""
        if real := [gap for gap in self.gaps if not gap.is_tie]:
            return (
                f"DIFFERENT: in {len(real)} of {len(self.gaps)} greedy rows examined, the target's logits are no "
                "near-tie where the outputs first differ, so rounding does not explain the difference"
            )
        if worst := [m for m in self.metrics if m.finding == "different"]:
            return f"{worst[0].task} {worst[0].metric} ({worst[0].filter}): {worst[0].verdict}"
        if self.unexplained:
            assert self.texts is not None
            names = [name for name, value in self.a.deciding.items() if self.b.deciding.get(name) != value]
            reason = f"{', '.join(names)} differ{'s' if len(names) == 1 else ''}" if names else "both ran in fp32"
            return (
                f"DIFFERENT: greedy outputs differ in {self.unexplained:,} of {self.texts.rows:,} rows, and {reason}; "
                "--logits finds out which differences are numerical ties"
            )
        if self.texts is not None and self.texts.identical and not any(m.best_changed for m in self.metrics):
            scores = f", and all {self.texts.scores:,} log-probabilities up to rounding" if self.texts.scores else ""
            return f"identical: all {self.texts.rows:,} outputs are the same, token for token{scores}"
        if not self.metrics:
            assert self.texts is not None
            return f"{self.texts.same_text:,} of {self.texts.rows:,} outputs are the same; neither run was scored"
        worst = sorted(self.metrics, key=lambda m: ("identical", "same scores", "within chance").index(m.finding))
        return worst[-1].verdict

    def to_dict(self) -> dict[str, Any]:
        """Returns the comparison as JSON values."""
        texts = None
        if self.texts is not None:
            texts = dataclasses.asdict(self.texts) | {"exact_match_rate": self.texts.exact_match_rate}
        return {
            "verdict": self.verdict,
            "differs": self.differs,
            "a": _run_dict(self.a),
            "b": _run_dict(self.b),
            "metrics": [
                dataclasses.asdict(m) | {"finding": m.finding, "verdict": m.verdict, "z": m.z if m.stderr else None}
                for m in self.metrics
            ],
            "flips": [dataclasses.asdict(flip) for flip in self.flips],
            "texts": texts,
            "gaps": [dataclasses.asdict(gap) | {"is_tie": gap.is_tie} for gap in self.gaps],
            "only_in_a": self.only_a,
            "only_in_b": self.only_b,
        }


def compare(a: ComparedRun, b: ComparedRun, metric: str | None = None) -> Comparison:
    """Compares scores, paired by task, document, filter and prompt, and outputs, paired by row.

    metric: compare only this one; None for all. Raises DataError if A and B have no scored document in common.
    """
    dtype = max((a.dtype, b.dtype), key=_COARSENESS.index)
    texts = None
    if a.run is not None and b.run is not None and _same_prompts(a, b):
        texts = compare_outputs(a.run, b.run, dtype)
    if not (a.samples and b.samples):
        if texts is None:
            missing = a if not a.samples else b
            raise DataError(f"{missing.name} was not scored; expected `specpipe eval replay {missing.name}` first")
        return Comparison(a=a, b=b, metrics=(), flips=(), texts=texts)
    left, right = read_samples(a.samples), read_samples(b.samples)
    if not _same_prompts(a, b):  # two models may have two chat templates
        left, right = ({key._replace(prompt_hash=""): sample for key, sample in s.items()} for s in (left, right))
    common = [key for key in left if key in right]
    if not common:
        raise DataError(
            f"{a.name} and {b.name} have no scored document in common; expected the same tasks with the same prompts"
        )
    return Comparison(
        a=a,
        b=b,
        metrics=tuple(_metrics(common, left, right, metric, dtype)),
        flips=tuple(_flips(common, left, right, metric)[:_FLIPS]),
        texts=texts,
        only_a=len(left) - len(common),
        only_b=len(right) - len(common),
    )


def _metrics(
    keys: Sequence[SampleKey],
    left: Mapping[SampleKey, EvalSample],
    right: Mapping[SampleKey, EvalSample],
    only: str | None,
    dtype: str,
) -> list[MetricComparison]:
    groups: dict[tuple[str, str, str], list[SampleKey]] = {}
    for key in keys:
        for name in left[key].values:
            if name in right[key].values and only in (None, name):
                groups.setdefault((key.task, key.filter, name), []).append(key)
    if not groups:
        raise DataError(f"no metric {only or ''} in both; expected one of {sorted(left[keys[0]].values)}")
    return [
        compare_scores(
            name,
            [left[key] for key in group],
            [right[key] for key in group],
            dtype,
        )
        for name, group in groups.items()
    ]


def _flips(
    keys: Sequence[SampleKey],
    left: Mapping[SampleKey, EvalSample],
    right: Mapping[SampleKey, EvalSample],
    only: str | None,
) -> list[Flip]:
    return [
        Flip(
            task=key.task,
            doc_id=key.doc_id,
            filter=key.filter,
            metric=name,
            score_a=score,
            score_b=right[key].values[name],
            prompt=left[key].prompt,
            target=left[key].target,
            answers_a=left[key].answers,
            answers_b=right[key].answers,
        )
        for key in keys
        for name, score in left[key].values.items()
        if only in (None, name) and name not in PERPLEXITIES and right[key].values.get(name, score) != score
    ]


def _same_prompts(a: ComparedRun, b: ComparedRun) -> bool:
    """Returns False for runs of two models on recordings of their own."""
    if a.run is None or b.run is None:
        return True
    same_target = a.settings.get("model.target") == b.settings.get("model.target")
    return same_target or a.run.inputs == b.run.inputs


def _run_dict(run: ComparedRun) -> dict[str, Any]:
    files = {task: str(path) for task, path in run.samples.items()}
    return {"name": run.name, "samples": files, "settings": run.settings, "measured": run.measured}
