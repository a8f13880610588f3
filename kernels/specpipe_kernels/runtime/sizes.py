"""How many and how large, on the host.

Triton's functions of this kind may be called from kernels as well, for which each call pays 2 to 4 µs: eight of them
were a third of what it took the host to launch attention.
"""

from __future__ import annotations


def cdiv(x: int, y: int) -> int:
    """x / y, rounded up."""
    return -(-x // y)


def power_of_2(n: int) -> int:
    """The smallest that is n or more; n is 1 or more."""
    return 1 << (n - 1).bit_length()
