"""Peak memory of this process."""

import re
from pathlib import Path


def peak_mib() -> int:
    """Returns the peak of resident memory since the process's program began, in MiB.

    `ru_maxrss` is at least the memory of the process that started this one.
    """
    [kib] = re.findall(r"^VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text(), re.M)
    return int(kib) // 1024
