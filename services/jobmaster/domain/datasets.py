"""A TrainingDataset object and the registered dataset: by which name jobs find it, who uses it, and what is told."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from recmesh.crd.kinds import REFUSED, TrainingDatasetStatus
from recmesh.crd.telling import MAX_NOTE, Said, Told, kept, moment, size, word, words
from recmesh.runtime.errors import InvalidArgument, MeshError, Violation
from recmesh.spec.dataset import DatasetSpec
from recmesh.spec.namespaces import NAMESPACE_END, unfit
from services.jobmaster.domain.objects import is_foreign
from services.jobmaster.domain.phase import ENDED

PENDING, READY, DELETING = "Pending", "Ready", "Deleting"
OVER = frozenset({*ENDED, REFUSED})
"""Phases of objects whose jobs use nothing: they have ended, or there is none."""
MAX_NAME = 63
MOST_JOBS = 20
"""That a status names."""


@dataclass(frozen=True, slots=True)
class Registered:
    """What shardsvc knows of it."""

    revision: int
    created: float
    rows: int
    files: int
    size_bytes: int
    tasks: int
    columns: int


def name_in_mesh(name: str, *, namespace: str, own: str) -> str:
    """By which jobs name a dataset of that namespace; `own` is the mesh's, whose datasets have theirs alone."""
    return name if namespace == own else namespace + NAMESPACE_END + name


def asked(thing: Mapping[str, Any], *, own: str) -> tuple[str, DatasetSpec]:
    """(the name in the mesh, the specification); InvalidArgument names every wrong field."""
    metadata = thing["metadata"]
    namespace = str(metadata["namespace"])
    name = name_in_mesh(str(metadata["name"]), namespace=namespace, own=own)
    wrong = []
    if namespace != own and (reason := unfit(namespace)):
        wrong.append(Violation("metadata.namespace", reason))
    if len(name) > MAX_NAME:
        wrong.append(Violation("metadata.name", f"{name} has more than {MAX_NAME} characters"))
    if wrong:
        raise InvalidArgument("the TrainingDataset is wrong", violations=wrong)
    return name, DatasetSpec.parse((thing.get("spec") or {}) | {"name": name})


def users(dataset: Mapping[str, Any], jobs: Iterable[Mapping[str, Any]]) -> list[str]:
    """Names of TrainingJob objects of its namespace that name the dataset and have not ended."""
    metadata = dataset["metadata"]
    return sorted(
        str(job["metadata"]["name"]) for job in jobs
        if job["metadata"]["namespace"] == metadata["namespace"] and not is_foreign(job)
        and (job.get("spec") or {}).get("dataset") == metadata["name"]
        and (job.get("status") or {}).get("phase") not in OVER
    )


def status_of(
    name: str, spec: DatasetSpec, registered: Registered, jobs: Sequence[str], *, generation: int,
    before: Mapping[str, Any], now: float,
) -> dict[str, Any]:
    """What is told of a dataset that is registered."""
    told = TrainingDatasetStatus(
        observedGeneration=generation, dataset=name, phase=READY, reason="Registered", message="",
        revision=registered.revision, rows=registered.rows, files=registered.files, tasks=registered.tasks,
        size_bytes=registered.size_bytes, size=size(registered.size_bytes), endless=spec.endless,
        columns=registered.columns, jobs=list(jobs[:MOST_JOBS]), used_by=len(jobs),
        registered=moment(registered.created),
        conditions=kept(
            [("Accepted", "True", "Registered", ""), ("Ready", "True", "Registered", ""), _in_use(jobs)],
            generation, before.get("conditions") or [], now,
        ),
    )
    return told.model_dump(exclude_none=True)


def held(thing: Mapping[str, Any], jobs: Sequence[str], *, now: float) -> dict[str, Any]:
    """What is told of a dataset that is to be deleted, and that jobs use."""
    before, generation = thing.get("status") or {}, int(thing["metadata"].get("generation", 0))
    others = [
        (str(item["type"]), str(item["status"]), str(item["reason"]), str(item.get("message", "")))
        for item in before.get("conditions") or [] if item.get("type") != "InUse"
    ]
    message = f"it is deleted as soon as these jobs have ended or are deleted: {_named(jobs)}"
    told = TrainingDatasetStatus.parse(dict(before) | {
        "phase": DELETING, "reason": "InUse", "message": message, "jobs": list(jobs[:MOST_JOBS]),
        "used_by": len(jobs), "conditions": [
            item.model_dump() for item in
            kept([*others, _in_use(jobs)], generation, before.get("conditions") or [], now)
        ],
    })
    return told.model_dump(exclude_none=True)


def not_made(
    error: MeshError, jobs: Sequence[str], *, generation: int, before: Mapping[str, Any], now: float, is_final: bool
) -> dict[str, Any]:
    """The status of an object of which nothing can be made: as it stands (`is_final`), or for now. What was registered
    of an earlier specification stays, and jobs find that."""
    phase, accepted = (REFUSED, "False") if is_final else (PENDING, "Unknown")
    reason, message = word(error.reason), words(error)
    is_there = "revision" in before
    ready: Said = ("Ready", "True", "Registered", f"revision {before['revision']}, of an earlier specification") \
        if is_there else ("Ready", "False", reason, "")
    names = ("dataset", "revision", "rows", "files", "tasks", "size_bytes", "size", "endless", "columns", "registered")
    known = {name: before[name] for name in names if name in before}
    told = TrainingDatasetStatus(
        observedGeneration=generation if is_final else before.get("observedGeneration"), phase=phase, reason=reason,
        message=message, jobs=list(jobs[:MOST_JOBS]), used_by=len(jobs),
        conditions=kept(
            [("Accepted", accepted, reason, message), ready, _in_use(jobs)], generation,
            before.get("conditions") or [], now,
        ),
        **known,
    )
    return told.model_dump(exclude_none=True)


def event_of(uid: str, told: Mapping[str, Any], before: Mapping[str, Any], now: float) -> Told | None:
    """An Event where the phase, the reason or the revision is another one; None: nothing is new."""
    names = ("phase", "reason", "revision")
    if all(told.get(name) == before.get(name) for name in names):
        return None
    phase = str(told["phase"])
    note = str(told.get("message", "")) or (
        f"revision {told.get('revision')}: {told.get('rows', 0):,} rows in {told.get('files', 0):,} file(s)"
    )
    identity = f"{uid}.{moment(now)}." + ".".join(str(told.get(name, "")) for name in names)
    return Told(identity, now, str(told["reason"]), note[:MAX_NOTE], is_warning=phase in (REFUSED, DELETING))


def _in_use(jobs: Sequence[str]) -> Said:
    return ("InUse", "True", "NamedByJobs", _named(jobs)) if jobs else ("InUse", "False", "NotNamed", "")


def _named(jobs: Sequence[str]) -> str:
    more = f" and {len(jobs) - MOST_JOBS} more" if len(jobs) > MOST_JOBS else ""
    return ", ".join(jobs[:MOST_JOBS]) + more
