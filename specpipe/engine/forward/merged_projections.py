"""Projections of the same input as one product over their concatenated weights."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from specpipe.engine.forward.quantized_linear import QuantizedLinear
from specpipe_kernels import QuantizedWeight, dequantize, with_scales_by_group

_GROUPS = ("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj")


def weight_of(linear: nn.Module) -> Tensor | QuantizedWeight:
    """Returns a linear layer's weight [outputs, inputs] as it is stored."""
    return linear.quantized if isinstance(linear, QuantizedLinear) else cast(Tensor, linear.weight).data


def concatenate_weights(*linears: nn.Module) -> Tensor | QuantizedWeight:
    """Returns the weights of projections of one input size, concatenated: [sum of outputs, inputs].

    The projections' own weights become views of the result, so that nothing is stored twice. Each keeps its scales. If
    some are quantised and others are not, or in another way, all are merged as dense weights.
    """
    weights = [weight_of(linear) for linear in linears]
    quantized = [weight for weight in weights if isinstance(weight, QuantizedWeight)]
    if len(quantized) == len(weights) and len({(w.block[1], w.values.dtype) for w in quantized}) == 1:
        merged = concatenate_quantized(quantized)
        for linear, values in zip(linears, merged.values.split([w.shape[0] for w in weights]), strict=True):
            cast(QuantizedLinear, linear).values = values
        return merged
    if quantized:
        dtype = next((w.dtype for w in weights if isinstance(w, Tensor)), torch.bfloat16)
        return torch.cat([dequantize(w, dtype) if isinstance(w, QuantizedWeight) else w for w in weights])
    dense = torch.cat([cast(Tensor, weight) for weight in weights])
    for linear, view in zip(linears, dense.split([weight.shape[0] for weight in weights]), strict=True):
        cast(Tensor, linear.weight).data = view
    return dense


def concatenate_quantized(weights: Sequence[QuantizedWeight]) -> QuantizedWeight:
    """Returns quantised weights of the same values and columns of blocks as one, every row with its own scales.

    Blocks of several rows stay only where all but the last weight consist of whole blocks.
    """
    rows = weights[0].block[0]
    whole = all(w.block[0] == rows and w.shape[0] % rows == 0 for w in weights[:-1]) and weights[-1].block[0] == rows
    parts = list(weights) if whole else [_by_row(weight) for weight in weights]
    zeros = None
    if any(part.zeros is not None for part in parts):
        zeros = torch.cat(
            [torch.full_like(p.scale, 8, dtype=torch.uint8) if p.zeros is None else p.zeros for p in parts]
        )
    values, scale = (torch.cat(tensors) for tensors in zip(*((p.values, p.scale) for p in parts), strict=True))
    return with_scales_by_group(QuantizedWeight(values, scale, zeros, parts[0].block))


def _by_row(weight: QuantizedWeight) -> QuantizedWeight:
    """Returns the weight with scales for each row."""
    rows, columns = weight.block
    if rows == 1:
        return weight
    scale, zeros = (
        None if by_block is None else by_block.repeat_interleave(rows, 0)[: weight.shape[0]]
        for by_block in (weight.scale, weight.zeros)
    )
    assert scale is not None
    return QuantizedWeight(weight.values, scale, zeros, (1, columns))


def concatenate_biases(*linears: nn.Module) -> Tensor | None:
    """Returns a copy of the projections' biases, concatenated: [sum of outputs]; None where there are none."""
    parts = [linear.bias for linear in linears]
    return None if parts[0] is None else torch.cat([cast(Tensor, part).data for part in parts])


class MergedProjection(nn.Module):
    """One of several projections: a slice of the product with the merged weights.

    Each of them computes the whole product; `merge_products` removes the duplicates from a compiled graph.
    """

    def __init__(self, weight: nn.Parameter, bias: nn.Parameter | None, start: int, stop: int) -> None:
        """weight [merged outputs, inputs]; bias [merged outputs]; start, stop: this projection's outputs."""
        super().__init__()
        self.weight, self.bias, self.start, self.stop = weight, bias, start, stop

    def forward(self, x: Tensor) -> Tensor:
        """x [..., inputs] → [..., stop - start]."""
        return functional.linear(x, self.weight, self.bias)[..., self.start : self.stop]


class ReplacedModule(NamedTuple):
    """A submodule that `merge_projections` replaced."""

    parent: nn.Module
    name: str
    original: nn.Module

    def restore(self) -> None:
        """Puts the original module back."""
        setattr(self.parent, self.name, self.original)


def merge_projections(layers: Iterable[nn.Module]) -> list[ReplacedModule]:
    """Replaces projections that read the same input by `MergedProjection`s; returns what was replaced."""
    parents = [module for layer in layers for module in layer.modules()]
    return [replaced for parent in parents for names in _GROUPS for replaced in _merge_group(parent, names)]


def _merge_group(parent: nn.Module, names: tuple[str, ...]) -> Iterator[ReplacedModule]:
    """Merges the submodules of these names if all are plain linear layers of one input size, with a bias or without."""
    modules = [getattr(parent, name, None) for name in names]
    kinds = {
        (type(module), getattr(module, "in_features", 0), getattr(module, "bias", None) is None) for module in modules
    }
    if len(kinds) > 1 or type(modules[0]) is not nn.Linear:
        return
    linears = cast("list[nn.Linear]", modules)
    merged, bias = concatenate_weights(*linears), concatenate_biases(*linears)
    weight = nn.Parameter(cast(Tensor, merged), requires_grad=False)
    merged_bias = None if bias is None else nn.Parameter(bias, requires_grad=False)
    start = 0
    for name, linear in zip(names, linears, strict=True):
        setattr(parent, name, MergedProjection(weight, merged_bias, start, start + linear.out_features))
        start += linear.out_features
        yield ReplacedModule(parent, name, linear)


def merge_products(graph: Any) -> None:
    """Removes all but one of several `linear` calls with the same input and weights.

    graph: a torch.fx.Graph, changed in place.
    """
    first_calls: dict[Any, Any] = {}
    for node in list(graph.nodes):
        if node.op == "call_function" and node.target is functional.linear:
            first = first_calls.setdefault((node.args, tuple(node.kwargs.items())), node)
            if first is not node:
                node.replace_all_uses_with(first)
                graph.erase_node(node)
