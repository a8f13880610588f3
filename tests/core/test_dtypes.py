"""Resolution of "auto" for devices and dtypes."""

from pathlib import Path

import pytest

from specpipe.core import DeviceName, DtypeChoice, DtypeName, resolve_device, resolve_dtype
from specpipe.core.dtypes import has_bf16_products


@pytest.mark.parametrize(
    ("dtype", "device", "expected"),
    [
        ("auto", "cuda", "bfloat16"),
        ("auto", "cpu", "float32"),
        ("float16", "cuda", "float16"),
        ("bfloat16", "cpu", "bfloat16"),
    ],
)
def test_auto_dtype_depends_on_the_device(dtype: DtypeChoice, device: DeviceName, expected: DtypeName) -> None:
    assert resolve_dtype(dtype, device) == expected


def test_auto_device_is_cuda_where_there_are_gpus() -> None:
    assert (resolve_device("auto", gpus=2), resolve_device("auto", gpus=0)) == ("cuda", "cpu")
    assert (resolve_device("cpu", gpus=2), resolve_device("cuda", gpus=0)) == ("cpu", "cuda")


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("flags\t\t: fpu avx512f avx512_bf16 lm", True),
        ("flags\t\t: fpu avx512f amx_bf16", True),
        ("flags\t\t: fpu avx512f avx2", False),
        ("Features\t: fp asimd bf16 i8mm", True),
        ("Features\t: fp asimd", False),
    ],
)
def test_instructions_for_bfloat16_are_found(tmp_path: Path, line: str, expected: bool) -> None:
    (tmp_path / "cpuinfo").write_text(f"processor\t: 0\nmodel name\t: bf16\n{line}\n\n{line}\n")
    assert has_bf16_products(tmp_path / "cpuinfo") is expected
    assert not has_bf16_products(tmp_path / "missing")
