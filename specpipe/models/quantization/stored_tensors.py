"""Names, dtypes and shapes of the tensors of a checkpoint, from the headers of its safetensors files."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any, NamedTuple

from specpipe.errors import ModelError
from specpipe.models.source import ModelSource

_MAX_HEADER = 100_000_000  # bytes; the limit of safetensors itself


class StoredTensor(NamedTuple):
    """A tensor in a weight file."""

    name: str
    file: str
    """Path of the file."""
    dtype: str
    """As safetensors names it: F8_E4M3, BF16, I32, …"""
    shape: tuple[int, ...]
    start: int
    """Position of its first byte in the file."""

    @property
    def numel(self) -> int:
        """Number of entries."""
        return math.prod(self.shape)


def read_stored_tensors(source: ModelSource) -> dict[str, StoredTensor]:
    """Returns the tensors of a checkpoint by name; empty for one of pickles. Raises ModelError for damaged files."""
    tensors: dict[str, StoredTensor] = {}
    for path in weight_files(Path(source.path)):
        try:
            tensors |= _read_header(path)
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ModelError(
                f"model {source.name}: {path} is not a complete safetensors file ({error}); copy or download it again"
            ) from error
    return tensors


def weight_files(folder: Path) -> list[Path]:
    """Returns the safetensors files that hold the model: those of the index, or model.safetensors, or all.

    Raises ModelError for an index that is damaged.
    """
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        try:
            names = set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise ModelError(
                f"{index} is not an index of weights with a weight_map ({type(error).__name__}: {error}); copy or "
                "download it again"
            ) from error
        return [folder / name for name in sorted(names)]
    single = folder / "model.safetensors"
    return [single] if single.is_file() else sorted(folder.glob("*.safetensors"))


def _read_header(path: Path) -> dict[str, StoredTensor]:
    """Returns the tensors of a file: 8 bytes of header length, JSON, data. Raises ValueError if it is cut off."""
    with path.open("rb") as file:
        size = int.from_bytes(file.read(8), "little")
        if size > _MAX_HEADER:
            raise ValueError(f"its header has {size:,} bytes")
        header: dict[str, Any] = json.loads(file.read(size))
    header.pop("__metadata__", None)
    data = 8 + size
    expected = data + max((entry["data_offsets"][1] for entry in header.values()), default=0)
    if path.stat().st_size != expected:
        raise ValueError(f"it has {path.stat().st_size:,} bytes, expected {expected:,}")
    return {
        name: StoredTensor(name, str(path), entry["dtype"], tuple(entry["shape"]), data + entry["data_offsets"][0])
        for name, entry in header.items()
    }
