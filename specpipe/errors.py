"""Errors that a user can cause. Each message names the given value, the expected one, and a remedy.

The command line prints them without a traceback and exits with `exit_code`.
"""

from __future__ import annotations

EXIT_COMPLETE = 0
EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_INCOMPLETE = 3  # ended, but with more failed rows or shards than the job allows
EXIT_INTERRUPTED = 130  # can be resumed

LONG_NUMBER = "for integer string conversion"
"""Part of Python's message for an integer of more than 4,300 digits, which has no error class of its own."""


class SpecpipeError(Exception):
    """Base class of all errors that specpipe raises deliberately."""

    exit_code = EXIT_FAILED


class JobError(SpecpipeError):
    """Invalid job file or command line, or a file or setting that it names is invalid."""

    exit_code = EXIT_USAGE


class ModelError(JobError):
    """A model that cannot be found, loaded or served, or a pair of models that do not match."""


class DataError(JobError):
    """A dataset that cannot be found or has no usable prompt column."""


class OutputError(JobError):
    """An output folder that belongs to another job or a live run, or that cannot be read or written."""


class InputError(SpecpipeError, ValueError):
    """A row that cannot run. It becomes an output row with `error`; its shard continues."""


class MachineError(SpecpipeError):
    """A job that this machine cannot run."""
