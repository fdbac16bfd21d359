"""The pod of a CN or HN, and what a pod says of itself. Pure."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson

from recmesh.runtime.kube import Object
from services.gateway.domain.devices import Wish

MANAGED_BY, GATEWAY = "app.kubernetes.io/managed-by", "recmesh-gateway"
SELECTOR = f"{MANAGED_BY}={GATEWAY}"
FLEET, KIND, DIGEST, HOLDER = (f"recmesh.dev/{name}" for name in ("fleet", "kind", "digest", "gateway"))
"""Labels: whose models it runs, `cn` or `hn`, what it was made of, and the gateway that uses it."""
DATA_PORT, CONTROL_PORT, HTTP_PORT = 7000, 7001, 8000
DRAIN_S, MARGIN_S = 10, 5
CONTAINER = "serving"
TLS = "/tls"
_SIGNALS = 128


@dataclass(frozen=True, slots=True)
class PodSettings:
    """What all pods of a gateway have in common."""

    namespace: str
    holder: str
    """This gateway's own name: of its pod."""
    images: Mapping[str, str]
    """By kind, `cn`, `hn`, and `hn-cuda` for HNs with accelerators."""
    owner: Object | None = None
    """An owner reference: when it is deleted, so are the pods."""
    secret: str = "recmesh"
    """A Secret that holds the mesh's token under `api-key`, and what lets Prometheus in under `metrics-key`."""
    tls_secret: str = ""
    """A Secret with `tls.crt`, `tls.key` and `ca.crt`, which all mount at `TLS`; empty: they speak in clear.
    Metrics and probes have it, too."""
    tls_name: str = ""
    """What its certificate is issued for: CNs expect it of HNs."""
    storage_claim: str = ""
    storage_path: str = ""
    """Where models are found, in the pods as here."""
    service_account: str = ""
    user: int = 10001
    grace_s: int = 60
    resources: Mapping[str, Mapping[str, Mapping[str, str]]] = field(default_factory=dict)
    """Requests and limits by kind."""
    gpu: str = "nvidia.com/gpu"
    """The extended resource of whole accelerators; slices are `nvidia.com/mig-PROFILE`."""


def pod_of(
    command: Sequence[str], environment: Mapping[str, str], settings: PodSettings, *, name: str, fleet: str, kind: str,
    wish: Wish,
) -> Object:  # fmt: skip
    """The pod; `command`: a module of ours and its arguments."""
    spec = _spec(command, environment, settings, kind=kind, wish=wish)
    owned = {"ownerReferences": [settings.owner]} if settings.owner else {}
    return {
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {
            "name": name, "namespace": settings.namespace, **owned,
            "labels": {
                "app.kubernetes.io/name": "recmesh", "app.kubernetes.io/component": kind, MANAGED_BY: GATEWAY,
                FLEET: fleet, KIND: kind, DIGEST: digest_of(spec), HOLDER: settings.holder,
            },
        },
        "spec": spec,
    }  # fmt: skip


def digest_of(spec: Object) -> str:
    """Of what a pod is made of: one of another release or other settings is not taken over."""
    return hashlib.sha256(orjson.dumps(spec, option=orjson.OPT_SORT_KEYS)).hexdigest()[:16]


def _spec(
    command: Sequence[str], environment: Mapping[str, str], settings: PodSettings, *, kind: str, wish: Wish
) -> Object:
    notice_s = max(1, settings.grace_s - DRAIN_S - MARGIN_S)
    listen = ["--listen", f"tcp:0.0.0.0:{DATA_PORT}", "--admission"] if kind == "hn" else []
    arguments = [
        *command, *listen, *(["--accelerator"] if wish.count else []), "--control", f"tcp:0.0.0.0:{CONTROL_PORT}",
        "--metrics", f"0.0.0.0:{HTTP_PORT}", "--notice", str(notice_s), "--drain", str(DRAIN_S),
    ]
    mounts: list[Object] = [{"name": "tmp", "mountPath": "/tmp"}]
    volumes: list[Object] = [{"name": "tmp", "emptyDir": {}}]
    if settings.storage_claim:
        mounts.append({"name": "storage", "mountPath": settings.storage_path, "readOnly": True})
        volumes.append({"name": "storage", "persistentVolumeClaim": {"claimName": settings.storage_claim}})
    certificates: dict[str, str] = {}
    if settings.tls_secret:
        mounts.append({"name": "tls", "mountPath": TLS, "readOnly": True})
        volumes.append({"name": "tls", "secret": {"secretName": settings.tls_secret, "defaultMode": 0o440}})
        certificates = {
            "RECMESH_TLS_CERT": f"{TLS}/tls.crt", "RECMESH_TLS_KEY": f"{TLS}/tls.key",
            "RECMESH_TLS_CA": f"{TLS}/ca.crt", "RECMESH_TLS_SERVER_NAME": settings.tls_name,
            "RECMESH_HTTP_TLS_CERT": f"{TLS}/tls.crt", "RECMESH_HTTP_TLS_KEY": f"{TLS}/tls.key",
        }
    asked = {"path": "/healthz", "port": "http", **({"scheme": "HTTPS"} if certificates else {})}
    probe: Object = {"httpGet": asked}
    return {
        "restartPolicy": "Never",                # another is another pod, and the gateway's to decide
        "terminationGracePeriodSeconds": settings.grace_s,
        "automountServiceAccountToken": False, "enableServiceLinks": False,
        **({"serviceAccountName": settings.service_account} if settings.service_account else {}),
        "securityContext": {
            "runAsNonRoot": True, "runAsUser": settings.user, "runAsGroup": settings.user, "fsGroup": settings.user,
            "fsGroupChangePolicy": "OnRootMismatch", "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [{
            "name": CONTAINER, "image": settings.images["hn-cuda" if wish.count else kind],
            "imagePullPolicy": "IfNotPresent", "command": ["python", "-m", *arguments],
            "env": [
                *({"name": each, "value": value.replace("$(", "$$(")} for each, value in sorted(environment.items())),
                *({"name": each, "value": value} for each, value in certificates.items()),
                {"name": "RECMESH_API_KEY", "valueFrom": {"secretKeyRef": {"name": settings.secret, "key": "api-key"}}},
                {"name": "RECMESH_METRICS_KEY", "valueFrom": {
                    "secretKeyRef": {"name": settings.secret, "key": "metrics-key", "optional": True},
                }},                              # Secrets of old have none
            ],
            "ports": [
                {"name": "data", "containerPort": DATA_PORT}, {"name": "control", "containerPort": CONTROL_PORT},
                {"name": "http", "containerPort": HTTP_PORT},
            ],
            "securityContext": {
                "allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]},
            },
            "resources": _resources(settings, kind, wish),
            "readinessProbe": {**probe, "periodSeconds": 2, "timeoutSeconds": 3},
            "livenessProbe": {
                **probe, "initialDelaySeconds": 120, "periodSeconds": 20, "timeoutSeconds": 10, "failureThreshold": 6,
            },
            "volumeMounts": mounts,
        }],
        "volumes": volumes,
    }  # fmt: skip


def _resources(settings: PodSettings, kind: str, wish: Wish) -> Object:
    given: Object = {name: dict(amounts) for name, amounts in settings.resources.get(kind, {}).items()}
    if wish.count:
        device = f"nvidia.com/mig-{wish.mig}" if wish.mig else settings.gpu
        given["limits"] = {**given.get("limits", {}), device: str(wish.count)}
    return given


def is_living(pod: Object) -> bool:
    """It runs or may come to run, and nobody told it to go."""
    return "deletionTimestamp" not in pod["metadata"] and not has_ended(pod)


def has_ended(pod: Object) -> bool:
    """Its process is over, or will never begin."""
    return (pod.get("status") or {}).get("phase") in ("Succeeded", "Failed")


def is_ready(pod: Object) -> bool:
    """It takes gateways."""
    status = pod.get("status") or {}
    ready = any(item["type"] == "Ready" and item["status"] == "True" for item in status.get("conditions") or [])
    return bool(status.get("podIP")) and ready


def outcome(pod: Object) -> str:
    """How it ended, for people."""
    status = pod.get("status") or {}
    ended = _state(status).get("terminated")
    if ended is None:
        said = f"{status.get('reason') or ''}: {status.get('message') or ''}".strip(": ")
        return said or "its pod has ended"
    if ended.get("reason") == "OOMKilled":
        return "killed by the kernel: out of memory (OOMKilled)"
    code = int(ended["exitCode"])
    return f"killed by signal {code - _SIGNALS}" if code > _SIGNALS else f"exit code {code}"


def waits(pod: Object) -> str:
    """What its start waits for, in the words of the scheduler or the kubelet."""
    status, name = pod.get("status") or {}, pod["metadata"]["name"]
    for item in status.get("conditions") or []:
        if item["type"] == "PodScheduled" and item["status"] == "False":
            return f"pod {name}: {item.get('reason') or 'unschedulable'}: {item.get('message') or ''}"
    waiting = _state(status).get("waiting") or {}
    if waiting.get("reason") in (None, "ContainerCreating", "PodInitializing"):
        return f"pod {name} is starting"
    return f"pod {name}: {waiting['reason']}: {waiting.get('message') or ''}"


def _state(status: Mapping[str, Any]) -> Mapping[str, Any]:
    containers = status.get("containerStatuses") or [{}]
    found: Mapping[str, Any] = containers[0].get("state") or {}
    return found
