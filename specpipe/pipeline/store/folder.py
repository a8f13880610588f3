"""Output folder of a run: its file names, its owner, and its protection against stale workers."""

from __future__ import annotations

import os
import tempfile
import uuid
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.fs

from specpipe.data.locations import Location, locate
from specpipe.data.publish import ATTEMPT_PREFIX, publish_bytes
from specpipe.errors import JobError, OutputError
from specpipe.pipeline.failures import StaleRunError
from specpipe.pipeline.store.lease import RunLease
from specpipe.pipeline.store.lock import RunLock

MANIFEST = "manifest.json"
SUMMARY = "summary.json"
REPORT = "report.html"
SHARDS = "telemetry/shards.parquet"
COSTS = "telemetry/costs.json"
PROGRESS = "telemetry/progress.json"
PRIVATE = ".specpipe"
_EPOCH = f"{PRIVATE}/epoch"
_PROBE = f"{PRIVATE}/probe"
_LOCK = f"{PRIVATE}/lock"
_LEASE = f"{PRIVATE}/lease"
_TEMPORARY = "/runtime_resources/working_dir_files/"  # Ray unpacks the files of `ray job submit --working-dir` below it


def require_lasting(path: str, key: str) -> None:
    """Raises JobError for a path in the working directory of a submitted job. `key`: the path's key in the job file."""
    location = locate(path)
    if location.is_local and _TEMPORARY in location.path:
        raise JobError(
            f"{key} is {location.path}, in the temporary working directory of a submitted job: each machine has its "
            "own, and Ray deletes it. Expected an absolute path on storage that all machines share, or a URI such as "
            "s3://bucket/runs"
        )


@dataclass(frozen=True, slots=True)
class RunFolder:
    """Files of a run. `path` is absolute or a URI, so that it is the same for every worker."""

    path: str

    @classmethod
    def at(cls, path: str) -> RunFolder:
        """Returns the folder at `path`, made absolute."""
        return cls(locate(path).text())

    def file(self, name: str) -> str:
        """Returns the full path or URI of a file of the run."""
        return self._location(name).text()

    @staticmethod
    def part_name(shard: int) -> str:
        """Returns the name of a shard's part."""
        return f"outputs/part-{shard:05d}.parquet"

    @staticmethod
    def timeline_name(epoch: int) -> str:
        """Returns the name of a start's timeline file."""
        return f"telemetry/timeline-{epoch:05d}.parquet"

    def read(self, name: str) -> bytes | None:
        """Returns the bytes of a file; None where it does not exist. Raises OutputError where it cannot be read."""
        location = self._location(name)
        try:
            with location.open_binary() as file:
                return file.read()
        except FileNotFoundError:
            return None
        except NotADirectoryError:
            raise OutputError(f"{self.path} is a file; expected the output folder of a run") from None
        except OSError as error:
            raise OutputError(f"{location.text()} cannot be read: {error}. Check its permissions") from error

    def publish(self, name: str, data: bytes) -> None:
        """Writes a whole file atomically, replacing an existing one. Raises OutputError when that fails."""
        try:
            publish_bytes(self.file(name), data)
        except OSError as error:
            raise OutputError(
                f"{self.file(name)} cannot be written: {error}. Check permissions and free space, or choose another "
                "output.path"
            ) from error

    def names(self, below: str = "") -> list[str]:
        """Returns the sorted names in a folder below this one; empty where it does not exist. Raises OutputError."""
        location = self._location(below) if below else locate(self.path)
        selector = pa.fs.FileSelector(location.path, allow_not_found=True)
        try:
            return sorted(info.base_name for info in location.filesystem.get_file_info(selector))
        except NotADirectoryError:
            raise OutputError(
                f"{location.text()} is not a folder; expected the folder of a run, or a new one for output.path"
            ) from None
        except OSError as error:
            raise OutputError(f"{location.text()} cannot be read: {error}. Check its permissions") from error

    def delete_attempts(self) -> None:
        """Deletes unfinished parts of dead workers. A live worker of an older start fails when it publishes."""
        for name in self.names("outputs"):
            if name.startswith(ATTEMPT_PREFIX):
                location = self._location(f"outputs/{name}")
                with suppress(OSError):
                    location.filesystem.delete_file(location.path)

    def claim(self) -> None:
        """Checks that a run may use this folder.

        Raises OutputError for a local folder without permission to write, or with files that do not belong to a run,
        JobError for a temporary one.
        """
        require_lasting(self.path, "output.path")
        location = locate(self.path)
        if location.is_local:
            _require_writable(Path(location.path))
        names = self.names()
        if not names or PRIVATE in names or MANIFEST in names:
            return
        shown = ", ".join(names[:3]) + (", …" if len(names) > 3 else "")
        raise OutputError(
            f"{self.path} holds files that do not belong to a specpipe run ({shown}). Choose an empty or new folder "
            "for output.path; nothing was changed"
        )

    def lock(self) -> RunLock | RunLease:
        """Returns the guard for one writer at a time: a lock on a filesystem, a lease in an object store."""
        location = self._location(_LOCK)
        if location.is_local:
            return RunLock(Path(location.path))
        return RunLease(lambda: self.read(_LEASE), lambda data: self.publish(_LEASE, data), name=self.path)

    # Epoch: number of the latest start. A worker of an earlier start must not publish any more.

    def epoch(self) -> int:
        """Returns the number of the latest start; 0 before the first. Raises OutputError for an invalid file."""
        data = self.read(_EPOCH) or b"0"
        if not data.isdigit():
            raise OutputError(
                f"{self.file(_EPOCH)} holds {data!r:.40}; expected the number of the latest start. Delete it when no "
                "worker of this run is alive"
            )
        return int(data)

    def begin_epoch(self) -> int:
        """Returns the number of a new start, which stops all earlier ones from publishing."""
        epoch = self.epoch() + 1
        self.publish(_EPOCH, str(epoch).encode())
        return epoch

    def check_epoch(self, epoch: int) -> None:
        """Raises StaleRunError when a newer start than `epoch` owns the folder."""
        if (newest := self.epoch()) != epoch:
            raise StaleRunError(
                f"{self.path} now belongs to start {newest} of this run; start {epoch} stops here and publishes "
                "nothing more"
            )

    # Probe: a token that shows whether a worker sees the same folder as the driver.

    def write_probe(self) -> str:
        """Writes a random token and returns it."""
        token = uuid.uuid4().hex
        self.publish(_PROBE, token.encode())
        return token

    def check_probe(self, token: str, host: str) -> None:
        """Raises OutputError where the folder does not hold the driver's token. `host`: this machine."""
        if self.read(_PROBE) != token.encode():
            raise OutputError(
                f"the worker on {host} does not see the driver's output folder {self.path}. With workers on several "
                "machines, output.path must be on storage that all of them share (NFS, s3://, gs://, hdfs://)"
            )

    def _location(self, name: str) -> Location:
        return locate(self.path).child(name)


def _require_writable(path: Path) -> None:
    """Creates and deletes a folder: permissions alone do not show mounts that are read-only or virtual (/proc)."""
    existing = next(p for p in (path, *path.parents) if p.exists())
    try:
        os.rmdir(tempfile.mkdtemp(prefix=".specpipe-", dir=existing))
    except OSError as error:
        raise OutputError(
            f"{path} cannot be written: {existing} is not a folder that this user can write to ({error.strerror}). "
            "Change its permissions, or choose another output.path"
        ) from None
