"""The device's state of the rows that generate, one entry for each slot.

The host never waits here. On a GPU `x[slots] = 0` would wait: its number is copied from memory that is not pinned.

Slot `slots` (the last entry) is a dummy: batch rows that pad a captured batch size map to it. It is never active and
its block table is all trash, so a round has no effect on it.

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
from specpipe_kernels import MAX_MATCH, Penalties, ReferenceTensors, SlotTensors

NO_TOKEN = -1
MAX_STOP_TOKENS = 16
"""Stop ids of a row beside the model's own end-of-sequence ids."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Admission:
    """A row with the slot and the first pages assigned to it."""

    slot: int
    request: Request
    pages: tuple[int, ...]
    speculates: bool = True
    """False if the row has no drafts in this slot."""
    generated: Sequence[int] = ()
    """Tokens after the prompt; not empty if the row had a slot before, or is scored."""
    reference: tuple[int, ...] = ()
    """Earlier answer that the row may follow."""
    limit: int
    """Length at which the row ends."""

    @property
    def length(self) -> int:
        """Tokens committed, prompt included."""
        return len(self.request.prompt_token_ids) + len(self.generated)


class PageGrants(NamedTuple):
    """Further pages of rows: page `pages[i]` becomes entry `columns[i]` in the block table of slot `slots[i]`."""

    slots: list[int]
    columns: list[int]
    pages: list[int]


class SlotState:
    """State tensors of S slots and the dummy: S + 1 entries each.

    Shapes: C token capacity of a slot, drafts past the row's end included; W pages a row; E stop ids; B batch rows.
    """

    def __init__(self, config: EngineConfig, *, eos_ids: Sequence[int], device: torch.device) -> None:
        """eos_ids: end-of-sequence ids of the model."""
        n = config.slots + 1
        self.dummy = config.slots
        self.device = device
        self.page_size = config.page_size
        self.eos_ids = tuple(eos_ids)
        capacity = config.pages_per_row * config.page_size

        def full(*shape: int, value: float = 0, dtype: torch.dtype = torch.int64) -> Tensor:
            return torch.full(shape, value, dtype=dtype, device=device)

        self.tokens = full(n, capacity)
        """[S + 1, C] int64: prompt and output."""
        self.seen = full(n, capacity, dtype=torch.int32)
        """[S + 1, C] int32: counts of tokens for penalties, as `_token_counts` initialises them."""
        self.length = full(n, value=1)
        """[S + 1] int64: tokens committed."""
        self.draft_valid = full(n)
        """[S + 1] int64: tokens whose KV the draft model has."""
        self.limit = full(n, value=1)
        """[S + 1] int64: length at which the row ends."""
        self.min_length = full(n)
        """[S + 1] int64: length below which the row may not end (min_tokens)."""
        self.active = full(n, dtype=torch.bool)
        """[S + 1] bool: the row takes part in rounds."""
        self.speculates = full(n, dtype=torch.bool)
        """[S + 1] bool: the row may have drafts."""
        self.stop_ids = full(n, len(self.eos_ids) + MAX_STOP_TOKENS, value=NO_TOKEN)
        """[S + 1, E] int64: ids that end the row, then NO_TOKEN."""
        self.block_table = full(n, config.pages_per_row, dtype=torch.int32)
        """[S + 1, W] int32: the row's pages, then TRASH_PAGE."""
        self.references = _empty_references(n, config.max_model_len + MAX_MATCH, device) if config.replay_k else None
        """Earlier answers that rows follow; None without the proposers that do."""
        self.temperature = full(n, dtype=torch.float32)
        self.top_k = full(n, dtype=torch.int32)
        self.top_p = full(n, value=1, dtype=torch.float32)
        self.min_p = full(n, dtype=torch.float32)
        self.repetition = full(n, value=1, dtype=torch.float32)
        self.presence = full(n, dtype=torch.float32)
        self.frequency = full(n, dtype=torch.float32)
        self.seed = full(n)
        """[S + 1] int64, as the sampling parameters above: the row's seed."""

    def upload(self, values: object, dtype: torch.dtype = torch.int64) -> Tensor:
        """Returns a host array (lists or numpy) as a tensor on the device, without waiting for the device."""
        host = torch.as_tensor(np.asarray(values), dtype=dtype)
        return (
            host.pin_memory().to(self.device, non_blocking=True) if self.device.type == "cuda" else host.to(self.device)
        )

    def admit(self, admissions: Sequence[Admission]) -> None:
        """Writes the rows' whole state. They stay inactive until `activate`, when their prompt is prefilled."""
        slots = self.upload([a.slot for a in admissions])
        self._write_tokens(slots, admissions)
        self._write_limits(slots, admissions)
        self._write_sampling(slots, [a.request for a in admissions])
        if self.references is not None:
            self._write_references(self.references, slots, admissions)

    def _write_tokens(self, slots: Tensor, admissions: Sequence[Admission]) -> None:
        """Writes tokens, their counts and block tables. slots [rows] int64."""
        longest = max(a.length for a in admissions)
        tokens = np.zeros((len(admissions), longest), dtype=np.int64)
        seen = np.zeros((len(admissions), longest), dtype=np.int32)
        table = np.zeros((len(admissions), self.block_table.shape[1]), dtype=np.int32)
        for i, admission in enumerate(admissions):
            prompt, length = admission.request.prompt_token_ids, admission.length
            tokens[i, : len(prompt)] = prompt
            tokens[i, len(prompt) : length] = admission.generated
            if admission.request.sampling.penalises:
                seen[i, :length] = _token_counts(tokens[i, :length], len(prompt))
            table[i, : len(admission.pages)] = admission.pages
        self.tokens[slots, :longest] = self.upload(tokens)
        self.seen[slots, :longest] = self.upload(seen, torch.int32)
        self.block_table[slots] = self.upload(table, torch.int32)

    def _write_limits(self, slots: Tensor, admissions: Sequence[Admission]) -> None:
        """Writes lengths and everything that ends a row. slots [rows] int64."""
        requests = [a.request for a in admissions]
        stops = np.full((len(requests), self.stop_ids.shape[1]), NO_TOKEN, dtype=np.int64)
        for i, request in enumerate(requests):
            ids = request.sampling.stop_token_ids + (() if request.sampling.ignore_eos else self.eos_ids)
            stops[i, : len(ids)] = ids
        self.stop_ids[slots] = self.upload(stops)
        self.length[slots] = self.upload([a.length for a in admissions])
        self.limit[slots] = self.upload([a.limit for a in admissions])
        self.min_length[slots] = self.upload([len(r.prompt_token_ids) + r.sampling.min_tokens for r in requests])
        self.draft_valid.index_fill_(0, slots, 0)
        self.speculates[slots] = self.upload([a.speculates for a in admissions], torch.bool)

    def _write_references(self, references: ReferenceTensors, slots: Tensor, admissions: Sequence[Admission]) -> None:
        """Writes the texts that rows may follow: the prompt's end, so that an answer's first token has tokens before
        it, and as much of the answer as fits. slots [rows] int64."""
        ends = [a.request.prompt_token_ids[-MAX_MATCH:] for a in admissions]
        texts = [
            (end + a.reference)[: references.tokens.shape[1]] if a.reference else ()
            for end, a in zip(ends, admissions, strict=True)
        ]
        stored = np.full((len(texts), max(map(len, texts))), NO_TOKEN, dtype=np.int32)
        for i, text in enumerate(texts):
            ids = np.array(text, dtype=np.int64)
            stored[i, : len(text)] = np.where((ids >= 0) & (ids < 2**31), ids, NO_TOKEN)
        references.tokens[slots, : stored.shape[1]] = self.upload(stored, torch.int32)
        references.length[slots] = self.upload([len(text) for text in texts])
        anchors = [len(end) - len(a.request.prompt_token_ids) for end, a in zip(ends, admissions, strict=True)]
        assert references.anchor is not None
        references.anchor[slots] = self.upload(anchors)

    def _write_sampling(self, slots: Tensor, requests: Sequence[Request]) -> None:
        """Writes sampling parameters. slots [rows] int64."""
        self.seed[slots] = self.upload([r.seed for r in requests])
        self.temperature[slots] = self.upload([r.sampling.temperature for r in requests], torch.float32)
        self.top_k[slots] = self.upload([r.sampling.top_k for r in requests], torch.int32)
        self.top_p[slots] = self.upload([r.sampling.top_p for r in requests], torch.float32)
        self.min_p[slots] = self.upload([r.sampling.min_p for r in requests], torch.float32)
        self.repetition[slots] = self.upload([r.sampling.repetition_penalty for r in requests], torch.float32)
        self.presence[slots] = self.upload([r.sampling.presence_penalty for r in requests], torch.float32)
        self.frequency[slots] = self.upload([r.sampling.frequency_penalty for r in requests], torch.float32)

    def set_dummy_rows(self, length: int, *, pages: int, vocab_size: int) -> None:
        """Gives every slot the state of a row of `length` tokens, for measurements before the first row.

        Rows have random tokens of their own: equal ones would hit the same few experts of a mixture. They repeat every
        32 tokens, so n-grams match. Slots share pages where there are fewer than `length` tokens for each would need.
        None is active, so rounds commit nothing. `clear_dummy_rows` ends it.
        """
        slots, width = self.dummy, length // self.page_size + 1
        drawn = torch.randint(vocab_size, (slots, 32), generator=torch.Generator().manual_seed(0), device="cpu")
        self.tokens[:slots, :length] = drawn.to(self.device)[:, torch.arange(length, device=self.device) % 32]
        numbers = torch.arange(slots * width, device=self.device).view(slots, width) % pages
        self.length[:slots] = length
        self.block_table[:slots, :width] = (TRASH_PAGE + 1 + numbers).to(torch.int32)

    def clear_dummy_rows(self) -> None:
        """Restores the state before `set_dummy_rows`."""
        self.tokens[: self.dummy] = 0
        self.length[: self.dummy] = 1
        self.block_table[: self.dummy] = TRASH_PAGE

    def activate(self, slots: Sequence[int]) -> None:
        """Makes rows whose prompts are prefilled take part in rounds from now on."""
        self.active.index_fill_(0, self.upload(slots), True)

    def grant(self, grants: PageGrants) -> None:
        """Writes further pages to the rows' block tables."""
        slots, columns, pages = self.upload(grants)
        self.block_table[slots, columns] = pages.to(torch.int32)

    def release(self, slots: Sequence[int]) -> None:
        """Deactivates slots. A round in flight may still write their old pages, which no row reads before it ends."""
        index = self.upload(slots)
        self.active.index_fill_(0, index, False)
        self.block_table.index_fill_(0, index, TRASH_PAGE)

    @property
    def on_device(self) -> SlotTensors:
        """The tensors that the kernels of a round read and write."""
        return SlotTensors(
            tokens=self.tokens,
            length=self.length,
            draft_valid=self.draft_valid,
            limit=self.limit,
            active=self.active,
            speculates=self.speculates,
            stop_ids=self.stop_ids,
            block_table=self.block_table,
            temperature=self.temperature,
            top_k=self.top_k,
            top_p=self.top_p,
            min_p=self.min_p,
            seed=self.seed,
        )

    def penalties(self, slots: Tensor) -> Penalties:
        """Returns the penalties of batch rows, one entry a row. slots [B] int64."""
        return Penalties(self.repetition[slots], self.presence[slots], self.frequency[slots])


def _empty_references(slots: int, capacity: int, device: torch.device) -> ReferenceTensors:
    """Returns slots without a text. capacity: tokens of a slot."""
    return ReferenceTensors(
        tokens=torch.full((slots, capacity), NO_TOKEN, dtype=torch.int32, device=device),
        length=torch.zeros(slots, dtype=torch.int64, device=device),
        anchor=torch.zeros(slots, dtype=torch.int64, device=device),
    )


def _token_counts(tokens: NDArray[np.int64], prompt: int) -> NDArray[np.int32]:
    """Returns the counts of a row's tokens, [length] int32, as `specpipe_kernels.operations.penalties` reads them.

    The first occurrence of a token holds 1 plus its count in the output; all other entries are 0.
    tokens [length] int64: prompt and output, of which the first `prompt` are the prompt.
    """
    _, first, index = np.unique(tokens, return_index=True, return_inverse=True)
    seen = np.zeros(len(tokens), dtype=np.int32)
    seen[first] = 1 + np.bincount(index[prompt:], minlength=len(first))
    return seen
