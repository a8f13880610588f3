"""Values that contradict the contracts of sampling are refused in strict mode, rates also without it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from support.sampling_cases import same_rows

from specpipe_kernels import RejectionOutput, rejection_sample
from specpipe_kernels.operations.strict import VARIABLE, check_emission


def call(**changes: Any) -> RejectionOutput:
    arguments = {
        "target_logits": torch.zeros(6, 5),
        "draft_tokens": torch.tensor([[1, 2], [3, -1]]),
        "num_draft_tokens": torch.tensor([2, 1]).int(),
        "positions": torch.tensor([4, 5]),
        "sampling": same_rows(2),
        "draft_logits": torch.zeros(3, 2, 5),
    }
    return rejection_sample(**(arguments | changes))


@pytest.mark.parametrize("rates", [[0.5, 0.6], [1.2, 0.1], [0.5, -0.1], [float("nan"), 0.0]])
def test_rates_that_are_none_are_refused(rates: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "1")
    with pytest.raises(ValueError, match=r"synthetic_rates\[.\] is .*; expected non-increasing rates between 0 and 1"):
        call(method="synthetic", synthetic_rates=torch.tensor(rates))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"draft_tokens": torch.tensor([[1, -2], [3, 0]])}, r"draft_tokens\[0, 1\] is -2; expected -1 or a token id"),
        ({"num_draft_tokens": torch.tensor([2, 3]).int()}, r"num_draft_tokens\[1\] is 3; expected 0 to K = 2"),
        ({"draft_rows": torch.tensor([0, 3])}, r"draft_rows\[1\] is 3; expected -1 to D - 1 = 2"),
        ({"draft_lse": torch.full((3, 2), torch.nan).double()}, r"draft_lse\[0, 0\] is nan; expected finite"),
        ({"bonus_tokens": torch.tensor([1, -1])}, r"bonus_tokens\[1\] is -1"),
        ({"cu_rows": torch.tensor([0, 2, 4])}, r"cu_rows\[0\] is 2"),
        ({"sampling": same_rows(2, top_p=1.5)}, r"sampling.top_p\[0\] is 1.5; expected 0 to 1"),
        ({"sampling": same_rows(2, temperature=float("nan"))}, r"sampling.temperature\[0\] is nan"),
    ],
)
def test_values_out_of_range_are_refused_in_strict_mode(
    changes: dict[str, Any], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, "1")
    call()
    with pytest.raises(ValueError, match=message):
        call(**changes)


def test_results_that_contradict_themselves_are_refused() -> None:
    out = call()
    with pytest.raises(ValueError, match="of the result"):
        check_emission(out._replace(num_emitted=out.num_emitted - 1, tokens=out.tokens - 9), torch.tensor([2, 1]))
