"""Errors that a user can cause. Each message says what was given, what was expected and how to mend it.

The command line prints them without a traceback and ends with `exit_code`.
"""

from __future__ import annotations

EXIT_COMPLETE = 0
EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_INCOMPLETE = 3  # complete, with more failed rows or shards than the job allows
EXIT_INTERRUPTED = 130  # resumable


class SpecpipeError(Exception):
    """Base of everything that specpipe raises on purpose."""

    exit_code = EXIT_FAILED


class JobError(SpecpipeError):
    """The job file, the command line or what they name is wrong."""

    exit_code = EXIT_USAGE


class ModelError(JobError):
    """A model cannot be found, loaded or served, or a pair does not fit together."""


class DataError(JobError):
    """A dataset cannot be found or has no usable prompt column."""


class OutputError(JobError):
    """The output folder belongs to another job, to a live run, or cannot be written."""


class InputError(SpecpipeError, ValueError):
    """One row cannot be run. It becomes a row with `error`, never a lost shard."""


class MachineError(SpecpipeError):
    """This machine cannot do what the job asks for."""
