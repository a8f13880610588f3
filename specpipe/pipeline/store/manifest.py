"""Manifest of a run (manifest.json): the identity that makes its outputs, and its shards."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from specpipe.core import KVScaleTable, LayerScales, Shard
from specpipe.data.columns import OUTPUT_COLUMNS
from specpipe.errors import OutputError
from specpipe.pipeline.store.folder import MANIFEST, RunFolder

FORMAT = "specpipe-run"
VERSION = 1
"""Incremented when runs of the previous version cannot be resumed. A new field of the job requires that only where its
default changes what runs did before."""
_KEYS = {"identity", "tuning", "files", "samples", "shards", "synthetic", "created_at"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Manifest:
    """Identity, shards and tuning of a run. Identity and shards never change; tuning is that of the latest start."""

    identity: Mapping[str, Any]
    """By dotted name: the job's identity fields, the pinned inputs, model revisions, the chat template's hash."""
    tuning: Mapping[str, Any]
    """The job's tuning fields by dotted name."""
    shards: tuple[Shard, ...]
    synthetic: bool
    """True for method "synthetic": acceptance was simulated, and the outputs are useless as text."""
    created_at: str
    columns: tuple[str, ...] = OUTPUT_COLUMNS
    """Columns of every part, without the kept input columns. A version with other columns cannot resume the run."""
    kv_scales: KVScaleTable = field(default_factory=dict)
    """Scales of KV pages in 8 bits, as the first worker had them."""
    vocabulary: str = ""
    """Fingerprint of the target's vocabulary; "" in runs of older versions, and where it has no known file."""

    @property
    def run_id(self) -> str:
        """Hash of identity and shards, 16 hexadecimal digits. Every part's footer holds it."""
        text = json.dumps([self.identity, _pack(self.shards)], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    @property
    def rows(self) -> int:
        """Output rows of the run."""
        return sum(shard.rows for shard in self.shards)

    def to_json(self) -> str:
        """Returns the content of manifest.json."""
        content = {
            "format": FORMAT,
            "version": VERSION,
            "run_id": self.run_id,
            "created_at": self.created_at,
            "synthetic": self.synthetic,
            "columns": self.columns,
            "identity": self.identity,
            "tuning": self.tuning,
            **_pack(self.shards),
            **({"kv_scales": _pack_scales(self.kv_scales)} if self.kv_scales else {}),
            **({"vocabulary": self.vocabulary} if self.vocabulary else {}),
        }
        return json.dumps(content, indent=1, ensure_ascii=False) + "\n"


def _pack(shards: tuple[Shard, ...]) -> dict[str, Any]:
    """Returns shards as rows of numbers, and the list of files that they index."""
    files = list(dict.fromkeys(shard.file for shard in shards))
    index_of = {file: i for i, file in enumerate(files)}
    rows = [[shard.index, index_of[shard.file], shard.start, shard.stop, shard.first_row] for shard in shards]
    samples = shards[0].samples if shards else 1
    columns = ["index", "file", "start", "stop", "first_row"]
    continued = [shard.index for shard in shards if shard.continues]
    return {
        "files": files,
        "samples": samples,
        "shard_columns": columns,
        "shards": rows,
        **({"continued_shards": continued} if continued else {}),
    }


def _pack_scales(table: KVScaleTable) -> dict[str, list[str]]:
    """Returns scales by model as one line per layer: those of keys, a slash, those of values."""
    return {
        model: [" / ".join(" ".join(map(repr, side)) for side in layer) for layer in layers]
        for model, layers in table.items()
    }


def _unpack_scales(content: Mapping[str, list[str]]) -> KVScaleTable:
    """Returns the scales that `_pack_scales` wrote."""
    return {
        model: tuple(LayerScales(*(tuple(map(float, side.split())) for side in layer.split("/"))) for layer in layers)
        for model, layers in content.items()
    }


def _unpack(content: Mapping[str, Any]) -> tuple[Shard, ...]:
    """Returns the shards of a manifest's JSON values."""
    files, samples, continued = content["files"], content["samples"], set(content.get("continued_shards", ()))
    return tuple(
        Shard(
            index=index,
            file=files[file],
            start=start,
            stop=stop,
            first_row=first_row,
            samples=samples,
            continues=index in continued,
        )
        for index, file, start, stop, first_row in content["shards"]
    )


def new_manifest(
    identity: Mapping[str, Any],
    tuning: Mapping[str, Any],
    shards: tuple[Shard, ...],
    *,
    synthetic: bool,
    vocabulary: str = "",
) -> Manifest:
    """Returns the manifest of a run that is created now."""
    created = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    return Manifest(
        identity=identity,
        tuning=tuning,
        shards=shards,
        synthetic=synthetic,
        created_at=created,
        vocabulary=vocabulary,
    )


def read_manifest(folder: RunFolder) -> Manifest | None:
    """Returns the folder's manifest; None where there is none.

    Raises OutputError for one of another version, or a file that is not a manifest.
    """
    data = folder.read(MANIFEST)
    if data is None:
        return None
    try:
        content = json.loads(data)
        if content["format"] != FORMAT:
            raise KeyError("format")
        if content["version"] != VERSION or (missing := sorted(_KEYS - content.keys())):
            found = f"manifest version {content['version']}, expected {VERSION}"
            reason = f"it lacks {', '.join(missing)}" if content["version"] == VERSION else found
            raise OutputError(
                f"{folder.path} was written by another version of specpipe ({reason}). Resume it with that version, or "
                "choose another output.path; nothing was changed"
            )
        return Manifest(
            identity=content["identity"],
            tuning=content["tuning"],
            shards=_unpack(content),
            synthetic=content["synthetic"],
            created_at=content["created_at"],
            columns=tuple(content.get("columns", OUTPUT_COLUMNS)),
            kv_scales=_unpack_scales(content.get("kv_scales", {})),
            vocabulary=str(content.get("vocabulary", "")),
        )
    except (ValueError, KeyError, TypeError, IndexError) as error:
        raise OutputError(
            f"{folder.file(MANIFEST)} is not the manifest of a specpipe run ({type(error).__name__}: {error}). If it "
            "is damaged, delete it: the same job keeps all valid parts. Otherwise choose another output.path; nothing "
            "was changed"
        ) from error


def require_manifest(folder: RunFolder) -> Manifest:
    """Returns the folder's manifest. Raises OutputError for a folder without one."""
    manifest = read_manifest(folder)
    if manifest is None:
        raise OutputError(
            f"{folder.path} is not a specpipe run: it has no {MANIFEST}. Expected the output.path of a run"
        )
    return manifest
