"""Rounds for compute-sanitizer: `python -m support.sanitize DEVICE [N]`, every kernel of sampling on tiny vocabularies.

Each method with draft logits and with one-hot proposals, and truncation, penalties, ragged rows, log-probabilities and
counters among them; their results are checked too. On "cpu" Triton's interpreter runs them. N: the first so many
rounds only. What is done is printed as it goes, because tools that watch a GPU may hang.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from itertools import islice, product

import torch
from support.feature_rounds import FeatureRound
from support.pairwise import Case
from support.sampling_cases import Backend, run

from specpipe_kernels import METHODS, sample_recovered_tokens
from specpipe_kernels.sampling.device import logit_rows as triton_rows

PLAIN: Case = {
    "rows": "mixed", "dtype": torch.bfloat16, "k": 3, "drafts": "ragged", "layout": "cu_rows", "lse": "computed",
    "bounds": "computed", "bonus": "drawn", "truncation": "on", "penalties": "on", "logprobs": 3, "counts": True,
    "invalid": "none", "stride": 5,
}  # fmt: skip
FAST = {"layout": "static", "truncation": "off, promised", "penalties": "off", "drafts": "all", "stride": 0}


def cases() -> Iterator[Case]:
    for method, proposals in product(METHODS, ("one-hot", "draft by slot, narrower")):
        given = "computed" if proposals == "one-hot" else "given"
        yield PLAIN | {"method": method, "proposals": proposals}
        yield PLAIN | FAST | {"method": method, "proposals": proposals, "lse": given, "bonus": "given", "logprobs": 0}
    yield PLAIN | {"method": "standard", "proposals": "draft", "rows": "greedy, promised"}


def main(device: str, rounds: int | None = None) -> None:
    backend = Backend("triton", device)
    triton_rows.MAX_TILE = 32
    for seed, case in enumerate(islice(cases(), rounds)):
        FeatureRound(case, backend, seed=seed, vocab=75, count=3).check()
        print(seed, case["method"], case["proposals"], flush=True)
    p, at = torch.full((3, 75), 1 / 75), torch.arange(3)
    for noise in ({"inverse_noise": torch.ones(3, 75)}, {"seeds": at, "positions": at}):
        for q in (None, p / 2):
            assert int(run(backend, sample_recovered_tokens, p, q, at, **noise).min()) >= 0


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else None)
    print("all rounds are as expected")
