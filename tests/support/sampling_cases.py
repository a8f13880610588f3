"""Random rounds of mixed rows, run on any backend and by the oracle."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from support import sampling_oracle as oracle
from torch import Tensor

from specpipe_kernels import Purpose, RejectionOutput, SamplingTensors, rejection_sample, types
from specpipe_kernels.runtime.backend import VARIABLE
from specpipe_kernels.sampling.device import logit_rows as triton_rows


class Backend(NamedTuple):
    name: str
    device: str


INTERPRETED = pytest.mark.skipif(torch.cuda.is_available(), reason="Triton's interpreter serves machines without a GPU")
INTERPRETER = Backend("triton", "cpu")
BACKENDS = [
    pytest.param(Backend("reference", "cpu"), id="reference"),
    pytest.param(INTERPRETER, id="interpreted", marks=INTERPRETED),
    pytest.param(Backend("triton", "cuda"), id="cuda", marks=pytest.mark.gpu),
]
# Cases that take the interpreter seconds.
HEAVY = [
    BACKENDS[0],
    pytest.param(INTERPRETER, id="interpreted", marks=[INTERPRETED, pytest.mark.slow]),
    BACKENDS[2],
]


def on_backends(quick: int = 1, **values: Sequence[Any]) -> pytest.MarkDecorator:
    """Parametrises `backend` and these arguments over all combinations.

    The interpreter runs `quick` combinations by default, the i-th of them with the i-th value of each argument (modulo
    their number); its other combinations are slow tests.
    """
    chosen = {tuple(i % len(column) for column in values.values()) for i in range(quick)}
    cases = []
    for backend in BACKENDS:
        for indices in product(*(range(len(column)) for column in values.values())):
            marks = list(backend.marks)
            if backend.id == "interpreted" and indices not in chosen:
                marks.append(pytest.mark.slow)
            row = [column[i] for column, i in zip(values.values(), indices, strict=True)]
            name = "-".join([str(value).removeprefix("torch.") for value in row] + [str(backend.id)])
            cases.append(pytest.param(*backend.values, *row, marks=marks, id=name))
    return pytest.mark.parametrize(("backend", *values), cases)


def to(value: Any, device: str) -> Any:
    """Moves tensors, and tensors in named tuples, to a device; strides are kept."""
    if isinstance(value, Tensor):
        if value.device.type == device:
            return value
        if 0 in value.stride():  # expanded: one copy of what repeats
            once = value[tuple(slice(0, 1) if stride == 0 else slice(None) for stride in value.stride())]
            return once.to(device).expand(value.shape)
        moved = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=device)
        return moved.copy_(value)
    if isinstance(value, tuple):
        return type(value)(*(to(x, device) for x in value))
    return value


def run(backend: Backend, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Calls a public operation on a backend; the result's tensors are moved to the CPU."""
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings(), np.errstate(all="ignore"):
        # The interpreter computes masked lanes and rows that hold NaN too.
        warnings.filterwarnings("ignore", message="All-NaN slice", category=RuntimeWarning)
        patch.setenv(VARIABLE, backend.name)
        result = function(
            *(to(x, backend.device) for x in args), **{k: to(x, backend.device) for k, x in kwargs.items()}
        )
    return to(result, "cpu")


def sampling(rows: Sequence[oracle.Row], **hints: bool) -> SamplingTensors:
    return SamplingTensors(
        temperature=torch.tensor([r.temperature for r in rows], dtype=torch.float32),
        top_k=torch.tensor([r.top_k for r in rows], dtype=torch.int32),
        top_p=torch.tensor([r.top_p for r in rows], dtype=torch.float32),
        min_p=torch.tensor([r.min_p for r in rows], dtype=torch.float32),
        seed=torch.tensor([r.seed for r in rows], dtype=torch.int64),
        **hints,
    )


def use_small_tiles(patch: pytest.MonkeyPatch, size: int, *, programs: int = 528) -> None:
    """Sets tiles and chunks of the vocabulary to `size` entries, and the number of programs to split rows into."""
    patch.setattr(triton_rows, "MAX_TILE", size)
    patch.setattr(triton_rows, "max_programs", lambda device: programs)
    for module in (types, oracle):
        patch.setattr(module, "CHUNK", size)


def same_rows(count: int, seed: int = 0, **fields: Any) -> SamplingTensors:
    """Returns `count` rows that differ in their seed only."""
    generator = torch.Generator().manual_seed(seed)
    row = sampling([oracle.Row(**fields)])
    repeated = SamplingTensors(*(x.repeat(count) for x in row[:5]))
    truncated = any(name in fields for name in ("top_k", "top_p", "min_p"))
    seeds = torch.randint(0, 2**63 - 1, (count,), generator=generator, device="cpu")
    return repeated._replace(seed=seeds.to(row.seed.device), truncated=truncated)


@dataclass(frozen=True, kw_only=True)
class Round:
    """The arguments of a rejection_sample call, and its rows for the oracle."""

    target_logits: Tensor
    draft_tokens: Tensor
    num_draft_tokens: Tensor
    positions: Tensor
    rows: list[oracle.Row]
    draft_logits: Tensor | None = None
    draft_rows: Tensor | None = None
    cu_rows: Tensor | None = None
    method: str = "standard"
    synthetic_rates: Tensor | None = None

    def with_(self, **changes: Any) -> Round:
        return replace(self, **changes)

    def verify(self, backend: Backend, **hints: bool) -> RejectionOutput:
        result: RejectionOutput = run(
            backend,
            rejection_sample,
            self.target_logits,
            self.draft_tokens,
            self.num_draft_tokens,
            self.positions,
            sampling(self.rows, **hints),
            draft_logits=self.draft_logits,
            draft_rows=self.draft_rows,
            cu_rows=self.cu_rows,
            method=self.method,
            synthetic_rates=self.synthetic_rates,
        )
        return result

    def drafts_of(self, r: int) -> list[int]:
        """Returns the drafts of a row before K_i and the first placeholder."""
        drafts = self.draft_tokens[r, : int(self.num_draft_tokens[r])].tolist()
        return drafts[: drafts.index(-1)] if -1 in drafts else drafts

    def expected(self) -> list[tuple[list[int], int]]:
        """Returns the oracle's emitted tokens and accepted drafts, row by row."""
        out = []
        for r, row in enumerate(self.rows):
            k = self.draft_tokens.shape[1]
            start = r * (k + 1) if self.cu_rows is None else int(self.cu_rows[r])
            drafts = self.drafts_of(r)
            p = self.target_logits[start : start + len(drafts) + 1].double().numpy()
            q = None
            if self.draft_logits is not None:
                source = r if self.draft_rows is None else int(self.draft_rows[r])
                q = self.draft_logits[source].double().numpy() if source >= 0 else None
            rates = None if self.synthetic_rates is None else self.synthetic_rates.tolist()
            out.append(oracle.verify(p, q, drafts, row, self.method, rates))
        return out


def emitted(output: RejectionOutput) -> list[tuple[list[int], int]]:
    """Returns emitted tokens and accepted drafts, row by row; checks that the padding is -1."""
    rows = []
    for tokens, count, accepted in zip(
        output.tokens.tolist(), output.num_emitted.tolist(), output.num_accepted.tolist(), strict=True
    ):
        assert tokens[count:] == [-1] * (len(tokens) - count)
        rows.append((tokens[:count], accepted))
    return rows


def random_rows(count: int, generator: torch.Generator, *, truncated: bool) -> list[oracle.Row]:
    """Returns greedy rows among random ones, each with its own truncation."""

    def pick(*choices: float) -> float:
        return choices[int(torch.randint(len(choices), (), generator=generator))]

    return [
        oracle.Row(
            temperature=pick(0.0, 0.7, 1.0, 1.0, 1.3),
            top_k=int(pick(0, 0, 3, 8)) if truncated else 0,
            top_p=pick(1.0, 1.0, 0.75) if truncated else 1.0,
            min_p=pick(0.0, 0.0, 0.0625) if truncated else 0.0,
            seed=int(torch.randint(0, 2**63 - 1, (), generator=generator)),
            position=int(torch.randint(0, 5000, (), generator=generator)),
        )
        for _ in range(count)
    ]


def random_round(
    *,
    vocab: int,
    draft_vocab: int | None,
    k: int,
    rows: int,
    method: str = "standard",
    dtype: torch.dtype = torch.float32,
    ragged: bool = False,
    truncated: bool = True,
    seed: int = 0,
) -> Round:
    """Returns a round whose drafts are close to the target and drawn from the engine's own stream.

    Some rows have placeholders, some no drafts.

    draft_vocab None makes one-hot proposals. Draft rows are permuted, target rows have a stride of their own.
    """
    g = torch.Generator().manual_seed(seed)
    dense = torch.randn(rows * (k + 1), vocab + 5, generator=g).mul_(2).to(dtype)
    target = dense[:, :vocab]
    row_list = random_rows(rows, g, truncated=truncated)
    draft_logits = draft_rows = None
    best = target.view(rows, k + 1, vocab)[:, :k].float().argmax(-1)
    if draft_vocab is None:
        drafts = torch.where(torch.rand(rows, k, generator=g) < 0.7, best, (best + 1) % vocab)
    else:
        draft_rows = torch.randperm(rows + 2, generator=g)[:rows]
        draft_logits = torch.randn(rows + 2, k, draft_vocab, generator=g)
        shared = min(vocab, draft_vocab)
        near = target.view(rows, k + 1, vocab)[:, :k, :shared].float()
        draft_logits[draft_rows, :, :shared] = near + draft_logits[draft_rows, :, :shared] * 0.5
        draft_logits = draft_logits.to(dtype)
        drafts = _draw_drafts(draft_logits[draft_rows], row_list, method)
    if rows > 3 and k:
        drafts[1, k // 2] = -1
    counts = torch.randint(0, k + 1, (rows,), generator=g) if ragged else torch.full((rows,), k)
    cu_rows = None
    if ragged:
        counts[-1] = 0
        cu_rows = torch.nn.functional.pad((counts + 1).cumsum(0), (1, 0)).int()
        target = target[: int(cu_rows[-1])]
    return Round(
        target_logits=target,
        draft_tokens=drafts,
        num_draft_tokens=counts.int(),
        positions=torch.tensor([r.position for r in row_list]),
        rows=row_list,
        draft_logits=draft_logits,
        draft_rows=draft_rows,
        cu_rows=cu_rows,
        method=method,
        synthetic_rates=torch.linspace(0.9, 0.3, k) if method == "synthetic" else None,
    )


def _draw_drafts(logits: Tensor, rows: list[oracle.Row], method: str) -> Tensor:
    purpose = Purpose.INVARIANT if method == "invariant" else Purpose.DRAFT
    drawn = [
        [
            oracle.sample(logits[r, i].double().numpy(), replace(row, position=row.position + i), purpose, i)[0]
            for i in range(logits.shape[1])
        ]
        for r, row in enumerate(rows)
    ]
    return torch.tensor(drawn, dtype=torch.int64).view(len(rows), logits.shape[1])
