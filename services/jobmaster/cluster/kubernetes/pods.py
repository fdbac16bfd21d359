"""The pod of a start order: pure, so that the same order makes the same pod in every jobmaster."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson

from recmesh.formats import inhand
from recmesh.runtime.errors import Violation
from recmesh.runtime.kube import Object, recmesh_resource
from recmesh.spec.quantity import MIB
from recmesh.spec.template import CONTAINER
from services.jobmaster.cluster import StartOrder
from services.jobmaster.cluster.kubernetes import groups

TRAINING_JOBS = recmesh_resource("trainingjobs", "TrainingJob")
MANAGED_BY = "app.kubernetes.io/managed-by"
JOBMASTER = "recmesh-jobmaster"
JOB, ROLE, INDEX, ATTEMPT = (f"recmesh.dev/{name}" for name in ("job", "role", "index", "attempt"))
INSTANCES = "recmesh.dev/instances"
"""Annotation: pods that the job is to have, for placing them together."""
SELECTOR = f"{MANAGED_BY}={JOBMASTER}"
WORK, SNAPSHOTS, TMP = "/work", "/snapshots", "/tmp"
STORAGE = "recmesh-storage"
"""The volume of code, models and, where they are put there, files of datasets; no name that a template would choose."""
TLS = "/tls"
CERTIFICATES = "recmesh-tls"
"""The volume of a role's certificates, which the kubelet renews with the Secret that they are in."""
NOTE = "/dev/termination-log"
"""The kubelet reads it when the container has ended, and tells it as the container's message."""
MARGIN_S = 5
"""Between what a role takes for a notice's patience and SIGKILL."""
UNREACHABLE_S = 30
"""Pods of a node that is not heard of are given up after it; Kubernetes' default is five minutes."""


@dataclass(frozen=True, slots=True)
class PodSettings:
    """What all pods of a jobmaster have in common."""

    namespace: str
    image: str
    """Of roles whose model names none; it must run `command`."""
    images: Mapping[str, str] = field(default_factory=dict)
    """By role, before `image`."""
    command: Sequence[str] = ("python", "-m", "recmesh.trainer")
    service_account: str = ""
    """Empty: the namespace's default one. No token of it is mounted either way, unless a template asks for it."""
    user: int = 10001
    """The images' own; with a user of their own, images are given by `pod_template`."""
    grace_s: int = 60
    """Between SIGTERM and SIGKILL when a pod is told to go."""
    storage_claim: str = ""
    """What roles that read code or write models mount; empty: they reach the storage without a volume."""
    storage_path: str = ""
    """Where, which is what `RECMESH_STORAGE_URI` says."""
    tls_secret: str = ""
    """What all roles mount at `TLS`: tls.crt, tls.key and ca.crt; empty: nothing."""
    gpus: Mapping[str, str] = field(default_factory=lambda: {"gpu": "nvidia.com/gpu"})
    """Extended resources by kind of accelerator; `gpu` is any."""
    force_after_s: float = 10.0
    """A pod whose end is not confirmed so long after the grace is taken out of the API as soon as its node is away. A
    process that lives on there can do no harm (docs/protocol): it costs time only."""
    resize_wait_s: float = 10.0
    """A pod's new size that the kubelet has not given it by then is taken back."""
    scheduler: str = ""
    """Of role pods; empty: the cluster's default one."""
    schedulers: Mapping[str, str] = field(default_factory=lambda: dict(groups.SCHEDULERS))
    """Of pods that are placed together, by the kind of their group."""


def pod_name(job_id: str, name: str) -> str:
    """Unique: neither role, index nor attempt holds a dash of its own."""
    return f"{job_id}-{name}"


def gpu_violations(role: str, *, gpu: float, kind: str, settings: PodSettings) -> list[Violation]:
    """What is wrong with the accelerators that a role asks for."""
    found = []
    if gpu != int(gpu):
        reason = f"{gpu:g} is no whole number: Kubernetes gives whole devices (or slices, as a kind of their own)"
        found.append(Violation(f"roles.{role}.gpu", reason))
    if gpu and (kind or "gpu") not in settings.gpus:
        known = ", ".join(sorted(settings.gpus)) or "none"
        found.append(Violation(f"roles.{role}.gpu_kind", f"this cluster has no {kind or 'gpu'!r}; it has: {known}"))
    return found


def owner_reference(name: str, uid: str) -> Object:
    """That a TrainingJob object owns what carries it."""
    return {
        "apiVersion": TRAINING_JOBS.api_version, "kind": TRAINING_JOBS.kind, "name": name, "uid": uid,
        "controller": True, "blockOwnerDeletion": False,
    }


def secret_of(order: StartOrder, settings: PodSettings, owner: Object | None) -> Object | None:
    """What holds the order's secret variables; named by its content, so that roles which have the same share one."""
    values = {name: order.env[name] for name in sorted(order.secrets) if name in order.env}
    if not values:
        return None
    digest = hashlib.sha256(orjson.dumps(values)).hexdigest()[:10]
    return {
        "apiVersion": "v1", "kind": "Secret", "type": "Opaque", "immutable": True, "stringData": values,
        "metadata": {
            "name": f"{order.job_id}-env-{digest}", "namespace": settings.namespace,
            "labels": {MANAGED_BY: JOBMASTER, JOB: order.job_id}, **_owned(owner),
        },
    }


def pod_of(order: StartOrder, settings: PodSettings, *, owner: Object | None = None, secret: str = "") -> Object:
    """The pod. `owner`: an owner reference; `secret`: the name of what `secret_of` made."""
    attempt = order.name.rpartition("-")[2]
    own: Object = {
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {
            "name": pod_name(order.job_id, order.name), "namespace": settings.namespace,
            "labels": {
                "app.kubernetes.io/name": "recmesh", "app.kubernetes.io/component": order.role, MANAGED_BY: JOBMASTER,
                JOB: order.job_id, ROLE: order.role, INDEX: str(order.index), ATTEMPT: attempt,
            },
            **({"annotations": {INSTANCES: str(order.instances)}} if order.instances else {}),
            **_owned(owner),
        },
        "spec": {
            "restartPolicy": "Never",       # another attempt is another pod, and jobmaster's to decide
            **({"schedulerName": settings.scheduler} if settings.scheduler else {}),
            "terminationGracePeriodSeconds": settings.grace_s,
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            **({"serviceAccountName": settings.service_account} if settings.service_account else {}),
            "securityContext": {
                "runAsNonRoot": True, "runAsUser": settings.user, "runAsGroup": settings.user, "fsGroup": settings.user,
                "fsGroupChangePolicy": "OnRootMismatch", "seccompProfile": {"type": "RuntimeDefault"},
            },
            "tolerations": [
                {"key": f"node.kubernetes.io/{state}", "operator": "Exists", "effect": "NoExecute",
                 "tolerationSeconds": UNREACHABLE_S}
                for state in ("not-ready", "unreachable")
            ],
            "containers": [_container(order, settings, secret)],
            "volumes": [
                *({"name": name, "emptyDir": {}} for name in ("work", "snapshots", "tmp")),
                *_storage(order, settings, {"persistentVolumeClaim": {"claimName": settings.storage_claim}}),
                *_certificates(settings, {"secret": {"secretName": settings.tls_secret, "defaultMode": 0o440}}),
            ],
        },
    }
    if order.group is not None:
        metadata, spec = groups.membership(order.group, name=order.job_id, schedulers=settings.schedulers)
        own = merged(own, {"metadata": metadata, "spec": spec})
    made: Object = merged(own, order.template)
    return made


def group_object(order: StartOrder, settings: PodSettings, owner: Object | None) -> Object | None:
    """The group that the order's pod is one of; named as its job."""
    if order.group is None:
        return None
    return groups.group_object(order.group, metadata={
        "name": order.job_id, "namespace": settings.namespace, "labels": {MANAGED_BY: JOBMASTER, JOB: order.job_id},
        **_owned(owner),
    })  # fmt: skip


def _storage(order: StartOrder, settings: PodSettings, what: Object) -> list[Object]:
    """Parameter servers speak to ckptcache alone; code, models and files are for the others."""
    return [{"name": STORAGE, **what}] if settings.storage_claim and order.role != "ps" else []


def _certificates(settings: PodSettings, what: Object) -> list[Object]:
    return [{"name": CERTIFICATES, **what}] if settings.tls_secret else []


def _container(order: StartOrder, settings: PodSettings, secret: str) -> Object:
    return {
        "name": CONTAINER, "image": order.image or settings.images.get(order.role, settings.image),
        "command": list(settings.command),
        "env": _env(order, settings, secret),
        "resources": resources(
            cpu=order.cpu, memory_bytes=order.memory_bytes, gpu=order.gpu, gpu_kind=order.gpu_kind, settings=settings
        ),
        "resizePolicy": [{"resourceName": name, "restartPolicy": "NotRequired"} for name in ("cpu", "memory")],
        "terminationMessagePath": NOTE,
        "securityContext": {
            "allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]},
        },
        "volumeMounts": [
            {"name": "work", "mountPath": WORK}, {"name": "snapshots", "mountPath": SNAPSHOTS},
            {"name": "tmp", "mountPath": TMP},
            *_storage(order, settings, {"mountPath": settings.storage_path}),
            *_certificates(settings, {"mountPath": TLS, "readOnly": True}),
        ],
    }


def _env(order: StartOrder, settings: PodSettings, secret: str) -> list[Object]:
    # Addresses are made of the pod's own, which Kubernetes puts in for $(...) where that comes first.
    address = {"name": "RECMESH_POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}
    places = {
        "HOME": WORK, "RECMESH_WORK_DIR": WORK, "RECMESH_SHM_DIR": SNAPSHOTS, inhand.VARIABLE: NOTE,
        "RECMESH_PS_ADDRESS": "$(RECMESH_POD_IP):0", "RECMESH_DATA_ADDRESS": "$(RECMESH_POD_IP):0",
        "RECMESH_NOTICE_S": str(max(1, settings.grace_s - MARGIN_S)),
    }
    kept = order.secrets & order.env.keys() if secret else frozenset()
    given = {name: value for name, value in order.env.items() if name not in kept}
    if settings.tls_secret:
        given |= {
            "RECMESH_TLS_CERT": f"{TLS}/tls.crt", "RECMESH_TLS_KEY": f"{TLS}/tls.key", "RECMESH_TLS_CA": f"{TLS}/ca.crt"
        }
    plain = {**places, **{name: value.replace("$(", "$$(") for name, value in given.items()}}
    node = {"name": "RECMESH_NODE", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}}
    return [
        address, node,
        *({"name": name, "value": value} for name, value in plain.items()),
        *({"name": name, "valueFrom": {"secretKeyRef": {"name": secret, "key": name}}} for name in sorted(kept)),
    ]


def resources(*, cpu: float, memory_bytes: int, gpu: float, gpu_kind: str, settings: PodSettings) -> Object:
    """Requests are limits: what a role is promised is what it gets, and the pod is the last to be evicted."""
    amounts = size(cpu, memory_bytes) | ({settings.gpus[gpu_kind or "gpu"]: str(int(gpu))} if gpu else {})
    return {"requests": amounts, "limits": dict(amounts)} if amounts else {}


def size(cpu: float, memory_bytes: int) -> dict[str, str]:
    """As quantities; 0: none."""
    whole, rest = divmod(memory_bytes, MIB)
    memory = str(memory_bytes) if rest else f"{whole}Mi"
    return ({"cpu": f"{round(cpu * 1000)}m"} if cpu else {}) | ({"memory": memory} if memory_bytes else {})


def _owned(owner: Object | None) -> Object:
    return {"ownerReferences": [owner]} if owner else {}


def merged(own: Any, given: Any) -> Any:
    """`own` with what a template gives: mappings are joined, lists of named things by name, other lists one behind the
    other; elsewhere the template's value holds. What it may not change is refused before (recmesh.spec.template)."""
    if isinstance(own, Mapping) and isinstance(given, Mapping):
        return {
            key: merged(own[key], given[key]) if key in own and key in given else given.get(key, own.get(key))
            for key in [*own, *(key for key in given if key not in own)]
        }
    if isinstance(own, list) and isinstance(given, list):
        names = [item.get("name") if isinstance(item, Mapping) else None for item in own]
        joined, more = list(own), []
        for item in given:
            name = item.get("name") if isinstance(item, Mapping) else None
            if name is not None and name in names:
                joined[names.index(name)] = merged(joined[names.index(name)], item)
            else:
                more.append(item)
        return joined + more
    return given
