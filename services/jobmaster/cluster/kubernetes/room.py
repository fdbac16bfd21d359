"""What nodes have free: allocatable less what pods have requested. Pure."""

from collections.abc import Iterable, Mapping
from typing import Any

from kubernetes.utils.quantity import parse_quantity

from recmesh.runtime.kube import Object
from services.jobmaster.domain.job import Capacity

ANY = "gpu"
"""brain's name for accelerators of any kind."""


def free(nodes: Iterable[Object], pods: Iterable[Object], gpus: Mapping[str, str]) -> Capacity:
    """Over all nodes that take pods without special tolerations. `gpus`: extended resources by kind."""
    each: dict[str, dict[str, float]] = {}
    for node in nodes:
        if takes_pods(node):
            _add(each.setdefault(node["metadata"]["name"], {}), node["status"].get("allocatable") or {}, 1.0)
    for pod in pods:
        is_over = (pod.get("status") or {}).get("phase") in ("Succeeded", "Failed")
        if not is_over and pod["spec"].get("nodeName") in each:
            _add(each[pod["spec"]["nodeName"]], requests(pod["spec"]), -1.0)
    left: dict[str, float] = {}
    for amounts in each.values():
        _add(left, amounts, 1.0)
    kinds = {kind: max(0.0, left.get(resource, 0.0)) for kind, resource in gpus.items()}
    kinds[ANY] = sum({resource: max(0.0, left.get(resource, 0.0)) for resource in gpus.values()}.values())
    return Capacity(
        max(0.0, left.get("cpu", 0.0)), max(0, int(left.get("memory", 0.0))), kinds,
        node_cpu=max((amounts.get("cpu", 0.0) for amounts in each.values()), default=0.0),
        node_memory_bytes=max((amounts.get("memory", 0.0) for amounts in each.values()), default=0.0),
    )


def takes_pods(node: Object) -> bool:
    """Ready, not cordoned, and without a taint that keeps ordinary pods away."""
    spec = node.get("spec") or {}
    keeps_away = any(taint["effect"] in ("NoSchedule", "NoExecute") for taint in spec.get("taints") or [])
    return is_ready(node) and not spec.get("unschedulable") and not keeps_away


def is_ready(node: Object) -> bool:
    """Its kubelet is heard of."""
    conditions = (node.get("status") or {}).get("conditions") or []
    return any(item["type"] == "Ready" and item["status"] == "True" for item in conditions)


def requests(spec: Mapping[str, Any]) -> dict[str, float]:
    """Of all containers at once; of those that run before them the largest counts where it is more."""
    total: dict[str, float] = {}
    for container in spec.get("containers") or []:
        _add(total, (container.get("resources") or {}).get("requests") or {}, 1.0)
    for container in spec.get("initContainers") or []:
        for name, amount in ((container.get("resources") or {}).get("requests") or {}).items():
            total[name] = max(total.get(name, 0.0), float(parse_quantity(amount)))
    _add(total, spec.get("overhead") or {}, 1.0)
    return total


def _add(total: dict[str, float], amounts: Mapping[str, Any], sign: float) -> None:
    for name, amount in amounts.items():
        total[name] = total.get(name, 0.0) + sign * float(parse_quantity(amount))
