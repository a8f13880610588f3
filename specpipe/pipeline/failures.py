"""What can go wrong with a shard, as the driver tells it apart. One string each, so that they pickle."""

from __future__ import annotations

from specpipe.errors import OutputError, SpecpipeError


class ShardError(SpecpipeError):
    """One attempt at a shard failed; the worker is fine, and another attempt may succeed."""


class EngineError(SpecpipeError):
    """A worker's engine died: the worker must be replaced, its shards retried on another."""


class MemoryFailure(EngineError):
    """The device's memory ran out: a smaller engine can go on."""


def is_out_of_memory(error: BaseException) -> bool:
    """Whether a device had no memory left: torch.OutOfMemoryError, or what a graph capture makes of it: an error of its
    own, raised while that one is handled."""
    if type(error).__name__ == "OutOfMemoryError" or (
        isinstance(error, RuntimeError) and "out of memory" in str(error)
    ):
        return True
    before = error.__cause__ or error.__context__
    return before is not None and is_out_of_memory(before)


class StaleRunError(OutputError):
    """A newer start owns the output folder: this one must publish nothing more."""
