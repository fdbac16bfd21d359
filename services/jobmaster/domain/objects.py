"""A TrainingJob object and its job: what the object asks for and the job has not yet, and what is told of the job.

The object is the intent (DESIGN §1): counts and sizes of roles follow it while the job lives, and all else is as it was
when the job was accepted.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from recmesh.crd.kinds import REFUSED, Condition, RoleCounts, TrainingJobStatus
from recmesh.crd.telling import MAX_NOTE, Told, duration, kept, moment, word, words
from recmesh.runtime.errors import MeshError
from recmesh.spec.job import OWN_MANAGER, TrainingJob
from recmesh.spec.namespaces import NAMESPACE_END
from services.jobmaster.domain.job import AcceptedJob, Intent, JobStatus
from services.jobmaster.domain.phase import Phase
from services.jobmaster.domain.plan import pin
from services.jobmaster.domain.record import RunRecord

ROLES = ("ps", "worker", "data", "evaluator")
FREE = frozenset({"replicas", "cpu", "memory"})
"""Fields of a role that may change while a job lives."""
LABEL_JOB, LABEL_ROLE = "recmesh.dev/job", "recmesh.dev/role"
_TRAINS = (Phase.RUNNING, Phase.SCALING)
_ENDS = {Phase.SUCCEEDED: "Complete", Phase.FAILED: "Failed", Phase.STOPPED: "Stopped"}


@dataclass(frozen=True, slots=True)
class Scale:
    """A role's count is to be pinned; None: no longer."""

    role: str
    replicas: int | None


@dataclass(frozen=True, slots=True)
class Resize:
    """A role's processes are to have another size; 0: as it is."""

    role: str
    cpu: float = 0.0
    memory_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Suspend:
    """The job is to be suspended, or to go on."""

    wanted: bool


@dataclass(frozen=True, slots=True)
class Wishes:
    """What an object asks for beyond what its job has."""

    changes: tuple[Scale | Resize | Suspend, ...] = ()
    fixed: tuple[str, ...] = ()
    """Paths of fields that differ and cannot be changed any more."""


def wishes(asked: TrainingJob, spec: TrainingJob, intent: Intent) -> Wishes:
    """`asked` is the object's specification now, `spec` the job's as it was accepted."""
    changes: list[Scale | Resize | Suspend] = []
    apart = ("roles", "data", "dataset", "api_version", "suspend", "namespace")
    fixed = [name for name in TrainingJob.model_fields
             if name not in apart and getattr(asked, name) != getattr(spec, name)]
    if asked.dataset is not None:
        names = (asked.dataset, f"{asked.namespace}{NAMESPACE_END}{asked.dataset}")
        fixed += ["dataset"] if spec.data is None or spec.data.name not in names else []
    elif asked.data != spec.data:
        fixed.append("data")
    if asked.suspend != intent.suspend:
        changes.append(Suspend(asked.suspend))
    for role in ROLES:
        wanted, declared = getattr(asked.roles, role), getattr(spec.roles, role)
        if wanted.replicas != pin(spec, intent, role):
            changes.append(Scale(role, wanted.replicas))
        size = intent.sizes.get(role)
        cpu, memory = (size.cpu if size else 0.0) or declared.cpu, (size.memory_bytes if size else 0) or declared.memory
        grown = Resize(
            role, cpu=wanted.cpu if wanted.cpu and wanted.cpu != cpu else 0.0,
            memory_bytes=wanted.memory if wanted.memory and wanted.memory != memory else 0,
        )
        if grown != Resize(role):
            changes.append(grown)
        fixed += [f"roles.{role}.{name}" for name, was in (("cpu", cpu), ("memory", memory))
                  if was and getattr(wanted, name) is None]
        fixed += [f"roles.{role}.{name}" for name in type(wanted).model_fields
                  if name not in FREE and getattr(wanted, name) != getattr(declared, name)]
    return Wishes(tuple(changes), tuple(fixed))


@dataclass(frozen=True, slots=True)
class Synced:
    """Whether the object's newest changes are carried out."""

    reason: str = "Synced"
    message: str = ""


def differs(fixed: Sequence[str]) -> Synced:
    """Some fields cannot be changed."""
    if not fixed:
        return Synced()
    words = "cannot be changed once the job is accepted; delete the job, and submit another"
    return Synced("NotChangeable", f"{', '.join(fixed)}: {words}")


def refusal(error: MeshError) -> Synced:
    """A change that was refused."""
    return Synced(word(error.reason), words(error))


@dataclass(frozen=True, slots=True)
class Counts:
    """Of one role, as users see them."""

    wanted: int
    pinned: bool


def status_of(
    job: AcceptedJob, spec: TrainingJob, status: JobStatus, record: RunRecord, *, counts: Mapping[str, Counts],
    generation: int, synced: Synced, before: Sequence[Mapping[str, Any]], now: float,
) -> dict[str, Any]:
    """What is told of a job, as the object's status holds it; `before`: its conditions until now."""
    roles = [_role(name, status, counts[name]) for name in ROLES if name in counts]
    by_name = {item.role: item for item in roles}
    ended, model = status.has_ended, _model(status)
    is_still = ended or status.phase is Phase.SUSPENDED
    told = TrainingJobStatus(
        observedGeneration=generation, job_id=job.job_id, phase=status.phase, reason=status.reason,
        message=status.message[:4096], workers=by_name["worker"].running, ps=by_name["ps"].running,
        ready_workers=_ready(by_name["worker"], is_still), ready_ps=_ready(by_name["ps"], is_still),
        selector=f"{LABEL_JOB}={job.job_id},{LABEL_ROLE}=worker",
        roles=[item for item in roles if item.wanted or item.running or item.restarts],
        samples=status.samples, total=0 if status.goes_on else status.total, progress=_progress(status),
        samples_per_s=_rounded(status.samples_per_s), throughput=f"{_rounded(status.samples_per_s):,g}/s",
        eta_s=_eta_s(status), eta=None if (eta := _eta_s(status)) is None else duration(eta),
        snapshot=record.last_committed, metrics=dict(status.metrics), model=model,
        started=moment(status.started) if status.started else None, ended=moment(status.ended) if ended else None,
        notes=list(status.notes[-10:]), conditions=_conditions(status, synced, generation, before, now),
        **_lag(status),
    )
    return told.model_dump(exclude_none=True)


def refused(
    error: MeshError, *, generation: int, before: Sequence[Mapping[str, Any]], now: float
) -> dict[str, Any]:
    """The status of an object of which no job can be made."""
    said = [("Accepted", "False", word(error.reason), words(error))]
    told = TrainingJobStatus(
        observedGeneration=generation, phase=REFUSED, reason=word(error.reason), message=words(error),
        conditions=kept(said, generation, before, now),
    )
    return told.model_dump(exclude_none=True)


def waits(error: MeshError, *, generation: int, before: Sequence[Mapping[str, Any]], now: float) -> dict[str, Any]:
    """The status of an object of which a job will be made once the mesh can; it is tried again."""
    said = [("Accepted", "Unknown", word(error.reason), words(error))]
    told = TrainingJobStatus(
        observedGeneration=generation, phase=Phase.PENDING, reason=word(error.reason), message=words(error),
        conditions=kept(said, generation, before, now),
    )
    return told.model_dump(exclude_none=True)


def is_foreign(thing: Mapping[str, Any]) -> bool:
    """Another controller cares for the object: nothing is made of it, and nothing is told."""
    return (thing.get("spec") or {}).get("managed_by") not in (None, "", OWN_MANAGER)


MOVING = frozenset({
    "samples", "total", "progress", "samples_per_s", "throughput", "eta_s", "eta", "lag_s", "lag_messages", "lag",
    "metrics", "snapshot",
})
"""Fields that change all the time: they are told at a bounded rate."""


def is_news(told: Mapping[str, Any], before: Mapping[str, Any]) -> bool:
    """Something changed that is worth a call by itself."""
    return any(told.get(name) != before.get(name) for name in {*told, *before} - MOVING)


# -- Events ----------------------------------------------------------------------------------------------


def event_of(entry: Mapping[str, Any]) -> Told | None:
    """A line of a job's history as an Event; None: it is none for `kubectl describe`."""
    data, kind = entry["data"], str(entry["type"])
    found = _WORDS.get(kind)
    if found is None:
        return None
    reason, note, is_warning = found(data)
    if not reason:
        return None
    return Told(str(entry["id"]), float(entry["at"]), word(reason), note[:MAX_NOTE], is_warning)


def _transition(data: Mapping[str, Any]) -> tuple[str, str, bool]:
    message = f": {data['message']}" if data["message"] else ""
    note = f"{data['from_phase']} -> {data['to_phase']} ({data['reason']}){message}"
    return data["reason"], note, data["to_phase"] in (Phase.FAILED, Phase.RECOVERING)


def _exit(data: Mapping[str, Any]) -> tuple[str, str, bool]:
    if data["expected"]:
        return "", "", False
    return "RoleExited", f"{data['role']} {data['index']}: {data['reason']}", True


_WORDS: Mapping[str, Any] = {
    "job.transitioned": _transition,
    "job.role_exited": _exit,
    "job.scaled": lambda data: (
        "RoleScaled", f"{data['role']}: {data['from_replicas']} -> {data['to_replicas']}"
        + (f" ({data['reason']})" if data["reason"] else ""), False,
    ),
    "job.memory_raised": lambda data: (
        "MemoryRaised", f"{data['role']}: {data['from_bytes'] >> 20} -> {data['to_bytes'] >> 20} MiB "
        f"({data['reason']})", False,
    ),
    "job.rolled_back": lambda data: (
        "RolledBack", f"generation {data['gen']} begins from snapshot {data['snapshot']}: {data['reason']}", True,
    ),
    "job.batch_quarantined": lambda data: (
        "BatchQuarantined", f"batch {data['line']}:{data['lo']}-{data['hi']} killed {data['attempts']} workers", True,
    ),
    "job.straggler_detected": lambda data: ("Straggler", f"worker {data['index']}: {data['reason']}", True),
    "job.role_notified": lambda data: ("Draining", f"{data['role']} {data['index']}: {data['reason']}", False),
}


# -- words -----------------------------------------------------------------------------------------------


def _role(name: str, status: JobStatus, counts: Counts) -> RoleCounts:
    live = status.live(name)
    return RoleCounts(
        role=name, wanted=0 if status.has_ended or status.phase is Phase.SUSPENDED else counts.wanted,
        running=sum(role.stage == "running" for role in live), pinned=counts.pinned,
        restarts=sum(role.attempt - 1 for role in status.roles if role.role == name),
    )


def _ready(role: RoleCounts, is_still: bool) -> str:
    return f"{role.running}/{0 if is_still else role.wanted}"


def _progress(status: JobStatus) -> str:
    if status.goes_on or not status.total:
        return f"{status.samples:,}" if status.samples else "0"
    return f"{min(100, 100 * status.samples // status.total)}%"     # rounded down: 100% means all of it


def _eta_s(status: JobStatus) -> int | None:
    if status.has_ended or status.goes_on or status.samples_per_s <= 0 or not status.total:
        return None
    return round(status.remaining / status.samples_per_s)


def _lag(status: JobStatus) -> dict[str, Any]:
    if not status.partitions or status.has_ended:
        return {}
    return {"lag_s": _rounded(status.lag_s), "lag_messages": status.lag_messages, "lag": duration(status.lag_s)}


def _model(status: JobStatus) -> str | None:
    closing, published = status.closing, status.publication
    for item in (closing, published):
        if item is not None and item.registered and item.model_name:
            return f"{item.model_name}/{status.model_version}" if status.model_version else item.model_name
    return None


def _rounded(value: float) -> float:
    return float(f"{value:.3g}")


def _conditions(
    status: JobStatus, synced: Synced, generation: int, before: Sequence[Mapping[str, Any]], now: float
) -> list[Condition]:
    phase, why = status.phase, status.reason
    said = [
        ("Accepted", "True", "Accepted", ""),
        ("Synced", "True" if synced == Synced() else "False", synced.reason, synced.message),
        ("Running", "True" if phase in _TRAINS else "False", word(why if phase in _TRAINS else phase), ""),
    ]
    if phase is Phase.SUSPENDED:
        said.append(("Suspended", "True", word(why), status.message))
    elif any(item.get("type") == "Suspended" for item in before):
        said.append(("Suspended", "False", "Resumed", ""))
    if phase in _ENDS:
        said.append((_ENDS[phase], "True", word(why), status.message))
    return kept(said, generation, before, now)
