"""Decoder layers through torch.compile, for models that are not fused: one compiled code for all layers that are alike.

What differs between forwards but the number of tokens stays outside of it (`specpipe.engine.attend`), and the number of
tokens is symbolic, one included: nothing is compiled while rows run.
"""

from __future__ import annotations

import logging
import os
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import FunctionType
from typing import Any, cast

import torch
from torch import Tensor, nn

from specpipe.cache import cache_folder
from specpipe.engine.attend import LayerCall, attending
from specpipe.engine.attention import AttentionFacts
from specpipe.engine.joined import join_projections, merge_products

log = logging.getLogger(__name__)

STANCE = "eager_on_recompile"  # while rows run: a forward that no code fits runs uncompiled


def compile_layers(
    model: nn.Module, attention: Mapping[nn.Module, AttentionFacts], logits: Callable[[], Tensor], *, backend: str
) -> bool:
    """Compiles the layers for good; or says in the log why not, and leaves the model as it was. Says which.

    attention: as probed. logits: [n, V] of small forwards, the first of many tokens, the last of one; they compile, and
    prove that what was compiled computes the same. backend: torch.compile's; "inductor" on a GPU.
    """
    layers = layers_of(model, attention)
    expected, joined = logits(), join_projections(layers)
    try:
        with _compiling():
            compiler = _Merging(backend)
            run = torch.compile(_fresh(_run), backend=compiler, fullgraph=True, dynamic=True)
            for layer, module in layers.items():
                _bind(layer, module, attention[module], run)
            _check_equal(logits(), expected)
            if not compiler.graphs:
                raise RuntimeError("torch.compile is switched off, or found no layers")
    except Exception as error:  # a compiler's errors have nothing in common, and the model runs without it
        for layer in layers:
            vars(layer).pop("forward", None)
        for parent, name, original in joined:
            setattr(parent, name, original)
        reason = " ".join(str(error).split("\n")[:2])
        log.warning("layers of %s run uncompiled: %s: %s", type(model).__name__, type(error).__name__, reason)
        return False
    return True


def layers_of(model: nn.Module, attention: Mapping[nn.Module, AttentionFacts]) -> dict[nn.Module, nn.Module]:
    """Decoder layers and the attention module of each: the outermost members of module lists that have one."""
    found: dict[nn.Module, nn.Module] = {}
    for members in (module for module in model.modules() if isinstance(module, nn.ModuleList)):
        for layer in members:
            inside = [module for module in layer.modules() if module in attention]
            if len(inside) == 1 and inside[0] not in found.values():
                found[layer] = inside[0]
    return found


def _run(layer: Any, *args: Any, **kwargs: Any) -> Any:
    return type(layer).forward(layer, *args, **kwargs)


def _fresh(function: Any) -> Any:
    """A copy: what was compiled hangs on the code of a function, and so does the limit of how often it is compiled."""
    return FunctionType(function.__code__.replace(), function.__globals__)


def _bind(layer: Any, module: nn.Module, facts: AttentionFacts, run: Callable[..., Any]) -> None:
    def forward(*args: Any, specpipe_batch: Any, **kwargs: Any) -> Any:
        with attending(LayerCall(module, facts, specpipe_batch)):
            return run(layer, *args, **kwargs)

    layer.forward = forward


class _Merging:
    """A backend of torch.compile behind `merge_products`."""

    def __init__(self, name: str) -> None:
        from torch._dynamo import lookup_backend

        self.__name__ = name
        self._compile = lookup_backend(name)
        self.graphs = 0

    def __call__(self, module: Any, inputs: Any) -> Any:
        self.graphs += 1
        merge_products(module.graph)
        module.recompile()
        return self._compile(module, inputs)


def _check_equal(logits: Tensor, expected: Tensor) -> None:
    """Raises ArithmeticError. Compiled code rounds to 16 bits less often: there logits differ by a hundredth or so."""
    error = float((logits - expected).float().square().mean().sqrt() / expected.float().std())
    allowed = 1e-3 if expected.dtype == torch.float32 else 0.05
    log.debug("compiled logits differ by %.2g of their spread", error)
    if not error <= allowed:  # nor is it NaN
        raise ArithmeticError(f"logits differ by {error:.2g} of their spread; expected at most {allowed}")


@contextmanager
def _compiling() -> Iterator[None]:
    """Symbolic sizes that may be 1, constants that are constant; nothing that compilers warn of while they work."""
    from torch._dynamo import config as tracing
    from torch.fx.experimental import _config as shapes

    # Inductor would keep its work where the next boot deletes it, and move all of Triton's there.
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(cache_folder() / "inductor"))
    with (
        tracing.patch(specialize_float=True),
        cast(Any, shapes).patch(backed_size_oblivious=True),
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore")
        yield
