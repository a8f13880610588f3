"""Checks of the machine: bytecode cache, torch and its driver, GPUs, Triton, Ray, disks."""

from __future__ import annotations

import os
import shutil
import socket
import sys
from collections.abc import Iterator
from importlib.util import cache_from_source, find_spec
from pathlib import Path

from specpipe.core import DtypeChoice
from specpipe.core.dtypes import has_bf16_products
from specpipe.data.locations import locate
from specpipe.doctor import hardware
from specpipe.doctor.diagnosis import GIB, Diagnosis
from specpipe.job import JobSpec
from specpipe.pipeline.gpus import visible_gpus

_MIN_FREE_DISK = 2 * GIB
_LOCATION_SETTING = {"temporary files": "RAY_TMPDIR", "models": "HF_HOME", "outputs": "output.path"}


def bytecode() -> Iterator[Diagnosis]:
    """Yields a note where Python caches no bytecode of transformers, the largest import; torch has none either then."""
    source = str(getattr(find_spec("transformers"), "origin", ""))
    cached = Path(cache_from_source(source)).exists()
    if cached or not (sys.dont_write_bytecode or not os.access(Path(source).parent, os.W_OK)):
        return
    found = "no bytecode of torch and transformers is cached: every worker compiles them for seconds when it starts"
    remedy = "unset PYTHONDONTWRITEBYTECODE for one start, or run `python -m compileall -q` on site-packages"
    yield Diagnosis(name="bytecode", status="note", found=found, remedy=remedy)


def torch_build() -> Iterator[Diagnosis]:
    """Checks that torch can use the GPUs."""
    import torch

    build = f"CUDA {torch.version.cuda}" if torch.version.cuda else "built for CPUs"
    problem = hardware.torch_problem(visible_gpus())
    found = f"{torch.__version__}, {build}"
    if problem:
        yield Diagnosis(name="torch", status="problem", found=f"{found}; {problem.found}", remedy=problem.remedy)
    else:
        yield Diagnosis(name="torch", status="ok", found=found)


def gpus(job: JobSpec | None) -> Iterator[Diagnosis]:
    """Yields a diagnosis of each visible GPU, or one where there are none."""
    visible = hardware.gpus()
    if not visible:
        chosen = os.environ.get("CUDA_VISIBLE_DEVICES")
        found = "none" + (f" (CUDA_VISIBLE_DEVICES={chosen})" if chosen is not None else "")
        if job is not None and job.model.device == "cuda":
            yield Diagnosis(
                name="GPUs", status="problem", found=found, remedy="set model.device: auto, or repair the driver"
            )
        else:
            found += ": models run on the CPU, in float32"
            if has_bf16_products():
                found += "; large ones are faster with model.dtype: bfloat16 (see the plan of a job)"
            yield Diagnosis(name="GPUs", status="ok", found=found)
    for gpu in visible:
        yield one_gpu(gpu, "auto" if job is None else job.model.dtype)


def one_gpu(gpu: hardware.Gpu, dtype: DtypeChoice) -> Diagnosis:
    """Returns the diagnosis of one GPU: support of `dtype`, and free memory."""
    free = f"{gpu.free / GIB:.1f} of {gpu.total / GIB:.1f} GiB free"
    found = f"{gpu.number}: {gpu.name}, {free}, compute capability {gpu.capability[0]}.{gpu.capability[1]}"
    name = "GPUs"
    if gpu.capability < (8, 0) and dtype in ("auto", "bfloat16"):
        remedy = "set model.dtype: float16; this GPU does not support bfloat16"
        return Diagnosis(name=name, status="problem", found=found, remedy=remedy)
    if gpu.free < gpu.total // 2:
        remedy = "another process uses its memory (`nvidia-smi` lists it); choose another GPU with CUDA_VISIBLE_DEVICES"
        return Diagnosis(name=name, status="note", found=found, remedy=remedy)
    return Diagnosis(name=name, status="ok", found=found)


def triton() -> Iterator[Diagnosis]:
    """Compiles and runs one small kernel on a GPU."""
    import torch

    if not torch.cuda.is_available():
        yield Diagnosis(name="Triton", status="ok", found="not needed: on a CPU the kernels are PyTorch code")
        return
    from specpipe_kernels import write_index

    try:
        table = torch.ones(1, 1, dtype=torch.int32, device="cuda")
        queries = torch.tensor([0, 1], dtype=torch.int32, device="cuda")
        write_index(table, queries, torch.zeros(1, dtype=torch.int64, device="cuda"), 1, 64)
        torch.cuda.synchronize()
    except Exception as error:
        compiler = next((found for name in ("cc", "gcc", "clang") if (found := shutil.which(name))), None)
        remedy = "reinstall triton" if compiler else "install a C compiler (gcc), which Triton needs to launch kernels"
        found = f"a kernel cannot be compiled: {type(error).__name__}: {str(error)[:200]}"
        yield Diagnosis(name="Triton", status="problem", found=found, remedy=remedy)
        return
    yield Diagnosis(name="Triton", status="ok", found="compiles and runs a kernel")


def ray() -> Iterator[Diagnosis]:
    """Checks that the Ray cluster of RAY_ADDRESS accepts connections."""
    address = os.environ.get("RAY_ADDRESS")
    if not address:
        yield Diagnosis(name="Ray", status="ok", found="RAY_ADDRESS is not set: each run starts Ray on this machine")
        return
    host, _, port = address.rpartition("://")[2].partition("/")[0].rpartition(":")
    if not host or not port.isdigit():
        yield Diagnosis(name="Ray", status="note", found=f"RAY_ADDRESS={address}; not checked")
        return
    try:
        socket.create_connection((host, int(port)), timeout=5).close()
    except OSError as error:
        remedy = "start the cluster's head (`ray start --head`), correct the address, or unset RAY_ADDRESS"
        yield Diagnosis(
            name="Ray", status="problem", found=f"RAY_ADDRESS={address} accepts no connections: {error}", remedy=remedy
        )
        return
    yield Diagnosis(name="Ray", status="ok", found=f"RAY_ADDRESS={address} accepts connections")


def disks(job: JobSpec | None) -> Iterator[Diagnosis]:
    """Checks free space for temporary files, models and outputs."""
    places = {"temporary files": Path(os.environ.get("RAY_TMPDIR", "/tmp")), "models": _model_cache()}
    if job is not None and (output := locate(job.output.path)).is_local:
        places["outputs"] = Path(output.path)
    for what, path in places.items():
        existing = next(p for p in (path, *path.parents) if p.exists())
        free = shutil.disk_usage(existing).free
        found = f"{free / GIB:,.1f} GiB free for {what} ({path})"
        full = free < _MIN_FREE_DISK
        advice = f"free at least {_MIN_FREE_DISK // GIB} GiB, or set {_LOCATION_SETTING[what]} to another disk"
        yield Diagnosis(name="disk", status="problem" if full else "ok", found=found, remedy=advice if full else "")


def _model_cache() -> Path:
    """Returns the folder of downloaded models."""
    from huggingface_hub import constants

    return Path(constants.HF_HUB_CACHE)
