"""Compile the sampling kernels for an H200, with or without a GPU, and print how often each was compiled.

`python compile_kernels.py CASES`, where CASES is JSON: a list of keyword arguments of `launch`. Prints JSON: for each
case a list of the kernels that were compiled for it, which is empty where all were there already.

Runs in a process of its own: Triton's driver is replaced, and the interpreter must be off.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

import torch
from triton.backends.compiler import GPUTarget
from triton.runtime import driver, jit

from specpipe_kernels import Purpose, SamplingTensors, rejection_sample, sample, sample_recovered_tokens

DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}
compiled: list[str] = []


class NoDevice:
    """As much of a driver as compiling needs."""

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", 90, 32)


def compile_only(self: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> Any:
    return _run(self, *args, grid=grid, warmup=True, **kwargs)


def count(*args: Any, fn: Any, **kwargs: Any) -> None:
    compiled.append(fn.name.rpartition(".")[2])


def launch(
    *,
    rows: int = 2,
    k: int = 3,
    vocab: int = 8192,
    dtype: str = "bfloat16",
    method: str = "standard",
    index: int = 0,
    one_hot: bool = False,
    ragged: bool = False,
    **hints: bool,
) -> None:
    """One sample, one rejection_sample and one sample_recovered_tokens."""
    long, ones = torch.zeros(rows, dtype=torch.int64), torch.ones(rows)
    sampling = SamplingTensors(ones, ones.int(), ones, ones, long, **hints)
    logits = torch.zeros(rows * (k + 1), vocab, dtype=DTYPES[dtype])
    sample(logits[:rows], sampling, long, purpose=Purpose.DRAFT, index=index)
    rejection_sample(
        logits,
        torch.zeros(rows, k, dtype=torch.int64),
        ones.int(),
        long,
        sampling,
        draft_logits=None if one_hot else torch.zeros(rows, k, vocab, dtype=DTYPES[dtype]),
        draft_rows=long if ragged else None,
        cu_rows=torch.arange(rows + 1) if ragged else None,
        method=method,
        synthetic_rates=torch.ones(k) if method == "synthetic" else None,
    )
    probs = torch.zeros(rows, vocab)
    sample_recovered_tokens(probs, None if one_hot else probs, long, seeds=long, positions=long)


def main() -> None:
    report = []
    for case in json.loads(sys.argv[1]):
        compiled.clear()
        launch(**case)
        report.append(sorted(compiled))
    print(json.dumps(report))


if __name__ == "__main__":
    os.environ["SPECPIPE_KERNELS"] = "triton"
    driver.set_active(NoDevice())
    _run = jit.JITFunction.run
    jit.JITFunction.run = compile_only
    jit.knobs.runtime.jit_post_compile_hook = count
    main()
