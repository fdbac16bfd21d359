"""Groups of pods that a scheduler places together or not at all: the objects of two schedulers. Pure.

coscheduling  scheduling.x-k8s.io/v1alpha1 PodGroup (kubernetes-sigs/scheduler-plugins)
volcano       scheduling.volcano.sh/v1beta1 PodGroup (volcano.sh)
"""

from collections.abc import Mapping
from typing import Any

from recmesh.runtime.kube import Object, Resource
from services.jobmaster.cluster import Group

SCHEDULERS: Mapping[str, str] = {"coscheduling": "scheduler-plugins-scheduler", "volcano": "volcano"}
"""`schedulerName` of pods in groups, as both projects install them."""
KINDS: Mapping[str, Resource] = {
    "coscheduling": Resource("scheduling.x-k8s.io", "v1alpha1", "podgroups", "PodGroup"),
    "volcano": Resource("scheduling.volcano.sh", "v1beta1", "podgroups", "PodGroup"),
}
LABEL, ANNOTATION = "scheduling.x-k8s.io/pod-group", "scheduling.k8s.io/group-name"
"""By which a pod of coscheduling, and of Volcano, says whose it is."""


def scheduler_of(group: Group) -> str:
    """Which of KINDS."""
    return "volcano" if group.policy.volcano is not None else "coscheduling"


def group_object(group: Group, *, metadata: Object) -> Object:
    """The PodGroup. `metadata`: name, labels, owner."""
    kind = KINDS[scheduler_of(group)]
    spec: Object = {"minMember": group.least}
    coscheduling, volcano = group.policy.coscheduling, group.policy.volcano
    if coscheduling is not None:
        spec["scheduleTimeoutSeconds"] = coscheduling.schedule_timeout_s
    if volcano is not None:
        spec |= {"queue": volcano.queue} if volcano.queue else {}
        spec |= {"priorityClassName": volcano.priority_class} if volcano.priority_class else {}
    return {"apiVersion": kind.api_version, "kind": kind.kind, "metadata": metadata, "spec": spec}


def membership(group: Group, *, name: str, schedulers: Mapping[str, str]) -> tuple[Object, Object]:
    """(metadata, spec) that make a pod one of the group."""
    scheduler = scheduler_of(group)
    metadata = {"annotations": {ANNOTATION: name}} if scheduler == "volcano" else {"labels": {LABEL: name}}
    return metadata, {"schedulerName": schedulers[scheduler]}


def group_of(metadata: Mapping[str, Any]) -> str:
    """Of a pod's metadata: which scheduler's group it is in; empty: none's."""
    if ANNOTATION in (metadata.get("annotations") or {}):
        return "volcano"
    return "coscheduling" if LABEL in (metadata.get("labels") or {}) else ""
