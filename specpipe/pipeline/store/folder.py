"""A run's output folder: its file names, whose it is, and the fences around it."""

from __future__ import annotations

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
_TEMPORARY = "/runtime_resources/working_dir_files/"  # below it Ray unpacks what `ray job submit --working-dir` sends


def require_lasting(path: str, key: str) -> None:
    """Raises JobError for a path in a submitted job's working directory. `key`: what the job file calls it."""
    location = locate(path)
    if location.is_local and _TEMPORARY in location.path:
        raise JobError(
            f"{key} is {location.path}, in the temporary working directory of a submitted job: each machine has its "
            "own, and Ray deletes it. Expected an absolute path on storage that all machines share, or a URI such as "
            "s3://bucket/runs"
        )


@dataclass(frozen=True, slots=True)
class RunFolder:
    """Paths of a run. `path` is absolute or a URI, so that it means the same to every worker."""

    path: str

    @classmethod
    def at(cls, path: str) -> RunFolder:
        return cls(locate(path).text())

    def file(self, name: str) -> str:
        return self._location(name).text()

    @staticmethod
    def part_name(shard: int) -> str:
        return f"outputs/part-{shard:05d}.parquet"

    @staticmethod
    def timeline_name(epoch: int) -> str:
        return f"telemetry/timeline-{epoch:05d}.parquet"

    def read(self, name: str) -> bytes | None:
        """A file's bytes; None where there is none. Raises OutputError for one that cannot be read."""
        location = self._location(name)
        try:
            with location.open_binary() as file:
                return file.read()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise OutputError(f"{location.text()} cannot be read: {error}. Mend its permissions") from error

    def publish(self, name: str, data: bytes) -> None:
        """Write a whole file, over what is there. Raises OutputError when that fails."""
        try:
            publish_bytes(self.file(name), data)
        except OSError as error:
            raise OutputError(
                f"{self.file(name)} cannot be written: {error}. Choose another output.path, or mend its permissions "
                "or space"
            ) from error

    def names(self, below: str = "") -> list[str]:
        """Names of the entries of a folder below this one; empty where there is none."""
        location = self._location(below) if below else locate(self.path)
        selector = pa.fs.FileSelector(location.path, allow_not_found=True)
        try:
            return sorted(info.base_name for info in location.filesystem.get_file_info(selector))
        except NotADirectoryError:
            raise OutputError(
                f"{location.text()} is not a folder; expected that of a run, or for output.path a new one"
            ) from None
        except OSError as error:
            raise OutputError(f"{location.text()} cannot be read: {error}. Mend its permissions") from error

    def delete_attempts(self) -> None:
        """Deletes unfinished parts of dead workers. A live worker of an older start fails when it publishes."""
        for name in self.names("outputs"):
            if name.startswith(ATTEMPT_PREFIX):
                location = self._location(f"outputs/{name}")
                with suppress(OSError):
                    location.filesystem.delete_file(location.path)

    def claim(self) -> None:
        """Raises OutputError for a folder that holds files and is no run's, JobError for one that would not last."""
        require_lasting(self.path, "output.path")
        names = self.names()
        if not names or PRIVATE in names or MANIFEST in names:
            return
        shown = ", ".join(names[:3]) + (", …" if len(names) > 3 else "")
        raise OutputError(
            f"{self.path} has files in it that are no specpipe run's ({shown}). Choose an empty or new folder for "
            "output.path; nothing was changed"
        )

    def lock(self) -> RunLock | RunLease:
        """One writer at a time: a lock on local and shared folders, a lease where no lock holds."""
        location = self._location(_LOCK)
        if location.is_local:
            return RunLock(Path(location.path))
        return RunLease(lambda: self.read(_LEASE), lambda data: self.publish(_LEASE, data), name=self.path)

    # the epoch: how often the run was started; a worker of an earlier start must publish nothing more

    def epoch(self) -> int:
        """The latest start's; 0 before the first. Raises OutputError where the file holds something else."""
        data = self.read(_EPOCH) or b"0"
        if not data.isdigit():
            raise OutputError(
                f"{self.file(_EPOCH)} holds {data!r:.40}; expected the number of the latest start. Delete it once no "
                "worker of this run is alive"
            )
        return int(data)

    def begin_epoch(self) -> int:
        """Make this start the newest one."""
        epoch = self.epoch() + 1
        self.publish(_EPOCH, str(epoch).encode())
        return epoch

    def check_epoch(self, epoch: int) -> None:
        """Raises StaleRunError when a newer start owns the folder."""
        if (newest := self.epoch()) != epoch:
            raise StaleRunError(
                f"{self.path} belongs to start {newest} of this run now, and this is start {epoch}: it stops here and "
                "publishes nothing more"
            )

    # the probe: does a worker see the same folder as the driver?

    def write_probe(self) -> str:
        token = uuid.uuid4().hex
        self.publish(_PROBE, token.encode())
        return token

    def check_probe(self, token: str, host: str) -> None:
        """Raises OutputError on a machine that does not see what the driver wrote."""
        if self.read(_PROBE) != token.encode():
            raise OutputError(
                f"the worker on {host} does not see the driver's output folder {self.path}. With workers on several "
                "machines output.path must be on storage that all of them share (NFS, s3://, gs://, hdfs://)"
            )

    def _location(self, name: str) -> Location:
        return locate(self.path).child(name)
