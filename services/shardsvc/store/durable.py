"""What JetStream keeps: the task log, runs and datasets. Bytes only; `wire` knows what they mean."""

from collections.abc import AsyncIterator, Sequence
from typing import Protocol

from recmesh.runtime.bus import Bus, Entry

RUNS = "recmesh_runs"
DATASETS = "recmesh_datasets"
TASK_STREAM = "RECMESH_TASKS"
TASK_ROOT = "recmesh.tasks"


class KeyValueStore(Protocol):
    """A bucket with compare-and-set; the runtime's KeyValue."""

    async def get(self, key: str) -> Entry | None:
        """None when there is none."""
        ...

    async def create(self, key: str, value: bytes) -> int:
        """AlreadyExists when there is one."""
        ...

    async def update(self, key: str, value: bytes, revision: int) -> int:
        """Aborted when it changed meanwhile."""
        ...

    async def delete(self, key: str, *, revision: int | None = None) -> None:
        """Deleting nothing is no error."""
        ...

    async def entries(self, prefix: str = "") -> list[Entry]:
        """All live entries."""
        ...

    async def keys(self, prefix: str = "") -> Sequence[str]:
        """All live keys."""
        ...


class AppendLog(Protocol):
    """A log by subject; the runtime's Log."""

    async def append(self, subject: str, records: bytes, *, expected_last: int | None = None) -> int:
        """The sequence; Aborted when the subject's last one is another than expected."""
        ...

    def read(self, subject: str, from_seq: int = 1) -> AsyncIterator[tuple[int, bytes]]:
        """Everything there is now."""
        ...

    async def purge(self, subject: str, *, below: int = 0) -> None:
        """Removes everything under the subject, or what has a lower sequence."""
        ...


class Durable:
    """The three together, over one bus."""

    def __init__(self, *, runs: KeyValueStore, datasets: KeyValueStore, tasks: AppendLog) -> None:
        self.runs = runs
        self.datasets = datasets
        self.tasks = tasks

    @classmethod
    def on(cls, bus: Bus) -> "Durable":
        """Buckets and stream are made at their first use."""
        return cls(
            runs=bus.kv(RUNS), datasets=bus.kv(DATASETS), tasks=bus.log(TASK_STREAM, f"{TASK_ROOT}.>")
        )


def task_subject(job_id: str) -> str:
    """Where a job's task records are logged."""
    return f"{TASK_ROOT}.{job_id}"
