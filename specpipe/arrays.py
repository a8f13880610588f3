"""Alias for NumPy arrays, in its own module because `specpipe.core` needs the standard library alone."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]
"""Array of float64, of any shape."""
