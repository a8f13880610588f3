"""Projections of the same input as one product over their concatenated weights."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

_GROUPS = ("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj")


def concatenate_weights(*linears: nn.Module) -> Tensor:
    """Returns the weights of projections of one input size, concatenated: [sum of outputs, inputs].

    The projections' own weights become views of the result, so that nothing is stored twice.
    """
    parts = [cast(Tensor, linear.weight) for linear in linears]
    merged = torch.cat([part.data for part in parts])
    for part, view in zip(parts, merged.split([part.shape[0] for part in parts]), strict=True):
        part.data = view
    return merged


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
    weight, bias = nn.Parameter(concatenate_weights(*linears), requires_grad=False), concatenate_biases(*linears)
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
