"""Everything that the device knows about the rows it generates, one entry per slot.

The host never waits here. On a GPU `x[slots] = 0` would: its number travels in memory that is not pinned.

Slot `slots` (the last entry) is a dummy: batch rows that pad a bucket map to it. It is never active and its block
table is all trash, so what a round does to it has no effect.

Invariants between rounds, for a slot of length L (tokens committed, prompt included):
- the target's KV is valid below L - 1: the last committed token has none yet;
- the draft's KV is valid below `draft_valid`, which is at least L - 2 if the row may speculate;
- rollback moves `length` and nothing else: stale KV is overwritten before any query can see it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from specpipe.core import EngineConfig, Request
from specpipe.engine.state.page_allocator import TRASH_PAGE
from specpipe_kernels import Penalties, SlotTensors

NO_TOKEN = -1
MAX_STOP_TOKENS = 16  # stop ids a row may name beside the model's own


@dataclass(frozen=True, kw_only=True, slots=True)
class Admission:
    """A row and the slot and first pages that it gets."""

    slot: int
    request: Request
    pages: tuple[int, ...]
    generated: Sequence[int] = ()
    """Tokens after the prompt, of a row that had a slot before."""


class PageGrants(NamedTuple):
    """Further pages of rows: page `pages[i]` becomes entry `columns[i]` in the block table of slot `slots[i]`."""

    slots: list[int]
    columns: list[int]
    pages: list[int]


class SlotState:
    """S slots plus the dummy; C tokens at most a row, drafts past the end included."""

    def __init__(self, config: EngineConfig, *, eos_ids: Sequence[int], device: torch.device) -> None:
        n = config.slots + 1
        self.dummy = config.slots
        self.device = device
        self.page_size = config.page_size
        self.eos_ids = tuple(eos_ids)
        capacity = config.pages_per_row * config.page_size

        def full(*shape: int, value: float = 0, dtype: torch.dtype = torch.int64) -> Tensor:
            return torch.full(shape, value, dtype=dtype, device=device)

        self.tokens = full(n, capacity)
        self.seen = full(n, capacity, dtype=torch.int32)  # see specpipe_kernels.operations.penalties
        self.length = full(n, value=1)
        self.draft_valid = full(n)
        self.limit = full(n, value=1)
        self.min_length = full(n)
        self.active = full(n, dtype=torch.bool)
        self.stop_ids = full(n, len(self.eos_ids) + MAX_STOP_TOKENS, value=NO_TOKEN)
        self.block_table = full(n, config.pages_per_row, dtype=torch.int32)
        self.temperature = full(n, dtype=torch.float32)
        self.top_k = full(n, dtype=torch.int32)
        self.top_p = full(n, value=1, dtype=torch.float32)
        self.min_p = full(n, dtype=torch.float32)
        self.repetition = full(n, value=1, dtype=torch.float32)
        self.presence = full(n, dtype=torch.float32)
        self.frequency = full(n, dtype=torch.float32)
        self.seed = full(n)

    def upload(self, values: object, dtype: torch.dtype = torch.int64) -> Tensor:
        """A host array on the device, without waiting for the device."""
        host = torch.as_tensor(np.asarray(values), dtype=dtype)
        return (
            host.pin_memory().to(self.device, non_blocking=True) if self.device.type == "cuda" else host.to(self.device)
        )

    def admit(self, admissions: Sequence[Admission]) -> None:
        """Writes the rows' whole state. They stay inactive until their prompt is prefilled."""
        slots = self.upload([a.slot for a in admissions])
        requests = [a.request for a in admissions]
        lengths = [len(a.request.prompt_token_ids) + len(a.generated) for a in admissions]
        longest = max(lengths)
        tokens = np.zeros((len(requests), longest), dtype=np.int64)
        seen = np.zeros((len(requests), longest), dtype=np.int32)
        table = np.zeros((len(requests), self.block_table.shape[1]), dtype=np.int32)
        stops = np.full((len(requests), self.stop_ids.shape[1]), NO_TOKEN, dtype=np.int64)
        for i, admission in enumerate(admissions):
            prompt, sampling = admission.request.prompt_token_ids, admission.request.sampling
            tokens[i, : len(prompt)] = prompt
            tokens[i, len(prompt) : lengths[i]] = admission.generated
            if sampling.penalises:
                seen[i, : lengths[i]] = _seen(tokens[i, : lengths[i]], len(prompt))
            table[i, : len(admission.pages)] = admission.pages
            ids = sampling.stop_token_ids + (() if sampling.ignore_eos else self.eos_ids)
            stops[i, : len(ids)] = ids
        self.tokens[slots, :longest] = self.upload(tokens)
        self.seen[slots, :longest] = self.upload(seen, torch.int32)
        self.block_table[slots] = self.upload(table, torch.int32)
        self.stop_ids[slots] = self.upload(stops)
        self.length[slots] = self.upload(lengths)
        self.limit[slots] = self.upload([len(r.prompt_token_ids) + r.sampling.max_new_tokens for r in requests])
        self.min_length[slots] = self.upload([len(r.prompt_token_ids) + r.sampling.min_tokens for r in requests])
        self.draft_valid.index_fill_(0, slots, 0)
        self.seed[slots] = self.upload([r.seed for r in requests])
        self.temperature[slots] = self.upload([r.sampling.temperature for r in requests], torch.float32)
        self.top_k[slots] = self.upload([r.sampling.top_k for r in requests], torch.int32)
        self.top_p[slots] = self.upload([r.sampling.top_p for r in requests], torch.float32)
        self.min_p[slots] = self.upload([r.sampling.min_p for r in requests], torch.float32)
        self.repetition[slots] = self.upload([r.sampling.repetition_penalty for r in requests], torch.float32)
        self.presence[slots] = self.upload([r.sampling.presence_penalty for r in requests], torch.float32)
        self.frequency[slots] = self.upload([r.sampling.frequency_penalty for r in requests], torch.float32)

    def pretend(self, length: int, *, pages: int) -> None:
        """Before the first row: all slots look as if each held a row of so many tokens, in pages of its own as far as
        there are. None is active, so that rounds commit nothing; `forget` ends it."""
        slots, width = self.dummy, length // self.page_size + 1
        numbers = torch.arange(slots * width, device=self.device).view(slots, width) % pages
        self.length[:slots] = length
        self.block_table[:slots, :width] = (TRASH_PAGE + 1 + numbers).to(torch.int32)

    def forget(self) -> None:
        """As it was before `pretend`."""
        self.length[: self.dummy] = 1
        self.block_table[: self.dummy] = TRASH_PAGE

    def activate(self, slots: Sequence[int]) -> None:
        """The rows' prompts are prefilled: they take part in rounds from now on."""
        self.active.index_fill_(0, self.upload(slots), True)

    def grant(self, grants: PageGrants) -> None:
        """Enters further pages into the rows' block tables."""
        slots, columns, pages = self.upload(grants)
        self.block_table[slots, columns] = pages.to(torch.int32)

    def release(self, slots: Sequence[int]) -> None:
        """The rows lose their slots. What a round in flight still writes for them goes to pages nobody reads yet."""
        index = self.upload(slots)
        self.active.index_fill_(0, index, False)
        self.block_table.index_fill_(0, index, TRASH_PAGE)

    @property
    def on_device(self) -> SlotTensors:
        """What rounds read and move."""
        return SlotTensors(
            tokens=self.tokens,
            length=self.length,
            draft_valid=self.draft_valid,
            limit=self.limit,
            active=self.active,
            stop_ids=self.stop_ids,
            block_table=self.block_table,
            temperature=self.temperature,
            top_k=self.top_k,
            top_p=self.top_p,
            min_p=self.min_p,
            seed=self.seed,
        )

    def penalties(self, rows: Tensor) -> Penalties:
        """Of batch rows [B], one entry a row."""
        return Penalties(self.repetition[rows], self.presence[rows], self.frequency[rows])


def _seen(tokens: NDArray[np.int64], prompt: int) -> NDArray[np.int32]:
    """`seen` (`specpipe_kernels.operations.penalties`) of a row whose first `prompt` tokens are its prompt."""
    _, first, which = np.unique(tokens, return_index=True, return_inverse=True)
    seen = np.zeros(len(tokens), dtype=np.int32)
    seen[first] = 1 + np.bincount(which[prompt:], minlength=len(first))
    return seen
