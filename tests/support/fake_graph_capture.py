"""A graph capture without a GPU: replays run the work again, and tensors that a graph would read are tracked."""

from __future__ import annotations

import functools
import gc
import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from specpipe.engine.device.graph_capture import CapturedGraph


class FakeGraph:
    """Replays by running the work again."""

    def __init__(self, work: Callable[[], object], capture: FakeGraphCapture) -> None:
        self._work, self._capture = work, capture

    def replay(self) -> None:
        self._capture.replays += 1
        self._work()


class FakeGraphCapture:
    """Stands in for `GraphCapture`; counts captures and replays."""

    def __init__(self) -> None:
        self.captures = self.replays = 0
        self._reads: list[StorageWeakRef] = []

    def capture(self, warm_up: Callable[[], Any], work: Callable[[Any], object]) -> CapturedGraph[Any]:
        buffers = warm_up()
        with _InputStorages() as inputs:
            work(buffers)
        self._reads += inputs.found.values()
        self.captures += 1
        return CapturedGraph(FakeGraph(lambda: work(buffers), self), buffers)

    @property
    def reads(self) -> int:
        """Storages that captured work read and did not make itself."""
        return len(self._reads)

    def freed(self) -> int:
        """Returns how many of them are freed once the caches of our own modules are empty."""
        for cached in _own_caches():
            cached.cache_clear()
        gc.collect()
        return sum(read.expired() for read in self._reads)


class _InputStorages(TorchDispatchMode):
    """Weak references to the storages that operations read and that no earlier operation made."""

    def __init__(self) -> None:
        super().__init__()
        self.found: dict[int, StorageWeakRef] = {}
        self._made: dict[int, torch.UntypedStorage] = {}  # kept, so that no other storage gets the same address

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        for storage in _storages((args, kwargs)):
            if storage._cdata not in self._made:
                self.found.setdefault(storage._cdata, StorageWeakRef(storage))
        result = func(*args, **(kwargs or {}))
        for storage in _storages(result):
            if storage._cdata not in self.found:
                self._made[storage._cdata] = storage
        return result


def _storages(tree: Any) -> Iterator[torch.UntypedStorage]:
    return (leaf.untyped_storage() for leaf in tree_leaves(tree) if isinstance(leaf, torch.Tensor))


def _own_caches() -> list[Any]:
    """Functions of both packages that functools caches."""
    modules = [module for name, module in sys.modules.items() if name.split(".")[0] in ("specpipe", "specpipe_kernels")]
    kind = type(functools.cache(lambda: None))
    return [value for module in modules for value in vars(module).values() if isinstance(value, kind)]
