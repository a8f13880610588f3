"""The machine: torch against the driver, GPUs, Triton, Ray, disks."""

from __future__ import annotations

import os
import shutil
import socket
import sys
from collections.abc import Iterator
from importlib.util import cache_from_source, find_spec
from pathlib import Path

from specpipe.data.locations import locate
from specpipe.doctor import host
from specpipe.doctor.finding import GIB, Finding
from specpipe.job import JobSpec
from specpipe.pipeline.cluster.gpus import visible_gpus

_LITTLE_DISK = 2 * GIB
_MENDS = {"temporary files": "RAY_TMPDIR", "models": "HF_HOME", "outputs": "output.path"}


def bytecode() -> Iterator[Finding]:
    """A finding where Python keeps none of the largest import's: torch then has none either."""
    source = str(getattr(find_spec("transformers"), "origin", ""))
    kept = Path(cache_from_source(source)).exists()
    if kept or not (sys.dont_write_bytecode or not os.access(Path(source).parent, os.W_OK)):
        return
    found = "no bytecode of torch and transformers is kept: every worker compiles them when it starts, for seconds"
    mend = "unset PYTHONDONTWRITEBYTECODE for one start, or run `python -m compileall -q` on site-packages"
    yield Finding(name="bytecode", status="note", found=found, mend=mend)


def torch_build() -> Iterator[Finding]:
    import torch

    build = f"CUDA {torch.version.cuda}" if torch.version.cuda else "built for CPUs"
    wrong = host.torch_problem(visible_gpus())
    found = f"{torch.__version__}, {build}"
    if wrong:
        yield Finding(name="torch", status="problem", found=f"{found}; {wrong.found}", mend=wrong.mend)
    else:
        yield Finding(name="torch", status="ok", found=found)


def gpus(job: JobSpec | None) -> Iterator[Finding]:
    there = host.gpus()
    if not there:
        chosen = os.environ.get("CUDA_VISIBLE_DEVICES")
        found = "none" + (f" (CUDA_VISIBLE_DEVICES={chosen})" if chosen is not None else "")
        if job is not None and job.model.device == "cuda":
            yield Finding(name="GPUs", status="problem", found=found, mend="set model.device: auto, or mend the driver")
        else:
            yield Finding(name="GPUs", status="ok", found=f"{found}: models run on the CPU, in float32")
    for gpu in there:
        yield one_gpu(gpu, "auto" if job is None else job.model.dtype)


def one_gpu(gpu: host.Gpu, dtype: str) -> Finding:
    free = f"{gpu.free / GIB:.1f} of {gpu.total / GIB:.1f} GiB free"
    found = f"{gpu.number}: {gpu.name}, {free}, compute capability {gpu.capability[0]}.{gpu.capability[1]}"
    name = "GPUs"
    if gpu.capability < (8, 0) and dtype in ("auto", "bfloat16"):
        mend = "set model.dtype: float16; this GPU has no bfloat16"
        return Finding(name=name, status="problem", found=found, mend=mend)
    if gpu.free < gpu.total // 2:
        mend = "another process holds its memory: `nvidia-smi` names it; choose another with CUDA_VISIBLE_DEVICES"
        return Finding(name=name, status="note", found=found, mend=mend)
    return Finding(name=name, status="ok", found=found)


def triton() -> Iterator[Finding]:
    import torch

    if not torch.cuda.is_available():
        yield Finding(name="Triton", status="ok", found="not needed: on a CPU the kernels are plain torch")
        return
    from specpipe_kernels import write_index

    try:
        table = torch.ones(1, 1, dtype=torch.int32, device="cuda")
        queries = torch.tensor([0, 1], dtype=torch.int32, device="cuda")
        write_index(table, queries, torch.zeros(1, dtype=torch.int64, device="cuda"), 1, 64)
        torch.cuda.synchronize()
    except Exception as error:
        compiler = next((found for name in ("cc", "gcc", "clang") if (found := shutil.which(name))), None)
        mend = "reinstall triton" if compiler else "install a C compiler (gcc); Triton needs one to start kernels"
        found = f"a kernel cannot be compiled: {type(error).__name__}: {str(error)[:200]}"
        yield Finding(name="Triton", status="problem", found=found, mend=mend)
        return
    yield Finding(name="Triton", status="ok", found="compiles and runs a kernel")


def ray() -> Iterator[Finding]:
    address = os.environ.get("RAY_ADDRESS")
    if not address:
        yield Finding(name="Ray", status="ok", found="RAY_ADDRESS is not set: runs start their own on this machine")
        return
    host, _, port = address.rpartition("://")[2].partition("/")[0].rpartition(":")
    if not host or not port.isdigit():
        yield Finding(name="Ray", status="note", found=f"RAY_ADDRESS={address}; not checked")
        return
    try:
        socket.create_connection((host, int(port)), timeout=5).close()
    except OSError as error:
        mend = "start the cluster's head (`ray start --head`), mend the address, or unset RAY_ADDRESS"
        yield Finding(name="Ray", status="problem", found=f"RAY_ADDRESS={address} does not answer: {error}", mend=mend)
        return
    yield Finding(name="Ray", status="ok", found=f"RAY_ADDRESS={address} answers")


def disks(job: JobSpec | None) -> Iterator[Finding]:
    places = {"temporary files": Path(os.environ.get("RAY_TMPDIR", "/tmp")), "models": _model_cache()}
    if job is not None and (output := locate(job.output.path)).is_local:
        places["outputs"] = Path(output.path)
    for what, path in places.items():
        there = next(p for p in (path, *path.parents) if p.exists())
        free = shutil.disk_usage(there).free
        found = f"{free / GIB:,.1f} GiB free for {what} ({path})"
        little = free < _LITTLE_DISK
        mend = f"make room, or point {_MENDS[what]} elsewhere" if little else ""
        yield Finding(name="disk", status="problem" if little else "ok", found=found, mend=mend)


def _model_cache() -> Path:
    from huggingface_hub import constants

    return Path(constants.HF_HUB_CACHE)
