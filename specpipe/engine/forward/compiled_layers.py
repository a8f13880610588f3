"""Decoder layers through torch.compile, for models that are not fused: one compiled code for all layers that are alike.

Everything that differs between forwards except the number of tokens stays outside of the compiled code
(`kv_attention.LayerCall`). The number of tokens is symbolic; for one token torch compiles separate code. So nothing is
compiled while rows run.
"""

from __future__ import annotations

import logging
import os
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from types import FunctionType
from typing import Any

import torch
from torch import Tensor, nn

from specpipe.cache import cache_folder
from specpipe.engine.forward.attention_batch import AttentionSpec
from specpipe.engine.forward.kv_attention import LayerCall, layer_call
from specpipe.engine.forward.merged_projections import merge_products, merge_projections

log = logging.getLogger(__name__)

STANCE = "eager_on_recompile"
"""torch.compile's stance while rows run: a forward that no compiled code fits runs uncompiled."""


def compile_layers(
    model: nn.Module, attention: Mapping[nn.Module, AttentionSpec], logits: Callable[[], Tensor], *, backend: str
) -> FallbackCounter | None:
    """Compiles the model's decoder layers in place; returns the counter of their uncompiled runs.

    If that fails, or the compiled layers compute something else, it logs a warning, restores the model and returns
    None. attention: as probed. backend: torch.compile's, "inductor" on a GPU.
    logits: runs small forwards, the first over many tokens and the last over one, and returns their logits [n, V].
    They trigger compilation, and their logits are compared with those of the uncompiled layers.
    """
    layers, fallbacks = layers_of(model, attention), FallbackCounter()
    expected, replaced = logits(), merge_projections(layers)
    try:
        if backend == "inductor":
            set_inductor_cache()
        with _compiling():
            compiler = _MergingBackend(backend)
            run = torch.compile(_copy_function(_run_layer), backend=compiler, fullgraph=True, dynamic=True)
            for layer, module in layers.items():
                _bind(layer, module, attention[module], run, fallbacks)
            _check_equal(logits(), expected)
            if not compiler.graphs:
                raise RuntimeError("torch.compile is switched off, or found no layers")
    except Exception as error:  # a compiler's errors have no common class, and the model runs without it
        for layer in layers:
            vars(layer).pop("forward", None)
        for replacement in replaced:
            replacement.restore()
        reason = " ".join(str(error).split("\n")[:2])
        log.warning("layers of %s run uncompiled: %s: %s", type(model).__name__, type(error).__name__, reason)
        return None
    return fallbacks


class FallbackCounter:
    """Counts runs of layers that no compiled code fits (`STANCE`)."""

    def __init__(self) -> None:
        self.layers = 0


def layers_of(model: nn.Module, attention: Mapping[nn.Module, AttentionSpec]) -> dict[nn.Module, nn.Module]:
    """Returns the decoder layers and the attention module of each.

    A decoder layer is an outermost member of a module list that contains exactly one attention module.
    """
    layers: dict[nn.Module, nn.Module] = {}
    for members in (module for module in model.modules() if isinstance(module, nn.ModuleList)):
        for layer in members:
            inside = [module for module in layer.modules() if module in attention]
            if len(inside) == 1 and inside[0] not in layers.values():
                layers[layer] = inside[0]
    return layers


def _run_layer(layer: Any, fallbacks: FallbackCounter, *args: Any, **kwargs: Any) -> Any:
    if not torch.compiler.is_compiling():
        fallbacks.layers += 1
    return type(layer).forward(layer, *args, **kwargs)


def _copy_function(function: Any) -> Any:
    """Returns a copy with a code object of its own: torch.compile keeps compiled code and its recompile limit there."""
    return FunctionType(function.__code__.replace(), function.__globals__)


def _bind(
    layer: Any, module: nn.Module, spec: AttentionSpec, run: Callable[..., Any], fallbacks: FallbackCounter
) -> None:
    """Replaces the layer's forward by `run`, with its attention's inputs set around it."""

    def forward(*args: Any, specpipe_batch: Any, **kwargs: Any) -> Any:
        with layer_call(LayerCall(module, spec, specpipe_batch)):
            return run(layer, fallbacks, *args, **kwargs)

    layer.forward = forward


class _MergingBackend:
    """A torch.compile backend that applies `merge_products` and passes the graph to the named backend."""

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


def set_inductor_cache() -> None:
    """Sets inductor's cache folder to the user's, unless TORCHINDUCTOR_CACHE_DIR is set.

    torch's default may not outlive the next boot; it stays in use where the user's folder cannot be written.
    """
    from torch._inductor.runtime.cache_dir_utils import default_cache_dir
    from triton import knobs

    folder = cache_folder() / "inductor"
    with suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
    unset = os.environ.get("TORCHINDUCTOR_CACHE_DIR") in (None, default_cache_dir())  # torch sets it at its import
    if unset and os.access(folder, os.W_OK):
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(folder)
    os.environ.setdefault("TRITON_CACHE_DIR", knobs.cache.dir)  # inductor would move that of our own kernels


def _check_equal(logits: Tensor, expected: Tensor) -> None:
    """Raises ArithmeticError if logits [n, V] differ from the expected ones by more than rounding.

    Compiled code rounds to 16 bits less often: the RMS difference of deep random models is 5 % of the logits' standard
    deviation there. The logits of a wrong layer are unrelated.
    """
    error = float((logits - expected).float().square().mean().sqrt() / expected.float().std())
    allowed = 1e-3 if expected.dtype == torch.float32 else 0.2
    log.debug("compiled logits differ by %.2g of their spread", error)
    if not error <= allowed:  # true for NaN as well
        raise ArithmeticError(f"logits differ by {error:.2g} of their spread; expected at most {allowed}")


@contextmanager
def _compiling() -> Iterator[None]:
    """Makes torch.compile treat Python floats as constants, and silences the warnings of compilers.

    Products are not padded: inductor's decision depends on the number of tokens, to which it would specialise the code
    (2 … 63 for a router of 4 experts).
    """
    from torch._dynamo import config as tracing
    from torch._inductor import config as inductor

    with tracing.patch(specialize_float=True), inductor.patch(shape_padding=False), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
