"""Tensors of one quantised linear layer as each format stores them: names, dtypes and shapes.

Shapes: N outputs, K inputs, G = ⌈K / group⌉ groups of inputs. Scales multiply the stored value in every format,
`weight_scale_inv` included.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import numpy as np

from specpipe.models.quantization.stored_tensors import StoredTensor

FLOATS = frozenset({"F32", "BF16", "F16", "F8_E8M0"})
Granularity = Literal["tensor", "channel", "block"]
BLOCK = 128
"""Rows and columns of a block of 8-bit weights."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Layout(ABC):
    """Tensors of a layer by the last part of their names."""

    optional: ClassVar[tuple[str, ...]] = ()
    """Tensors that may be missing."""
    bits: ClassVar[int]

    @property
    @abstractmethod
    def required(self) -> tuple[str, ...]:
        """Tensors that every layer has, the values first."""

    @property
    def has_zeros(self) -> bool:
        """True if each scale has a zero of its own."""
        return False

    @abstractmethod
    def label(self) -> str:
        """Returns the number format for messages and reports."""

    @abstractmethod
    def shape(self, stored: Mapping[str, StoredTensor]) -> tuple[int, int]:
        """Returns (N, K) of a layer with all required tensors. Raises ValueError for a wrong dtype or shape."""

    @abstractmethod
    def block(self, columns: int) -> tuple[int, int]:
        """Returns the rows and columns that share a scale, for a layer of K = columns."""

    def named_as(self, stored: Mapping[str, StoredTensor]) -> Layout:
        """Returns the layout with the names of these tensors, where writers of a format use different ones."""
        return self


@dataclass(frozen=True, kw_only=True, slots=True)
class Fp8Layout(Layout):
    """`weight` float8_e4m3fn [N, K] and a scale for the tensor, each output channel, or blocks of 128 x 128.

    A scale of the tensor has one entry; of channels [N] or [N, 1]; of blocks [⌈N/128⌉, ⌈K/128⌉], or 4-dimensional with
    ones between (modelopt).
    """

    scale: str = "weight_scale"
    """Name of the scale."""
    other_scale: str = ""
    """Name of the scale in files of other writers; "" without one."""
    granularity: Granularity
    optional: ClassVar[tuple[str, ...]] = ("input_scale", "activation_scale")
    bits: ClassVar[int] = 8

    @property
    def required(self) -> tuple[str, ...]:
        """Values and scale."""
        return "weight", self.scale

    def label(self) -> str:
        """Returns the number format, such as "FP8 by channel"."""
        return {"tensor": "FP8 by tensor", "channel": "FP8 by channel", "block": "FP8 in blocks"}[self.granularity]

    def shape(self, stored: Mapping[str, StoredTensor]) -> tuple[int, int]:
        """Returns (N, K)."""
        weight, scale = stored["weight"], stored[self.scale]
        n, k = _matrix("weight", weight, {"F8_E4M3"})
        if scale.dtype not in FLOATS:
            raise ValueError(f"{self.scale} has dtype {scale.dtype}; expected a floating-point one")
        found = tuple(size for size in scale.shape if size != 1)
        expected = {"tensor": (), "channel": (n,), "block": (_ceil(n, BLOCK), _ceil(k, BLOCK))}[self.granularity]
        if found != tuple(size for size in expected if size != 1):
            raise ValueError(
                f"{self.scale} has shape {list(scale.shape)}; expected {list(expected) or 'one entry'} for a weight "
                f"{[n, k]} with scales by {self.granularity}"
            )
        return n, k

    def block(self, columns: int) -> tuple[int, int]:
        """Returns (1, K) or (128, 128)."""
        return (BLOCK, BLOCK) if self.granularity == "block" else (1, columns)

    def named_as(self, stored: Mapping[str, StoredTensor]) -> Layout:
        """Returns the layout with the name of the scale that the layer has."""
        return replace(self, scale=self.other_scale) if self.other_scale in stored else self


@dataclass(frozen=True, kw_only=True, slots=True)
class GroupLayout(Layout):
    """4-bit integers with a scale for each output and group of inputs."""

    group: int
    """Inputs that share a scale; -1: all."""
    symmetric: bool
    bits: ClassVar[int] = 4

    @property
    def has_zeros(self) -> bool:
        """True for asymmetric layers; the zero of all others is 8."""
        return not self.symmetric

    def label(self) -> str:
        """Returns the number format, such as "4 bits in groups of 128"."""
        return "4 bits " + (f"in groups of {self.group}" if self.group > 0 else "by channel")

    def block(self, columns: int) -> tuple[int, int]:
        """Returns (1, group)."""
        return 1, columns if self.group < 0 else self.group

    @property
    def order(self) -> str:
        """Name of the optional tensor with each input's group; "" where the format has none."""
        return ""

    def check_order(self, stored: Mapping[str, StoredTensor], columns: int) -> None:
        """Reads the groups of the inputs [K]. Raises ValueError unless each consists of adjacent inputs, in order."""
        tensor = stored.get(self.order)
        if tensor is None:
            return
        dtype = np.int32 if tensor.dtype == "I32" else np.int64
        found = np.fromfile(tensor.file, dtype, tensor.numel, offset=tensor.start)
        if not np.array_equal(found, np.arange(columns) // self.block(columns)[1]):
            raise ValueError(
                f"{self.order} permutes its groups (desc_act, or actorder: group), and every product would gather its "
                "inputs; expected groups of adjacent inputs"
            )

    def _expect_order(self, stored: Mapping[str, StoredTensor], columns: int) -> None:
        """Raises ValueError for groups by input of a wrong dtype or shape."""
        if self.order in stored:
            _expect(self.order, stored, {"I32", "I64"}, (columns,))

    def _groups(self, columns: int) -> int:
        """Returns G. Raises ValueError where groups do not divide K = columns."""
        if columns % self.block(columns)[1] or columns % 8:
            raise ValueError(f"{columns} inputs; expected a multiple of 8 and of the group size {self.group}")
        return columns // self.block(columns)[1]


@dataclass(frozen=True, kw_only=True, slots=True)
class PackedLayout(GroupLayout):
    """compressed-tensors, `pack-quantized`: value + 8, lowest bits first.

    `weight_packed` int32 [N, K / 8], `weight_scale` [N, G], `weight_shape` [2]; asymmetric: `weight_zero_point` int32
    [⌈N / 8⌉, G]; `weight_g_idx` [K] with actorder "group".
    """

    optional: ClassVar[tuple[str, ...]] = ("weight_g_idx",)

    @property
    def required(self) -> tuple[str, ...]:
        """Values, scales, sizes and the zeros of asymmetric layers."""
        names = "weight_packed", "weight_scale", "weight_shape"
        return names if self.symmetric else (*names, "weight_zero_point")

    @property
    def order(self) -> str:
        """Groups by input, with actorder "group"."""
        return "weight_g_idx"

    def shape(self, stored: Mapping[str, StoredTensor]) -> tuple[int, int]:
        """Returns (N, K)."""
        n, words = _matrix("weight_packed", stored["weight_packed"], {"I32"})
        groups = self._groups(words * 8)
        _expect("weight_scale", stored, FLOATS, (n, groups))
        if not self.symmetric:
            _expect("weight_zero_point", stored, {"I32"}, (_ceil(n, 8), groups))
        self._expect_order(stored, words * 8)
        return n, words * 8


@dataclass(frozen=True, kw_only=True, slots=True)
class AwqLayout(GroupLayout):
    """AWQ, `gemm`: `qweight` int32 [K, N / 8], `qzeros` int32 [G, N / 8], `scales` [G, N].

    Outputs 0, 4, 1, 5, 2, 6, 3, 7 of eight are stored in this order of nibbles, lowest first: output j of a word is in
    nibble (0, 4, 1, 5, 2, 6, 3, 7)[j].
    """

    @property
    def required(self) -> tuple[str, ...]:
        """Values, zeros and scales."""
        return "qweight", "qzeros", "scales"

    def shape(self, stored: Mapping[str, StoredTensor]) -> tuple[int, int]:
        """Returns (N, K)."""
        k, words = _matrix("qweight", stored["qweight"], {"I32"})
        groups = self._groups(k)
        _expect("qzeros", stored, {"I32"}, (groups, words))
        _expect("scales", stored, FLOATS, (groups, words * 8))
        return words * 8, k


@dataclass(frozen=True, kw_only=True, slots=True)
class GptqLayout(GroupLayout):
    """GPTQ: `qweight` int32 [K / 8, N], `qzeros` int32 [G, N / 8], `scales` [G, N], `g_idx` int32 [K]."""

    zero_offset: int
    """Added to stored zeros: 1 in the first format (checkpoint_format "gptq"), 0 in "gptq_v2"."""
    optional: ClassVar[tuple[str, ...]] = ("g_idx",)

    @property
    def required(self) -> tuple[str, ...]:
        """Values, zeros and scales."""
        return "qweight", "qzeros", "scales"

    @property
    def order(self) -> str:
        """Groups by input."""
        return "g_idx"

    def shape(self, stored: Mapping[str, StoredTensor]) -> tuple[int, int]:
        """Returns (N, K)."""
        words, n = _matrix("qweight", stored["qweight"], {"I32"})
        groups = self._groups(words * 8)
        _expect("qzeros", stored, {"I32"}, (groups, _ceil(n, 8)))
        _expect("scales", stored, FLOATS, (groups, n))
        self._expect_order(stored, words * 8)
        return n, words * 8


def _ceil(count: int, size: int) -> int:
    return -(-count // size)


def _matrix(name: str, tensor: StoredTensor, dtypes: set[str]) -> tuple[int, int]:
    """Returns the two sizes of a matrix. Raises ValueError for another tensor."""
    if tensor.dtype not in dtypes or len(tensor.shape) != 2:
        raise ValueError(f"{name} is {tensor.dtype} {list(tensor.shape)}; expected {'/'.join(dtypes)}, 2 dimensions")
    return tensor.shape[0], tensor.shape[1]


def _expect(
    name: str, stored: Mapping[str, StoredTensor], dtypes: frozenset[str] | set[str], shape: tuple[int, ...]
) -> None:
    """Raises ValueError unless the tensor has one of these dtypes and this shape."""
    tensor = stored[name]
    if tensor.dtype not in dtypes or tensor.shape != shape:
        raise ValueError(
            f"{name} is {tensor.dtype} {list(tensor.shape)}; expected {'/'.join(sorted(dtypes))} {list(shape)}"
        )
