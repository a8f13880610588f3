"""Chi-squared tests of counts against probabilities."""

from __future__ import annotations

import torch
from scipy.stats import chi2
from torch import Tensor


def p_value(tokens: Tensor, probs: Tensor) -> float:
    """Returns the p-value of independent draws `tokens` (ids of the flattened `probs`); rare cells are pooled.

    0.0 where a draw has probability 0.
    """
    probs = probs.flatten().double()
    counts = torch.bincount(tokens.flatten(), minlength=len(probs)).double()
    if (counts[probs == 0] > 0).any():
        return 0.0
    expected = probs / probs.sum() * counts.sum()
    rare = expected < 5
    counts = torch.cat([counts[~rare], counts[rare].sum()[None]])
    expected = torch.cat([expected[~rare], expected[rare].sum()[None]])
    used = expected > 0
    statistic = ((counts - expected)[used] ** 2 / expected[used]).sum()
    return float(chi2.sf(float(statistic), max(1, int(used.sum()) - 1)))
