"""Resolution of "auto" for devices and dtypes."""

import pytest

from specpipe.core import DeviceName, DtypeChoice, DtypeName, resolve_device, resolve_dtype


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
