"""Where an instance of a served application goes: Prism's algorithm 1, a pure function over a snapshot of the topology.

In order, with what MATH section 4 mends:

1. All instances of one application live in one network pod. Its first instance considers all pods; a later one only
   the pod where the first ones are, and never another.
2. Under the access switch that already has most of them; when that one is full, under the next *in the same pod*.
3. Not more than d instances of it per node.
4. The node whose GPU and NIC (HN) or CPU and NIC (CN) are closest; then the one with less left over.
5. The bandwidth that instances under a switch are promised stays within .8 of its capacity.

Parts of a GPU (MIG profiles) are resources: an HN of 2g.20gb asks for one part of two sevenths. Everything that could
be refused is refused with a reason, the one nearest to success first.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Literal

Role = Literal["HN", "CN"]

SEVENTH = 1000 // 7
"""Of a GPU, in thousandths: the unit of MIG profiles, seven of which fit."""


class Reason(IntEnum):
    """Why an instance has the node that it has, or none; from the best news to the worst."""

    BEST_SWITCH = 10
    """With most of its peers."""
    NEXT_SWITCH = 20
    """In the same pod; the best switch is full."""
    FIRST = 30
    """The application's first instance."""
    TOO_MANY_ON_NODES = 40
    """Nodes have room, but d instances of it each."""
    NO_BANDWIDTH = 50
    """Nodes have room, but their switches have promised all they may."""
    NO_ROOM = 60
    """In its pod."""
    NO_ROOM_ANYWHERE = 70
    """In no pod."""


@dataclass(frozen=True, slots=True)
class Node:
    """A node with what is free on it."""

    name: str
    pod: str
    switch: str
    cpu: float
    """Free cores."""
    memory_bytes: float = 0.0
    gpus: tuple[int, ...] = ()
    """Thousandths free of each GPU."""
    gpu_nic_hops: tuple[int, ...] = ()
    """Distance of each GPU to its nearest NIC (0: the same PCIe switch); empty: all the same."""
    cpu_nic_hops: int = 0
    """Distance of the cores that are free to a NIC (0: the same socket)."""
    apps: tuple[tuple[str, int], ...] = ()
    """Instances of each application here."""

    def instances(self, app: str) -> int:
        """Of an application, here."""
        return sum(many for name, many in self.apps if name == app)


@dataclass(frozen=True, slots=True)
class Switch:
    """An access switch: what it carries, and what instances under it are promised."""

    name: str
    capacity: float
    """Bytes per second."""
    promised: float = 0.0


@dataclass(frozen=True, slots=True)
class Instance:
    """What asks for a node."""

    app: str
    role: Role
    cpu: float
    memory_bytes: float = 0.0
    gpu: int = 0
    """Thousandths of each GPU that it asks for: 1000 a whole one, less a part of one."""
    gpus: int = 0
    bandwidth: float = 0.0
    """Bytes per second that it is promised: the quota of an instance at peaks."""
    most_per_node: int = 0
    """d; 0: no bound."""


@dataclass(frozen=True, slots=True)
class Rule:
    """Share of a switch's capacity that may be promised."""

    switch_share: float = 0.8


@dataclass(frozen=True, slots=True)
class Topology:
    """A snapshot. `pods` of applications that hold instances follow from the nodes."""

    nodes: tuple[Node, ...]
    switches: tuple[Switch, ...] = field(default=())
    """Those that are not here are not bounded."""


@dataclass(frozen=True, slots=True)
class Placement:
    """A node and its GPUs, or none, and why."""

    node: str
    """"" where none was found."""
    gpus: tuple[int, ...]
    reason: Reason
    why: str


def place(instance: Instance, topology: Topology, rule: Rule | None = None) -> Placement:
    """Where it goes."""
    rule = rule or Rule()
    held = [node for node in topology.nodes if node.instances(instance.app)]
    pods = {node.pod for node in (held or topology.nodes)}
    within = [node for node in topology.nodes if node.pod in pods]
    switches = _switches_in_order(instance.app, within)
    refusals: list[Reason] = []
    for rank, switch in enumerate(switches):
        under = [node for node in within if node.switch == switch]
        fitting, refusal = _fitting(instance, under, topology, rule)
        if not fitting:
            refusals.append(refusal)
            continue
        node = min(fitting, key=lambda each: _distance(instance, each))
        here = sum(each.instances(instance.app) for each in under)
        if not held:
            return _placed(instance, node, Reason.FIRST, f"first instance of {instance.app}: pod {node.pod}, {switch}")
        if rank == 0:
            return _placed(instance, node, Reason.BEST_SWITCH, f"{switch} has most of {instance.app}: {here}")
        why = f"{', '.join(switches[:rank])} cannot hold it; next in pod {node.pod}"
        return _placed(instance, node, Reason.NEXT_SWITCH, why)
    if not held:
        best = min(refusals, default=Reason.NO_ROOM_ANYWHERE)
        reason = Reason.NO_ROOM_ANYWHERE if best is Reason.NO_ROOM else best
        return Placement("", (), reason, _refused(instance, reason, f"{len(within)} in {len(pods)} pods", rule))
    worst = min(refusals, default=Reason.NO_ROOM)
    why = _refused(instance, worst, f"pod {', '.join(sorted(pods))}", rule)
    return Placement("", (), worst, f"{why}, and {instance.app} is not spread over pods")


def _refused(instance: Instance, reason: Reason, where: str, rule: Rule) -> str:
    match reason:
        case Reason.NO_BANDWIDTH:
            return (
                f"nodes of {where} could hold {_told(instance)}, but their switches cannot promise it "
                f"{instance.bandwidth:g} more within {rule.switch_share:g} of their capacity"
            )
        case Reason.TOO_MANY_ON_NODES:
            return (
                f"nodes of {where} could hold {_told(instance)}, but have {instance.most_per_node} instances of it each"
            )
        case _:
            return f"no node of {where} can hold {_told(instance)}"


def place_all(
    instances: Sequence[Instance], topology: Topology, rule: Rule | None = None
) -> tuple[tuple[Placement, ...], Topology]:
    """One after another, each on what the ones before it left; and what is left at the end."""
    found = []
    for instance in instances:
        placement = place(instance, topology, rule)
        found.append(placement)
        if placement.node:
            topology = taken(instance, placement, topology)
    return tuple(found), topology


def taken(instance: Instance, placement: Placement, topology: Topology) -> Topology:
    """The topology with the instance in its place."""
    node = next(each for each in topology.nodes if each.name == placement.node)
    apps = Counter(dict(node.apps))
    apps[instance.app] += 1
    after = Node(
        node.name,
        node.pod,
        node.switch,
        node.cpu - instance.cpu,
        node.memory_bytes - instance.memory_bytes,
        tuple(left - instance.gpu if index in placement.gpus else left for index, left in enumerate(node.gpus)),
        node.gpu_nic_hops,
        node.cpu_nic_hops,
        tuple(sorted(apps.items())),
    )
    return Topology(
        tuple(after if each.name == node.name else each for each in topology.nodes),
        tuple(
            Switch(each.name, each.capacity, each.promised + instance.bandwidth) if each.name == node.switch else each
            for each in topology.switches
        ),
    )


def _switches_in_order(app: str, nodes: Sequence[Node]) -> list[str]:
    """By how many of the application's instances they have, then by what is free under them, then by name."""
    has: Counter[str] = Counter()
    free: Counter[str] = Counter()
    for node in nodes:
        has[node.switch] += node.instances(app)
        free[node.switch] += round(node.cpu) + sum(node.gpus)
    return sorted(has, key=lambda switch: (-has[switch], -free[switch], switch))


def _fitting(instance: Instance, under: Sequence[Node], topology: Topology, rule: Rule) -> tuple[list[Node], Reason]:
    """Nodes under one switch that can hold it, or why none can."""
    roomy = [
        node
        for node in under
        if node.cpu >= instance.cpu - 1e-9
        and node.memory_bytes >= instance.memory_bytes
        and sum(left >= instance.gpu for left in node.gpus) >= instance.gpus
    ]
    if not roomy:
        return [], Reason.NO_ROOM
    carrier = next((each for each in topology.switches if each.name == under[0].switch), None)
    if carrier is not None and carrier.promised + instance.bandwidth > rule.switch_share * carrier.capacity + 1e-9:
        return [], Reason.NO_BANDWIDTH
    few = [
        node for node in roomy if not instance.most_per_node or node.instances(instance.app) < instance.most_per_node
    ]
    return few, Reason.TOO_MANY_ON_NODES


def _gpus(instance: Instance, node: Node) -> tuple[int, ...]:
    """The GPUs that it takes: the nearest to a NIC, then the tightest."""
    hops = node.gpu_nic_hops or (0,) * len(node.gpus)
    holding = [index for index, left in enumerate(node.gpus) if left >= instance.gpu > 0]
    holding.sort(key=lambda index: (hops[index], node.gpus[index], index))
    return tuple(sorted(holding[: instance.gpus]))


def _distance(instance: Instance, node: Node) -> tuple[int, float, float, str]:
    """Hops to the NIC, then what would be left over, then the name."""
    chosen = _gpus(instance, node)
    hops = node.gpu_nic_hops or (0,) * len(node.gpus)
    far = max((hops[index] for index in chosen), default=0) if instance.role == "HN" else node.cpu_nic_hops
    return far, float(sum(node.gpus)), node.cpu, node.name


def _placed(instance: Instance, node: Node, reason: Reason, why: str) -> Placement:
    return Placement(node.name, _gpus(instance, node), reason, why)


def _told(instance: Instance) -> str:
    parts = [f"{instance.cpu:g} cores"]
    if instance.gpus:
        parts.append(f"{instance.gpus} × {instance.gpu / 1000:g} GPU")
    return " and ".join(parts)
