"""What a pod tells of itself (api: PodStatus), in the terms of role processes. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kubernetes.utils.quantity import parse_quantity

from recmesh.formats import inhand
from recmesh.runtime.kube import Object
from recmesh.spec.template import CONTAINER
from services.jobmaster.cluster.kubernetes.groups import group_of
from services.jobmaster.cluster.kubernetes.pods import ATTEMPT, INDEX, JOB, ROLE
from services.jobmaster.domain.exits import Cause, Exit

SIGKILL = 9
_SIGNALS = 128
"""A container whose first process was killed by signal n ends with 128 + n, as shells count."""
_DISRUPTIONS: Mapping[str, Cause] = {
    "PreemptionByScheduler": "preempted", "DeletionByTaintManager": "node lost", "DeletionByPodGC": "node lost",
    "EvictionByEvictionAPI": "evicted", "TerminationByKubelet": "evicted",
}
"""Reasons of the condition DisruptionTarget."""
_REASONS: Mapping[str, Cause] = {
    "Evicted": "evicted", "Preempting": "preempted", "NodeLost": "node lost", "NodeShutdown": "evicted",
    "Terminated": "evicted",
}
"""status.reason of a pod that the kubelet ended or never took; others (OutOfcpu, NodeAffinity, ...) are refusals."""
_TEXTS = 600


@dataclass(frozen=True, slots=True)
class Size:
    """What a container has, or is to have; 0: no limit."""

    cpu: float
    memory_bytes: int


@dataclass(frozen=True, slots=True)
class Pod:
    """What is kept of a role's pod."""

    job_id: str
    name: str
    pod: str
    uid: str
    version: int
    """resourceVersion: of two the larger is the newer (Kubernetes 1.35 promises it)."""
    node: str
    """Empty until it has one."""
    wanted: Size
    given: Size | None = None
    """As the kubelet has set it; None until it tells."""
    refusal: str = ""
    """Why the kubelet does not give it the wanted size now."""
    infeasible: bool = False
    """It never will on this node."""
    leaving: bool = False
    """It was told to go."""
    begun: bool = True
    """Its process was started."""
    waiting: str = ""
    exit: Exit | None = None
    group: str = ""
    """Whose group it is placed with."""


def is_gone(answer: Object) -> bool:
    """What a DELETE answered says that it found nothing left: a pod whom another deletion took at the same moment comes
    as it last was, without a version (k8s.io/apiserver, `Store.Delete`, where it ignores that it is not found)."""
    return answer.get("kind") == "Pod" and not answer["metadata"].get("resourceVersion")


def read(pod: Object, *, gone: bool = False, ours: bool = False) -> Pod | None:
    """None for a pod that is no role's. gone: it was deleted, and this is how it was; ours: we asked for that."""
    metadata, status = pod["metadata"], pod.get("status") or {}
    labels = metadata.get("labels") or {}
    if not all(label in labels for label in (JOB, ROLE, INDEX, ATTEMPT)):
        return None
    conditions = {item["type"]: item for item in status.get("conditions") or []}
    containers = status.get("containerStatuses") or []
    mine: Mapping[str, Any] = next((item for item in containers if item["name"] == CONTAINER), {})
    state = mine.get("state") or {}
    pending = _true(conditions, "PodResizePending")
    return Pod(
        job_id=labels[JOB], name="-".join(labels[each] for each in (ROLE, INDEX, ATTEMPT)), pod=metadata["name"],
        uid=metadata["uid"], version=int(metadata["resourceVersion"]), node=str(pod["spec"].get("nodeName") or ""),
        wanted=_size(_container(pod)), given=_size(mine) if "resources" in mine else None,
        refusal=_said(pending), infeasible=pending.get("reason") == "Infeasible",
        leaving="deletionTimestamp" in metadata,
        begun="running" in state or "terminated" in state,
        waiting=_waiting(conditions, state),
        exit=_exit(status, conditions, state, gone=gone, ours=ours),
        group=group_of(metadata),
    )


def _exit(
    status: Mapping[str, Any], conditions: Mapping[str, Any], state: Mapping[str, Any], *, gone: bool, ours: bool
) -> Exit | None:
    ended = state.get("terminated")
    if ended is None and not gone and status.get("phase") not in ("Failed", "Succeeded"):
        return None
    cause, why = _disruption(status, conditions)
    if ended is None:
        if cause or not gone:
            return Exit(cause=cause or "refused", reason=why or "the node did not take its pod")
        if ours:        # deleted with SIGTERM and SIGKILL; nobody saw which of them it was
            return Exit(signal=SIGKILL, reason="its pod was deleted")
        return Exit(cause="deleted", reason="its pod was deleted by others")
    code, said = int(ended["exitCode"]), str(ended.get("reason") or "")
    signal = code - _SIGNALS if _SIGNALS < code <= _SIGNALS + 64 else None
    known, batch = inhand.parse(str(ended.get("message") or ""))
    if said == "OOMKilled":
        return Exit(
            code=None if signal else code, signal=signal, oom=True, knows_batch=known, batch=batch,
            reason="killed by the kernel: out of memory (OOMKilled)",
        )
    if not cause and gone and not ours:
        cause, why = "deleted", "its pod was deleted by others"
    if said in ("ContainerStatusUnknown", "ContainerCannotRun", "StartError"):
        why = why or _joined(said, str(ended.get("message") or ""))
    return Exit(
        code=None if signal else code, signal=signal, reason=why, cause=cause, knows_batch=known, batch=batch
    )


def _disruption(status: Mapping[str, Any], conditions: Mapping[str, Any]) -> tuple[Cause, str]:
    """What others did to it, and their own words."""
    reason, target = str(status.get("reason") or ""), _true(conditions, "DisruptionTarget")
    cause: Cause = _DISRUPTIONS.get(str(target.get("reason") or ""), _REASONS.get(reason, ""))
    if cause:
        return cause, _joined(cause, str(target.get("message") or status.get("message") or ""))
    return "", _joined(reason, str(status.get("message") or "")) if reason else ""


def _waiting(conditions: Mapping[str, Any], state: Mapping[str, Any]) -> str:
    scheduled = conditions.get("PodScheduled") or {}
    if scheduled.get("status") == "False":
        return _joined(_words(str(scheduled.get("reason") or "unschedulable")), str(scheduled.get("message") or ""))
    waiting = state.get("waiting") or {}
    if waiting.get("reason") in (None, "", "ContainerCreating", "PodInitializing"):
        return ""
    return _joined(str(waiting["reason"]), str(waiting.get("message") or ""))


def _words(reason: str) -> str:
    return {"Unschedulable": "unschedulable", "SchedulingGated": "held back by a scheduling gate"}.get(reason, reason)


def _true(conditions: Mapping[str, Any], kind: str) -> Mapping[str, Any]:
    found: Mapping[str, Any] = conditions.get(kind) or {}
    return found if found.get("status") == "True" else {}


def _said(condition: Mapping[str, Any]) -> str:
    return _joined(str(condition.get("reason") or ""), str(condition.get("message") or "")) if condition else ""


def _joined(head: str, text: str) -> str:
    return f"{head}: {text}"[:_TEXTS] if text else head


def _container(pod: Object) -> Mapping[str, Any]:
    containers: Sequence[Mapping[str, Any]] = pod["spec"]["containers"]
    return next((item for item in containers if item["name"] == CONTAINER), {})


def _size(container: Mapping[str, Any]) -> Size:
    limits = (container.get("resources") or {}).get("limits") or {}
    return Size(float(parse_quantity(limits.get("cpu", 0))), int(parse_quantity(limits.get("memory", 0))))
