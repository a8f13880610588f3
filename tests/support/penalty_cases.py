"""Random rounds of rows with penalties: token histories in slots, drafts, and expected logits in fp64."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from support.sampling_cases import Backend, to
from torch import Tensor

from specpipe_kernels import Penalties, apply_penalties, count_tokens
from specpipe_kernels.runtime.backend import VARIABLE


@dataclass(frozen=True, kw_only=True)
class History:
    """R requests in some of S slots."""

    tokens: Tensor
    prompts: list[list[int]]
    outputs: list[list[int]]
    slots: Tensor
    lengths: Tensor
    penalties: Penalties

    def seen(self) -> Tensor:
        """`seen` as in `operations.penalties`; noise in unused slots and behind every row's end."""
        seen = torch.full(self.tokens.shape, 7, dtype=torch.int32)
        for slot, prompt, output in zip(self.slots.tolist(), self.prompts, self.outputs, strict=True):
            row = prompt + output
            for place, token in enumerate(row):
                seen[slot, place] = 0 if token in row[:place] else 1 + output.count(token)
        return seen

    def expected(self, r: int, logits: Tensor, drafts: list[int]) -> Tensor:
        """Returns a row of fp64 logits of request r that follows `drafts`."""
        repetition, presence, frequency = (float(p[r]) for p in self.penalties)
        output = self.outputs[r] + drafts
        x = logits.double().clone()
        for token in {t for t in self.prompts[r] + output if t < len(x)}:
            x[token] = x[token] / repetition if x[token] > 0 else x[token] * repetition
            times = output.count(token)
            x[token] -= frequency * times + presence * (times > 0)
        return x


def random_history(rows: int, *, vocab: int, longest: int, seed: int = 0, room: int = 9) -> History:
    """Returns neutral rows, rows with one penalty and rows with all; with a prompt of one token and empty outputs.

    room: places behind the longest row.
    """
    g = np.random.default_rng(seed)
    slots = g.permutation(rows + 2)[:rows]
    tokens = g.integers(0, vocab, (rows + 2, longest + room))
    prompts, outputs = [], []
    for r in range(rows):
        length = int(g.integers(1, longest + 1))
        start = 1 if r == 0 else int(g.integers(1, length + 1))
        row = g.integers(0, vocab, length).tolist()
        tokens[slots[r], :length] = row
        prompts.append(row[:start])
        outputs.append(row[start:])
    pick = np.arange(rows) % 5
    values = (
        np.where(np.isin(pick, [1, 4]), 1.3, 1.0),
        np.where(np.isin(pick, [2, 4]), 0.75, 0.0),
        np.where(np.isin(pick, [3, 4]), -0.5, 0.0),
    )
    return History(
        tokens=torch.from_numpy(tokens),
        prompts=prompts,
        outputs=outputs,
        slots=torch.from_numpy(slots),
        lengths=torch.tensor([len(p) + len(o) for p, o in zip(prompts, outputs, strict=True)]),
        penalties=Penalties(*(torch.tensor(v, dtype=torch.float32) for v in values)),
    )


def penalised(
    backend: Backend,
    logits: Tensor,
    history: History,
    drafts: Tensor,
    *,
    first: int = 0,
    cu_rows: Tensor | None = None,
) -> Tensor:
    """Returns the penalised logits of a backend; the argument is not changed."""
    moved = _moved(backend, logits if 0 in logits.stride() else logits.clone(memory_format=torch.preserve_format))
    arguments = (_moved(backend, x) for x in (history.tokens, history.seen(), history.slots, history.lengths))
    penalties = Penalties(*(_moved(backend, p) for p in history.penalties))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(VARIABLE, backend.name)
        apply_penalties(
            moved, *arguments, penalties, _moved(backend, drafts), first=first, cu_rows=_moved(backend, cu_rows)
        )
    return moved.cpu()


def counted(backend: Backend, history: History, new_tokens: Tensor) -> Tensor:
    """Returns `seen` after an emission that history.tokens already contains."""
    seen = _moved(backend, history.seen())
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(VARIABLE, backend.name)
        count_tokens(
            _moved(backend, history.tokens), seen, _moved(backend, history.slots), _moved(backend, history.lengths),
            Penalties(*(_moved(backend, p) for p in history.penalties)), _moved(backend, new_tokens),
        )  # fmt: skip
    return seen.cpu()


def _moved(backend: Backend, tensor: Tensor | None) -> Tensor:
    moved: Tensor = to(tensor, backend.device)
    return moved
