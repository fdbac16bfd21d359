"""What nodes have free, as the ResourceManager counts. Pure."""

from collections.abc import Iterable, Mapping

from recmesh.runtime.yarn.client import Object
from recmesh.spec.quantity import MIB
from services.jobmaster.domain.job import Capacity

ANY = "gpu"
"""brain's name for accelerators of any kind."""


def free(nodes: Iterable[Object], gpus: Mapping[str, str]) -> Capacity:
    """Over all nodes that run. `gpus`: resource types by kind. What a queue may have is not looked at."""
    cpu, memory_mib, counts = 0.0, 0, dict.fromkeys(gpus.values(), 0.0)
    for node in nodes:
        if not runs(node):
            continue
        cpu += max(0.0, float(node.get("availableVirtualCores") or 0))
        memory_mib += max(0, int(node.get("availMemoryMB") or 0))
        for name, amount in _others(node).items():
            if name in counts:
                counts[name] += amount
    kinds = {kind: counts[resource] for kind, resource in gpus.items()}
    kinds[ANY] = sum(counts.values())
    return Capacity(cpu, memory_mib * MIB, kinds)


def runs(node: Object) -> bool:
    """It is heard of, and takes containers."""
    return str(node.get("state")) == "RUNNING"


def _others(node: Object) -> dict[str, float]:
    """Free amounts of resource types beside memory and cores."""
    told = (node.get("availableResource") or {}).get("resourceInformations") or {}
    items = told.get("resourceInformation") or []
    listed = [items] if isinstance(items, dict) else items
    return {str(item["name"]): max(0.0, float(item.get("value") or 0)) for item in listed}
