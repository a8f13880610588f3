"""Every kernel compiles for a GPU, and values that vary between calls compile no further variants.

The interpreter runs Python, so it accepts much that the compiler refuses; compiling needs no GPU.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from specpipe_kernels import METHODS

SCRIPT = Path(__file__).parents[2] / "support" / "compile_kernels.py"


def compile_in_turn(cases: list[dict[str, Any]], cache: Path) -> list[list[str]]:
    """Returns the kernels that each case compiled beyond those of earlier cases."""
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    environment["TRITON_CACHE_DIR"] = str(cache)
    result = subprocess.run(
        [sys.executable, str(SCRIPT), json.dumps(cases)], env=environment, capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr[-3000:]
    report: list[list[str]] = json.loads(result.stdout)
    return report


def test_calls_that_differ_in_values_compile_once(tmp_path: Path) -> None:
    cases = [{}, {"rows": 1}, {"rows": 16, "index": 1}, {"k": 2, "rows": 5}]
    first, *rest = compile_in_turn([{"truncated": False, "top_n": 0} | case for case in cases], tmp_path)
    assert {"_sample_kernel", "_accept_kernel", "_draw_kernel"} <= set(first)
    assert {"_recover_kernel", "_recover_keyed_kernel"} <= set(first)
    assert {"_apply_penalties_kernel", "_count_tokens_kernel", "_token_logprobs_kernel"} <= set(first)
    assert "_score_tokens_kernel" in first
    assert rest == [[], [], []]


@pytest.mark.slow
def test_more_rows_compile_another_form_of_verification_alone(tmp_path: Path) -> None:
    cases = [{}, {"rows": 17, "index": 16}, {"k": 3, "rows": 64}]
    assert compile_in_turn([{"truncated": False} | case for case in cases], tmp_path)[1:] == [["_accept_kernel"], []]


@pytest.mark.slow
def test_verification_and_draws_have_two_forms_by_batch_size(tmp_path: Path) -> None:
    cases = [{"vocab": 128256, "truncated": False, "rows": rows} for rows in (1, 64, 2, 100)]
    assert compile_in_turn(cases, tmp_path)[1:] == [["_accept_kernel", "_draw_kernel"], [], []]


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
def test_every_variant_compiles(method: str, dtype: str, tmp_path: Path) -> None:
    variants: list[dict[str, Any]] = [
        {},
        {"one_hot": True},
        {"ragged": True, "top_n": 0},
        {"all_greedy": True},
        {"truncated": False},
        {"k": 0, "top_n": 20},
        {"k": 1},
        {"k": 8, "vocab": 151936},
        {"vocab": 100},
    ]
    report = compile_in_turn([{"method": method, "dtype": dtype} | v for v in variants], tmp_path)
    assert "_weigh_kernel" in report[0] and len(report) == len(variants)


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
def test_rounds_compile_with_all_options_and_with_32_drafts(method: str, tmp_path: Path) -> None:
    kernel = {"invariant": "_match_kernel", "block": "_accept_block_kernel"}.get(method, "_accept_kernel")
    report = compile_in_turn([{"method": method, "given": True}, {"method": method, "k": 32}], tmp_path)
    assert all(kernel in compiled for compiled in report)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_layers_and_attention_compile(tmp_path: Path) -> None:
    (compiled,) = compile_in_turn([{"layers": True}], tmp_path)
    expected = {
        "_paged_attention_kernel",
        "_prefix_attention_kernel",
        "_store_kv_kernel",
        "_skinny_gemm_kernel",
        "_rms_norm_kernel",
        "_silu_mul_kernel",
        "_fp8_gemm_kernel",
        "_quantize_rows_kernel",
        "_dequantize_int4_kernel",
        "int4_gemm_kernel",
        "_choose_experts_kernel",
        "_route_tokens_kernel",
        "_group_pairs_kernel",
        "_grouped_gemm_kernel",
        "_ungrouped_gemm_kernel",
        "_combine_pairs_kernel",
        "_combine_residual_kernel",
    }
    assert expected <= set(compiled)
