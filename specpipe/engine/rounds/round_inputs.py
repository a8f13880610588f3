"""The host's inputs of a round: its slots, and the groups of rows that share pages. One upload, one graph buffer.

Shapes: B batch rows, padding included.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from specpipe.engine.state.prefix_groups import PrefixGroups
from specpipe_kernels import PrefixArgs


class RoundInputs(NamedTuple):
    """Views of one tensor on the device."""

    slots: Tensor
    """[B] int64."""
    prefix: PrefixArgs | None
    """None if the round's key is not `shared`."""


def pack_inputs(slots: Sequence[int], groups: PrefixGroups | None, rows: int, *, dummy: int) -> NDArray[np.int64]:
    """Returns the inputs of a round of `rows` batch rows (B) as one array, for `split_inputs` on the device.

    dummy: the slot of batch rows behind the last of `slots`; they are in no group.
    """
    packed = np.zeros(sum(_field_sizes(rows, shared=groups is not None)), dtype=np.int64)
    packed[:rows] = dummy
    packed[: len(slots)] = slots
    if groups is not None:
        _, pages, members, ends = np.split(packed, np.cumsum(_field_sizes(rows, shared=True))[:-1])
        pages[: len(slots)] = groups.prefix_pages
        members[: len(groups.members)] = groups.members
        ends[1:] = len(groups.members)
        ends[1 : len(groups.ends) + 1] = groups.ends
    return packed


def dummy_inputs(rows: int, *, shared: bool, dummy: int) -> NDArray[np.int64]:
    """Returns packed inputs of a round in which every batch row is the dummy slot and no row is in a group."""
    return pack_inputs([], PrefixGroups([], [], []) if shared else None, rows, dummy=dummy)


def split_inputs(packed: Tensor, rows: int, *, shared: bool) -> RoundInputs:
    """Returns the fields of a tensor that holds the result of `pack_inputs`; shared: it was packed with groups."""
    slots, *groups = packed.split(_field_sizes(rows, shared=shared))
    if not shared:
        return RoundInputs(slots, None)
    pages, members, ends = groups
    return RoundInputs(slots[:rows], PrefixArgs(pages[:rows], members[:rows], ends))


def _field_sizes(rows: int, *, shared: bool) -> list[int]:
    """Returns the lengths of the packed fields: slots, and with groups their pages, members and ends.

    All but the last are multiples of 16 bytes: kernels are compiled for the alignment of their inputs. A group has at
    least two members.
    """
    return [rows + rows % 2] * 3 + [rows // 2 + 1] if shared else [rows]
