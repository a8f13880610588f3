"""What the doctor says about one thing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

from specpipe.errors import SpecpipeError

Status = Literal["ok", "note", "problem"]
GIB = 1 << 30


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """One thing that was looked at. A problem stops a run; a note is worth knowing. `mend` is "" where `found` says
    what to do, or nothing needs to be done."""

    name: str
    status: Status
    found: str
    mend: str = ""


def guarded(name: str, check: Callable[[], Iterator[Finding]]) -> Iterator[Finding]:
    """A check that fails is a finding itself, and the others go on."""
    try:
        yield from check()
    except SpecpipeError as error:
        yield Finding(name=name, status="problem", found=str(error))
    except Exception as error:
        found = f"could not be checked: {type(error).__name__}: {error}"
        yield Finding(name=name, status="problem", found=found, mend="install specpipe anew, or report this")
