"""Errors of shards and workers, in the classes between which the driver distinguishes.

Each takes one string, so that it can be pickled.
"""

from __future__ import annotations

from specpipe.errors import OutputError, SpecpipeError


class ShardError(SpecpipeError):
    """One attempt at a shard failed; the worker is intact, and another attempt may succeed."""


class EngineError(SpecpipeError):
    """The engine of a worker died: the worker must be replaced, and its shards run on another."""


class MemoryFailure(EngineError):
    """The device ran out of memory; a smaller engine can continue."""


_OUT_OF_MEMORY = ("out of memory", "can't allocate memory")  # of CUDA, of torch's allocator on a CPU


def is_out_of_memory(error: BaseException) -> bool:
    """Returns True for torch.OutOfMemoryError and for an error that was raised while one was handled.

    A failed CUDA graph capture raises such an error of its own.
    """
    if type(error).__name__ == "OutOfMemoryError" or (
        isinstance(error, RuntimeError) and any(words in str(error) for words in _OUT_OF_MEMORY)
    ):
        return True
    before = error.__cause__ or error.__context__
    return before is not None and is_out_of_memory(before)


class StaleRunError(OutputError):
    """A newer start of the run owns the output folder; this start must publish nothing more."""
