"""Kubernetes' nodes and pods (api: v1) in the algorithm's terms. Pure."""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from kubernetes.utils.quantity import parse_quantity

from recmesh.runtime.errors import InvalidArgument, Violation
from services.brain.domain.topology.model import Machine, Rules, Tenant

Object = Mapping[str, Any]
CPU_HOPS, GPU_HOPS = "recmesh.dev/nic-hops", "recmesh.dev/gpu-nic-hops"
SWITCH_CAPACITY = "recmesh.dev/switch-capacity"
MOST_PER_NODE, MOST_PER_SWITCH = "recmesh.dev/most-per-node", "recmesh.dev/most-per-switch"
INSTANCES = "recmesh.dev/instances"
OVER = ("Succeeded", "Failed")
MOST = 1_000_000


def machine_of(node: Object, rules: Rules) -> Machine:
    """A label that is no number counts as absent: a wrong one must not take a node away."""
    name = str(node["metadata"]["name"])
    labels = node["metadata"].get("labels") or {}
    return Machine(
        name=name,
        network_pod=_first(labels, rules.network_pod_labels),
        switch=_first(labels, rules.switch_labels) or name,
        allocatable=_amounts((node.get("status") or {}).get("allocatable") or {}),
        cpu_nic_hops=_whole(labels.get(CPU_HOPS)) or 0,
        gpu_nic_hops=_whole(labels.get(GPU_HOPS)) or 0,
        switch_capacity=_number(labels.get(SWITCH_CAPACITY)),
    )


def tenant_of(pod: Object, rules: Rules) -> Tenant:
    """InvalidArgument names the part that a pod must have."""
    metadata, spec = _part(pod, "metadata"), _part(pod, "spec")
    for name in ("uid", "name"):
        if not isinstance(metadata.get(name), str) or not metadata[name]:
            raise InvalidArgument("this is no pod", violations=[Violation(f"Pod.metadata.{name}", "is missing")])
    labels, notes = metadata.get("labels") or {}, metadata.get("annotations") or {}
    namespace, app = metadata.get("namespace") or "default", _first(labels, rules.app_labels)
    per_node, per_switch = _whole(notes.get(MOST_PER_NODE)), _whole(notes.get(MOST_PER_SWITCH))
    return Tenant(
        uid=metadata["uid"],
        name=f"{namespace}/{metadata['name']}",
        app=f"{namespace}/{app}" if app else "",
        requests=_requests(spec),
        node=str(spec.get("nodeName") or ""),
        most_per_node=rules.most_per_node if per_node is None else per_node,
        most_per_switch=rules.most_per_switch if per_switch is None else per_switch,
        instances=_whole(notes.get(INSTANCES)) or 0,
    )


def is_over(pod: Object) -> bool:
    """It takes no room any more."""
    return (pod.get("status") or {}).get("phase") in OVER


def _requests(spec: Object) -> dict[str, float]:
    """Of all containers at once; of those that run before them the largest counts where it is more."""
    total: dict[str, float] = {"pods": 1.0}
    for amounts in [*(_asked(each) for each in spec.get("containers") or []), _amounts(spec.get("overhead") or {})]:
        for name, amount in amounts.items():
            total[name] = total.get(name, 0.0) + amount
    for container in spec.get("initContainers") or []:
        for name, amount in _asked(container).items():
            total[name] = max(total.get(name, 0.0), amount)
    return {name: amount for name, amount in total.items() if amount > 0}


def _asked(container: Object) -> dict[str, float]:
    return _amounts((container.get("resources") or {}).get("requests") or {})


def _amounts(given: Mapping[str, Any]) -> dict[str, float]:
    return {name: _quantity(str(amount)) for name, amount in given.items()}


@lru_cache(maxsize=4096)
def _quantity(text: str) -> float:
    return float(parse_quantity(text))


def _number(text: Any) -> float | None:
    try:
        return None if text is None else _quantity(str(text))
    except ValueError:
        return None


def _whole(text: Any) -> int | None:
    found = _number(text)
    return int(found) if found is not None and 0 <= found <= MOST else None


def _first(labels: Mapping[str, Any], keys: Sequence[str]) -> str:
    return next((str(labels[key]) for key in keys if labels.get(key)), "")


def _part(pod: Object, name: str) -> Object:
    part = pod.get(name)
    if not isinstance(part, Mapping):
        raise InvalidArgument("this is no pod", violations=[Violation(f"Pod.{name}", "is missing")])
    return part
