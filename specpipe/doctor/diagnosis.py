"""Result of one check of the doctor."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

from specpipe.errors import SpecpipeError

Status = Literal["ok", "note", "problem"]
GIB = 1 << 30


@dataclass(frozen=True, kw_only=True, slots=True)
class Diagnosis:
    """One checked item. A problem stops a run; a note does not."""

    name: str
    """Name of the item, such as "disk"."""
    status: Status
    found: str
    """State of the item."""
    remedy: str = ""
    """Action that resolves the problem; "" where `found` names it or none is needed."""


def guarded(name: str, check: Callable[[], Iterator[Diagnosis]]) -> Iterator[Diagnosis]:
    """Yields the diagnoses of a check. An exception becomes a problem, so that the other checks still run."""
    try:
        yield from check()
    except SpecpipeError as error:
        yield Diagnosis(name=name, status="problem", found=str(error))
    except Exception as error:
        found = f"the check failed: {type(error).__name__}: {error}"
        yield Diagnosis(name=name, status="problem", found=found, remedy="reinstall specpipe, or report this error")
