"""What manifests say, in the terms of tests."""

import re
from collections.abc import Iterator
from typing import Any

from tests.support.overlays import ROOT

Object = dict[str, Any]
WORKLOADS = ("Deployment", "StatefulSet", "DaemonSet", "Job")


def of_kind(objects: list[Object], *kinds: str) -> list[Object]:
    """Those of the kinds."""
    return [item for item in objects if item["kind"] in kinds]


def name_of(thing: Object) -> str:
    """Its own."""
    return str(thing["metadata"]["name"])


def template_of(workload: Object) -> Object:
    """Its pods'."""
    template: Object = workload["spec"]["template"]
    return template


def containers(objects: list[Object]) -> Iterator[tuple[str, Object]]:
    """(workload, container) of all pods."""
    for workload in of_kind(objects, *WORKLOADS):
        spec = template_of(workload)["spec"]
        for container in [*spec.get("initContainers", []), *spec["containers"]]:
            yield name_of(workload), container


def variables_of(objects: list[Object]) -> set[str]:
    """Names of environment variables that pods get."""
    maps = {name_of(item): item.get("data", {}) for item in of_kind(objects, "ConfigMap")}
    found: set[str] = set()
    for _, container in containers(objects):
        found |= {item["name"] for item in container.get("env", [])}
        for source in container.get("envFrom", []):
            found |= set(maps[source["configMapRef"]["name"]])
    return found


def pods_of(objects: list[Object]) -> list[Object]:
    """A pod of each workload, as its controller would make it."""
    return [
        {
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {
                "name": f"{name_of(item)}-x", "namespace": item["metadata"]["namespace"],
                "labels": template_of(item)["metadata"]["labels"],
            },
            "spec": template_of(item)["spec"] | {"volumes": template_of(item)["spec"]["volumes"] + _own_volumes(item)},
        }
        for item in of_kind(objects, *WORKLOADS)
    ]


def settings_of(objects: list[Object], workload: str) -> dict[str, str]:
    """Environment variables that its first container gets; those from Secrets have made-up values."""
    maps = {name_of(item): item.get("data", {}) for item in of_kind(objects, "ConfigMap")}
    container = next(each for name, each in containers(objects) if name == workload)
    found: dict[str, str] = {}
    for source in container.get("envFrom", []):
        found |= maps[source["configMapRef"]["name"]]
    return found | {item["name"]: item.get("value", "made-up") for item in container.get("env", [])}


def _own_volumes(workload: Object) -> list[Object]:
    """Of a StatefulSet, which makes a claim for each pod."""
    names = [name_of(item) for item in workload["spec"].get("volumeClaimTemplates", [])]
    return [{"name": name, "persistentVolumeClaim": {"claimName": f"template-{name}"}} for name in names]


def targets() -> set[str]:
    """Images that infra/Dockerfile can make."""
    return set(re.findall(r"^FROM .* AS (\S+)$", (ROOT / "infra" / "Dockerfile").read_text(), re.MULTILINE))


def reaches(objects: list[Object], source: str, target: str, port: str) -> bool:
    """Whether policies let pods of workload `source` call the named port of `target`: both sides must allow it. Pods
    among the objects count too, by `NAME-x`."""
    pods = {name_of(item): item for item in [*pods_of(objects), *of_kind(objects, "Pod")]}
    policies = of_kind(objects, "NetworkPolicy")
    here, there = pods[f"{source}-x"], pods[f"{target}-x"]
    number = next(
        item["containerPort"] for container in there["spec"]["containers"] for item in container["ports"]
        if item["name"] == port
    )
    return (
        _allowed(policies, here, there, "Egress", "to", {number})
        and _allowed(policies, there, here, "Ingress", "from", {number, port})
    )  # fmt: skip


def _allowed(policies: list[Object], pod: Object, other: Object, way: str, side: str, ports: set[Any]) -> bool:
    of_pod = [
        item["spec"] for item in policies
        if way in item["spec"]["policyTypes"] and _selects(item["spec"]["podSelector"], pod["metadata"]["labels"])
    ]
    return not of_pod or any(
        (side not in rule or any(_is_peer(peer, other) for peer in rule[side]))
        and ("ports" not in rule or any(item["port"] in ports for item in rule["ports"]))
        for spec in of_pod for rule in spec.get(way.lower(), [])
    )


def _is_peer(peer: Object, pod: Object) -> bool:
    space = peer.get("namespaceSelector")
    labels = {"kubernetes.io/metadata.name": "recmesh"}
    if space is not None and not _selects(space, labels):
        return False
    return _selects(peer.get("podSelector", {}), pod["metadata"]["labels"])


def _selects(selector: Object, labels: dict[str, str]) -> bool:
    wanted, more = selector.get("matchLabels", {}), selector.get("matchExpressions", [])
    return all(labels.get(key) == value for key, value in wanted.items()) and all(
        item["operator"] == "In" and labels.get(item["key"]) in item["values"] for item in more
    )
