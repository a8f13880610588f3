"""Integer arithmetic for launch grids and padding, on the host.

Triton's own `cdiv` and `next_power_of_2` can also be called in kernels, which costs 2 to 4 µs a call on the host: eight
calls took a third of the host's time to launch attention.
"""

from __future__ import annotations


def cdiv(x: int, y: int) -> int:
    """Returns x / y, rounded up."""
    return -(-x // y)


def power_of_2(n: int) -> int:
    """Returns the smallest power of two that is at least n, for n >= 1."""
    return 1 << (n - 1).bit_length()
