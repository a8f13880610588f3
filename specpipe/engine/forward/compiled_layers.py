"""Decoder layers through torch.compile, for models that are not fused: one compiled code for all layers that are alike.

What differs between forwards but the number of tokens stays outside of it (`kv_attention.LayerCall`). The number of
tokens is symbolic, where it is not 1, which torch compiles for itself: nothing is compiled while rows run.
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

STANCE = "eager_on_recompile"  # while rows run: a forward that no code fits runs uncompiled


def compile_layers(
    model: nn.Module, attention: Mapping[nn.Module, AttentionSpec], logits: Callable[[], Tensor], *, backend: str
) -> bool:
    """Compiles the layers for good; or says in the log why not, and leaves the model as it was. Says which.

    attention: as probed. logits: [n, V] of small forwards, the first of many tokens, the last of one; they compile, and
    prove that what was compiled computes the same. backend: torch.compile's; "inductor" on a GPU.
    """
    layers = layers_of(model, attention)
    expected, joined = logits(), merge_projections(layers)
    try:
        if backend == "inductor":
            keep_on_disk()
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


def layers_of(model: nn.Module, attention: Mapping[nn.Module, AttentionSpec]) -> dict[nn.Module, nn.Module]:
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


def _bind(layer: Any, module: nn.Module, facts: AttentionSpec, run: Callable[..., Any]) -> None:
    def forward(*args: Any, specpipe_batch: Any, **kwargs: Any) -> Any:
        with layer_call(LayerCall(module, facts, specpipe_batch)):
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


def keep_on_disk() -> None:
    """Sends inductor's work to the user's cache folder where nobody has said otherwise: torch's choice may not
    outlive the next boot. Where that folder cannot be written, torch's will do."""
    from torch._inductor.runtime.cache_dir_utils import default_cache_dir
    from triton import knobs

    folder = cache_folder() / "inductor"
    with suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
    unsaid = os.environ.get("TORCHINDUCTOR_CACHE_DIR") in (None, default_cache_dir())  # torch sets it at its import
    if unsaid and os.access(folder, os.W_OK):
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(folder)
    os.environ.setdefault("TRITON_CACHE_DIR", knobs.cache.dir)  # inductor would move that of our own kernels


def _check_equal(logits: Tensor, expected: Tensor) -> None:
    """Raises ArithmeticError. Compiled code rounds to 16 bits less often: logits of deep random models differ by a
    twentieth of their spread there; those of a wrong layer have nothing in common."""
    error = float((logits - expected).float().square().mean().sqrt() / expected.float().std())
    allowed = 1e-3 if expected.dtype == torch.float32 else 0.2
    log.debug("compiled logits differ by %.2g of their spread", error)
    if not error <= allowed:  # nor is it NaN
        raise ArithmeticError(f"logits differ by {error:.2g} of their spread; expected at most {allowed}")


@contextmanager
def _compiling() -> Iterator[None]:
    """Constants are constant, not inputs; nothing that compilers warn of while they work."""
    from torch._dynamo import config as tracing

    with tracing.patch(specialize_float=True), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
