"""Nodes, pods and rules, in the algorithm's terms."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum

APP_LABELS = ("recmesh.dev/application", "recmesh.dev/job")
NETWORK_POD_LABELS = ("recmesh.dev/network-pod", "network.topology.nvidia.com/spine", "topology.kubernetes.io/zone")
SWITCH_LABELS = ("recmesh.dev/switch", "network.topology.nvidia.com/leaf", "topology.kubernetes.io/rack")
NIC = "recmesh.dev/nic"


@dataclass(frozen=True, slots=True)
class Rules:
    """How labels are read, and what bounds an application."""

    app_labels: Sequence[str] = APP_LABELS
    """Of pods: the first that one has names its application, within its namespace. None: it is left alone."""
    network_pod_labels: Sequence[str] = NETWORK_POD_LABELS
    """Of nodes, the first one counts; a node with none of them is in a pod without name, with all others like it."""
    switch_labels: Sequence[str] = SWITCH_LABELS
    """Of nodes; a node with none of them is taken for a switch of its own."""
    nic: str = NIC
    """Extended resource that stands for bandwidth of network cards, in any unit."""
    switch_share: float = 0.8
    """Of a switch's capacity, that may be promised (MATH section 4)."""
    most_per_node: int = 0
    """Of an application's pods, where they say nothing themselves; 0: no bound."""
    most_per_switch: int = 0
    one_network_pod: bool = True
    """False: an application that its network pod has no room for may have nodes of others."""


@dataclass(frozen=True, slots=True)
class Machine:
    """A node as its object tells."""

    name: str
    network_pod: str
    switch: str
    allocatable: Mapping[str, float]
    """By resource; cores, bytes, devices."""
    cpu_nic_hops: int = 0
    """From cores to the nearest network card; 0: the same socket."""
    gpu_nic_hops: int = 0
    """From devices to it; 0: the same PCIe switch."""
    switch_capacity: float | None = None
    """Of its switch, in the unit of `Rules.nic`; None: not bounded."""


@dataclass(frozen=True, slots=True)
class Tenant:
    """A pod: an application's instance, or another that takes room."""

    uid: str
    name: str
    """namespace/name."""
    app: str
    """namespace/label; "": of no application."""
    requests: Mapping[str, float]
    """`pods` among them: 1."""
    node: str = ""
    """"" while it waits."""
    most_per_node: int = 0
    """d; 0: no bound."""
    most_per_switch: int = 0
    instances: int = 0
    """Pods that its application is to have, as far as it knows; 0: it does not."""

    @property
    def has_devices(self) -> bool:
        """It asks for what only some nodes have: an HN, or a worker with a GPU."""
        return any(is_device(each) for each in self.requests)


class Objection(IntEnum):
    """Why an instance may not have a node, from the one that is most easily mended to the one that is not."""

    UNKNOWN_NODE = 10
    """brain has not heard of it yet."""
    NODE_HAS_ENOUGH = 20
    """d of them."""
    SWITCH_HAS_ENOUGH = 30
    NO_BANDWIDTH = 40
    """Its switch has promised all it may."""
    OTHER_NETWORK_POD = 50
    """The application lives in another one; no eviction from this node changes that."""


@dataclass(frozen=True, slots=True)
class Kept:
    """Nodes that an instance may have, in the order of asking, and what is against the others."""

    names: list[str] = field(default_factory=list)
    refused: dict[str, tuple[Objection, str]] = field(default_factory=dict)


def is_device(resource: str) -> bool:
    """An extended resource has its vendor's name before a slash; what every node has, has not."""
    return "/" in resource
