"""Projections of the same input as one product: their weights above each other."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

_GROUPS = ("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj")


def concatenated(*linears: nn.Module) -> Tensor:
    """The weights of several projections above each other. The projections become views of it: nothing is doubled."""
    parts = [cast(Tensor, one.weight) for one in linears]
    whole = torch.cat([part.data for part in parts])
    for part, piece in zip(parts, whole.split([part.shape[0] for part in parts]), strict=True):
        part.data = piece
    return whole


def concatenated_bias(*linears: nn.Module) -> Tensor | None:
    """Likewise, as copies; None where there are none."""
    parts = [one.bias for one in linears]
    return None if parts[0] is None else torch.cat([cast(Tensor, part).data for part in parts])


class MergedProjection(nn.Module):
    """One of several projections, cut out of the product with all of them, which `merge_products` computes once."""

    def __init__(self, weight: nn.Parameter, bias: nn.Parameter | None, start: int, stop: int) -> None:
        super().__init__()
        self.weight, self.bias, self.start, self.stop = weight, bias, start, stop

    def forward(self, x: Tensor) -> Tensor:
        """x [..., in] → [..., stop - start]."""
        return functional.linear(x, self.weight, self.bias)[..., self.start : self.stop]


def merge_projections(layers: Iterable[nn.Module]) -> list[tuple[nn.Module, str, nn.Module]]:
    """Puts `MergedProjection`s in place of projections that read the same input; → (parent, name, what was there)."""
    parents = [module for layer in layers for module in layer.modules()]
    return [done for parent in parents for names in _GROUPS for done in _join(parent, names)]


def _join(parent: nn.Module, names: tuple[str, ...]) -> Iterator[tuple[nn.Module, str, nn.Module]]:
    linears = [getattr(parent, name, None) for name in names]
    kinds = {(type(one), getattr(one, "in_features", 0), getattr(one, "bias", None) is None) for one in linears}
    if len(kinds) > 1 or type(linears[0]) is not nn.Linear:
        return
    found = cast("list[nn.Linear]", linears)
    weight, bias = nn.Parameter(concatenated(*found), requires_grad=False), concatenated_bias(*found)
    shared_bias = None if bias is None else nn.Parameter(bias, requires_grad=False)
    start = 0
    for name, one in zip(names, found, strict=True):
        setattr(parent, name, MergedProjection(weight, shared_bias, start, start + one.out_features))
        start += one.out_features
        yield parent, name, one


def merge_products(graph: Any) -> None:
    """Leaves one of several `linear` of the same input and weights. graph: a torch.fx.Graph, changed in place."""
    seen: dict[Any, Any] = {}
    for node in list(graph.nodes):
        if node.op == "call_function" and node.target is functional.linear:
            first = seen.setdefault((node.args, tuple(node.kwargs.items())), node)
            if first is not node:
                node.replace_all_uses_with(first)
                graph.erase_node(node)
