"""What jobmaster remembers, in a JetStream key-value bucket. Every change is a compare-and-set.

    job.<id>            the accepted job and what users ask of it      (users' calls write it)
    status.<id>         what happened so far                           (the job's runner writes it)
    record.<id>         the run record                                 (the job's runner writes it)
    manifest.<id>.<n>   manifest of snapshot n, before its commit
    events.<id>         the newest events, bounded
    request.<hash>      which job a submission became
    version.<model>     the highest version given to a model
    shards              which jobmaster holds which bucket of jobs
    session.<member>    a jobmaster that lives                         (in a bucket whose keys expire)
    leader              that jobs are shared                           (there, too; of older releases: who leads)

What is of one job is written by the holder of its bucket alone, within its lease: `fence` is asked before each write.
"""

import hashlib
from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar

import orjson
from pydantic import BaseModel

from recmesh.runtime.errors import Aborted, AlreadyExists
from services.jobmaster.domain.job import AcceptedJob, JobStatus
from services.jobmaster.domain.record import RunRecord

BUCKET = "recmesh_jobs"
SHARDS = "shards"
LEADER_BUCKET = "recmesh_jobmaster_leader"
MAX_EVENTS = 300
"""Per job; at most 1 KiB each, so that the value stays under the bus's 1 MiB."""

Document = TypeVar("Document", AcceptedJob, JobStatus, RunRecord)


class Entry(Protocol):
    """A value and its revision."""

    @property
    def value(self) -> bytes:
        """The bytes."""
        ...

    @property
    def revision(self) -> int:
        """For compare-and-set."""
        ...


class Keys(Protocol):
    """What this store needs of a key-value bucket; recmesh.runtime.bus has one, and tests another."""

    async def get(self, key: str) -> Entry | None:
        """None when there is no such key."""
        ...

    async def create(self, key: str, value: bytes) -> int:
        """The revision; AlreadyExists."""
        ...

    async def update(self, key: str, value: bytes, revision: int) -> int:
        """The new revision; Aborted when the key has another one."""
        ...

    async def put(self, key: str, value: bytes) -> int:
        """The new revision."""
        ...

    async def delete(self, key: str, *, revision: int | None = None) -> None:
        """Nothing happens when there is no such key."""
        ...

    async def keys(self, prefix: str) -> Sequence[str]:
        """Keys that start with the prefix."""
        ...


class JobStore:
    """Jobs by id. Revisions travel inside the documents, so that an old document cannot overwrite a newer."""

    def __init__(self, keys: Keys, *, fence: Callable[[str], None] = lambda job_id: None) -> None:
        """fence: raises for jobs that this jobmaster may not write."""
        self._keys, self._fence = keys, fence

    async def job_ids(self) -> list[str]:
        """All jobs, by name."""
        return sorted(key.removeprefix("job.") for key in await self._keys.keys("job."))

    async def job(self, job_id: str) -> AcceptedJob | None:
        """The accepted job; None when unknown."""
        return await self._load(f"job.{job_id}", AcceptedJob)

    async def create_job(self, job: AcceptedJob) -> AcceptedJob:
        """AlreadyExists when the id is taken."""
        self._fence(job.job_id)
        return await self._create(f"job.{job.job_id}", job)

    async def save_job(self, job: AcceptedJob) -> AcceptedJob:
        """Aborted when it was changed since it was read."""
        self._fence(job.job_id)
        return await self._save(f"job.{job.job_id}", job)

    async def status(self, job_id: str) -> JobStatus | None:
        """The job's status; None before its first."""
        return await self._load(f"status.{job_id}", JobStatus)

    async def save_status(self, status: JobStatus) -> JobStatus:
        """Aborted when somebody else wrote it."""
        self._fence(status.job_id)
        return await self._save(f"status.{status.job_id}", status)

    async def record(self, job_id: str) -> RunRecord | None:
        """The run record; None before its first."""
        return await self._load(f"record.{job_id}", RunRecord)

    async def save_record(self, record: RunRecord) -> RunRecord:
        """The compare-and-set that everything rests on; Aborted when it was lost."""
        self._fence(record.job_id)
        return await self._save(f"record.{record.job_id}", record)

    async def manifest(self, job_id: str, snapshot: int) -> dict[str, Any] | None:
        """The manifest that was written before the snapshot's commit."""
        entry = await self._keys.get(f"manifest.{job_id}.{snapshot}")
        return None if entry is None else dict(orjson.loads(entry.value))

    async def save_manifest(self, job_id: str, snapshot: int, manifest: dict[str, Any]) -> None:
        """Replaces what an earlier attempt left. Aborted when another writes it at the same time."""
        key = f"manifest.{job_id}.{snapshot}"
        await self._replace(job_id, key, orjson.dumps(manifest), await self._keys.get(key))

    async def delete_manifest(self, job_id: str, snapshot: int) -> None:
        """Of a snapshot that retention has deleted."""
        await self._drop(job_id, f"manifest.{job_id}.{snapshot}")

    async def events(self, job_id: str) -> list[dict[str, Any]]:
        """The newest events, oldest first."""
        entry = await self._keys.get(f"events.{job_id}")
        return [] if entry is None else list(orjson.loads(entry.value))

    async def save_events(self, job_id: str, events: Sequence[dict[str, Any]]) -> None:
        """Replaces the list, cut to the newest. Aborted when another writes it at the same time."""
        key = f"events.{job_id}"
        await self._replace(job_id, key, orjson.dumps(list(events)[-MAX_EVENTS:]), await self._keys.get(key))

    async def claim_request(self, request_id: str, job_id: str) -> str:
        """The job id that this submission has: the given one, or the one of an earlier try."""
        key = _request_key(request_id)
        self._fence(job_id)
        try:
            await self._keys.create(key, job_id.encode())
        except AlreadyExists:
            entry = await self._keys.get(key)
            return job_id if entry is None else entry.value.decode()
        return job_id

    async def request(self, request_id: str) -> str:
        """The job id of a submission; empty when it is not known."""
        entry = await self._keys.get(_request_key(request_id))
        return "" if entry is None else entry.value.decode()

    async def move_request(self, request_id: str, job_id: str, *, taken: str) -> str:
        """The submission gets another id, because `taken` is another job's; the id that it has from now on. Where it
        was moved meanwhile, by whoever holds the job now, that stays: else one submission would be two jobs. Aborted
        when another writes it at the same time."""
        key = _request_key(request_id)
        entry = await self._keys.get(key)
        if entry is not None and entry.value.decode() != taken:
            return entry.value.decode()
        await self._replace(job_id, key, job_id.encode(), entry)
        return job_id

    async def next_version(self, model: str, *, above: int) -> int:
        """A version of the model that nobody was given before, greater than `above`."""
        key = f"version.{model}"
        while True:
            entry = await self._keys.get(key)
            version = max(above, int(entry.value) if entry else 0) + 1
            try:
                if entry is None:
                    await self._keys.create(key, str(version).encode())
                else:
                    await self._keys.update(key, str(version).encode(), entry.revision)
            except (Aborted, AlreadyExists):
                continue
            return version

    async def delete(self, job_id: str) -> None:
        """Everything of the job; the job itself last, so that a half-done deletion is seen and repeated."""
        try:
            job = await self.job(job_id)
        except ValueError:  # it cannot be read
            job = None
        for key in await self._keys.keys(f"manifest.{job_id}."):
            await self._drop(job_id, key)
        for kind in ("events", "record", "status"):
            await self._drop(job_id, f"{kind}.{job_id}")
        if job is not None and job.request_id:
            await self._drop(job_id, _request_key(job.request_id))
        await self._drop(job_id, f"job.{job_id}")

    async def _drop(self, job_id: str, key: str) -> None:
        self._fence(job_id)
        await self._keys.delete(key)

    async def _replace(self, job_id: str, key: str, value: bytes, entry: Entry | None) -> None:
        """As put, but never over what was written after the entry was read."""
        self._fence(job_id)
        if entry is not None:
            await self._keys.update(key, value, entry.revision)
            return
        try:
            await self._keys.create(key, value)
        except AlreadyExists as error:
            raise Aborted(f"{key} exists already", reason="LOST_RACE") from error

    async def _load(self, key: str, kind: type[Document]) -> Document | None:
        entry = await self._keys.get(key)
        if entry is None:
            return None
        return kind.model_validate_json(entry.value).model_copy(update={"revision": entry.revision})

    async def _create(self, key: str, document: Document) -> Document:
        revision = await self._keys.create(key, _bytes(document))
        return document.model_copy(update={"revision": revision})

    async def _save(self, key: str, document: Document) -> Document:
        if document.revision == 0:
            try:
                return await self._create(key, document)
            except AlreadyExists as error:
                raise Aborted(f"{key} exists already", reason="LOST_RACE") from error
        revision = await self._keys.update(key, _bytes(document), document.revision)
        return document.model_copy(update={"revision": revision})


def _bytes(document: BaseModel) -> bytes:
    return document.model_dump_json(exclude={"revision"}).encode()


def _request_key(request_id: str) -> str:
    return f"request.{hashlib.sha256(request_id.encode()).hexdigest()[:40]}"
