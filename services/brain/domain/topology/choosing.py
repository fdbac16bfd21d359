"""Which nodes an instance may have (filter), and which are best (prioritize).

As in `domain/placement.py`: one network pod for all instances; the switch that has most of them, then the next; d per
node; devices and network card (or cores and card) closest, then least left over; bandwidth of a switch within its
share. Whether a node has room is the scheduler's to judge, before it asks.

The first instance goes further than the paper, which says only that it considers all pods: where it is known how many
follow (by those that wait already, or by what it says itself), it goes under the switch that holds all of them, beside
what other applications there are still to have, and has the least room left; where none does, into the network pod that
does so. Else under the switch with the most room.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from services.brain.domain.placement import Reason
from services.brain.domain.topology.fleet import Fleet
from services.brain.domain.topology.model import Kept, Machine, Objection, Rules, Tenant, is_device

BEST = 10
"""MaxExtenderPriority of k8s.io/kube-scheduler/extender/v1."""
MOST_SHAPES = 4
"""Of waiting instances that are looked at: those with most of them."""
_NEAR = 1e-9


@dataclass(frozen=True, slots=True)
class Ranking:
    """Scores from 0 to BEST of all that were asked for; exactly one has BEST."""

    scores: dict[str, int]
    best: str
    switch: str
    reason: Reason
    why: str


def keep(asked: Tenant, names: Sequence[str], fleet: Fleet, rules: Rules) -> Kept:
    """Nodes that it may have; all of them for what is of no application."""
    if not asked.app:
        return Kept(list(names))
    on_node = fleet.instances(asked.app)
    under, homes = _homes(on_node, fleet)
    pinned = homes if rules.one_network_pod else set()
    closed = _closed(asked, under, fleet, rules)
    app = asked.app.partition("/")[2]
    elsewhere = f"{app} lives in network pod {', '.join(sorted(each or '(unnamed)' for each in pinned))}"
    enough = f"{asked.most_per_node} of {app} are on the node: no more are allowed"
    kept = Kept()
    for name in names:
        machine = fleet.machines.get(name)
        if machine is None:
            kept.refused[name] = Objection.UNKNOWN_NODE, "brain has not heard of the node yet"
        elif pinned and machine.network_pod not in pinned:
            kept.refused[name] = Objection.OTHER_NETWORK_POD, elsewhere
        elif 0 < asked.most_per_node <= on_node[name]:
            kept.refused[name] = Objection.NODE_HAS_ENOUGH, enough
        elif machine.switch in closed:
            kept.refused[name] = closed[machine.switch]
        else:
            kept.names.append(name)
    return kept


def rank(asked: Tenant, names: Sequence[str], fleet: Fleet, rules: Rules) -> Ranking | None:
    """None for what is of no application, or where no node is known."""
    by_switch: dict[str, list[Machine]] = {}
    for name in names:
        machine = fleet.machines.get(name)
        if machine is not None:
            by_switch.setdefault(machine.switch, []).append(machine)
    if not asked.app or not by_switch:
        return None
    on_node = fleet.instances(asked.app)
    under, homes = _homes(on_node, fleet)
    if under:
        order, reason, why = _beside_others(asked, by_switch, under, homes, fleet)
    else:
        order, why = _first(asked, by_switch, fleet)
        reason = Reason.FIRST
    best = min(by_switch[order[0]], key=lambda machine: _distance(asked, machine, fleet))
    home = best.network_pod
    scores = dict.fromkeys(names, 0)
    for place, switch in enumerate(order):
        for machine in by_switch[switch]:
            scores[machine.name] = max(1, BEST - 1 - place) if machine.network_pod == home else 0
    scores[best.name] = BEST
    return Ranking(scores, best.name, order[0], reason, why)


def _homes(on_node: Mapping[str, int], fleet: Fleet) -> tuple[Counter[str], set[str]]:
    """(instances by switch, network pods that have some)."""
    under: Counter[str] = Counter()
    homes = set()
    for name, many in on_node.items():
        machine = fleet.machines.get(name)
        if machine is not None:
            under[machine.switch] += many
            homes.add(machine.network_pod)
    return under, homes


def _closed(asked: Tenant, under: Mapping[str, int], fleet: Fleet, rules: Rules) -> dict[str, tuple[Objection, str]]:
    """Switches that may have no more of it, and why."""
    closed = {}
    if asked.most_per_switch:
        app = asked.app.partition("/")[2]
        text = f"{asked.most_per_switch} of {app} are under its switch: no more are allowed"
        closed = {
            switch: (Objection.SWITCH_HAS_ENOUGH, text)
            for switch, many in under.items()
            if many >= asked.most_per_switch
        }
    wanted = asked.requests.get(rules.nic, 0.0)
    if wanted:
        capacity: dict[str, float] = {}
        promised: defaultdict[str, float] = defaultdict(float)
        for machine in fleet.machines.values():
            if machine.switch_capacity is not None:
                capacity[machine.switch] = max(machine.switch_capacity, capacity.get(machine.switch, 0.0))
                promised[machine.switch] += fleet.used(machine.name).get(rules.nic, 0.0)
        for switch, most in capacity.items():
            if promised[switch] + wanted > rules.switch_share * most + _NEAR:
                text = (
                    f"switch {switch} has promised {promised[switch]:g} of its {most:g} {rules.nic}: {wanted:g} more "
                    f"would pass {rules.switch_share:g} of it"
                )
                closed.setdefault(switch, (Objection.NO_BANDWIDTH, text))
    return closed


def _beside_others(
    asked: Tenant, by_switch: Mapping[str, Sequence[Machine]], under: Mapping[str, int], homes: set[str], fleet: Fleet
) -> tuple[list[str], Reason, str]:
    """Switches by how many instances they have, those of their network pods before others; then by room."""
    app, room = asked.app.partition("/")[2], _slots_of(asked, by_switch, fleet)
    away = {switch: machines[0].network_pod not in homes for switch, machines in by_switch.items()}
    order = sorted(by_switch, key=lambda each: (away[each], -under.get(each, 0), -room[each], each))
    most = max(under.values())
    if under.get(order[0], 0) == most:
        return order, Reason.BEST_SWITCH, f"{order[0]} has most of {app}: {most}"
    full = min(each for each, many in under.items() if many == most)
    where = "another network pod" if away[order[0]] else "the same network pod"
    return order, Reason.NEXT_SWITCH, f"{full} has most of {app}, and cannot hold it; {order[0]} is next, in {where}"


def _first(asked: Tenant, by_switch: Mapping[str, Sequence[Machine]], fleet: Fleet) -> tuple[list[str], str]:
    """Switches in order, and why the first one is that."""
    app, room = asked.app.partition("/")[2], _slots_of(asked, by_switch, fleet)
    group = _group(asked, fleet)
    total, spoken_for = sum(group.values()), _spoken_for(asked.app, fleet)
    under: dict[str, list[Machine]] = {switch: [] for switch in by_switch}
    for machine in fleet.machines.values() if total > 1 else ():    # its peers may want what it does not: all count
        if machine.switch in under:
            under[machine.switch].append(machine)
    pods: dict[str, list[str]] = {}
    for switch, machines in by_switch.items():
        pods.setdefault(machines[0].network_pod, []).append(switch)
    pod_of = {switch: pod for pod, switches in pods.items() for switch in switches}
    pod_room = {pod: sum(room[switch] for switch in switches) for pod, switches in pods.items()}
    if total > 1:
        whole = [switch for switch, machines in under.items() if _holds(machines, group, fleet, spoken_for)]
        if whole:
            best = min(whole, key=lambda each: (room[each], -pod_room[pod_of[each]], each))
            order = [best, *sorted((each for each in by_switch if each != best), key=lambda each: (-room[each], each))]
            return order, f"first of {app}'s {total}: {best} holds all, and has the least room beside"
        wide = [
            pod for pod, switches in pods.items()
            if _holds([machine for each in switches for machine in under[each]], group, fleet, spoken_for)
        ]
        if wide:
            pod = min(wide, key=lambda each: (pod_room[each], each))
            order = sorted(by_switch, key=lambda each: (pod_of[each] != pod, -room[each], each))
            return order, f"first of {app}'s {total}: no switch holds all, network pod {pod or '(unnamed)'} does"
    order = sorted(by_switch, key=lambda each: (-pod_room[pod_of[each]] if total > 1 else 0, -room[each], each))
    return order, f"first of {app}: {order[0]} has the most room, for {room[order[0]]} like it"


@dataclass(frozen=True)
class _Shape:
    """Instances that ask for the same."""

    requests: tuple[tuple[str, float], ...]
    most_per_node: int
    most_per_switch: int


def _shape(tenant: Tenant) -> _Shape:
    scarce_first = sorted(tenant.requests.items(), key=lambda each: (not is_device(each[0]), each[0]))
    return _Shape(tuple(scarce_first), tenant.most_per_node, tenant.most_per_switch)


def _group(asked: Tenant, fleet: Fleet) -> Counter[_Shape]:
    """How many of each shape are to come: those that wait, and as many like this one as are missing beside them."""
    own = _shape(asked)
    group: Counter[_Shape] = Counter({own: 1})
    group.update(_shape(each) for each in fleet.waiting(asked.app) if each.uid != asked.uid)
    group[own] += max(0, asked.instances - group.total())
    return Counter(dict(group.most_common(MOST_SHAPES)))


def _spoken_for(app: str, fleet: Fleet) -> dict[str, dict[str, float]]:
    """By switch and resource, what other applications that have begun there are still to have: pods that wait, and
    those that they say will come. Without it the first pods of many applications would all see the same room."""
    found: dict[str, dict[str, float]] = {}
    for members in fleet.others(app):
        waiting = [each for each in members if not each.node]
        missing = max(each.instances for each in members) - len(members)
        if len(waiting) == len(members) or (not waiting and missing <= 0):
            continue
        under = Counter(
            machine.switch for each in members if each.node and (machine := fleet.machines.get(each.node)) is not None
        )
        if under:
            amounts = found.setdefault(under.most_common(1)[0][0], defaultdict(float))
            for each, many in [*((one, 1) for one in waiting), (next(iter(members)), max(0, missing))]:
                for resource, amount in each.requests.items():
                    amounts[resource] += amount * many
    return found


def _holds(
    machines: Sequence[Machine], group: Mapping[_Shape, int], fleet: Fleet,
    spoken_for: Mapping[str, Mapping[str, float]],
) -> bool:
    """Whether they have room for all: for each shape by itself, and for the sums of what all ask for, beside what
    others are still to have there."""
    for shape, many in group.items():
        if 0 < shape.most_per_switch < many:
            return False
        left = many
        for machine in machines:
            left -= _slots(shape, machine, fleet)
            if left <= 0:
                break
        if left > 0:
            return False
    wanted: defaultdict[str, float] = defaultdict(float)
    for shape, many in group.items():
        for resource, amount in shape.requests:
            wanted[resource] += amount * many
    for switch in {machine.switch for machine in machines}:
        for resource, amount in spoken_for.get(switch, {}).items():
            if resource in wanted:
                wanted[resource] += amount
    return all(sum(fleet.free(each, name) for each in machines) >= amount - _NEAR for name, amount in wanted.items())


def _slots_of(asked: Tenant, by_switch: Mapping[str, Sequence[Machine]], fleet: Fleet) -> dict[str, int]:
    shape = _shape(asked)
    return {switch: sum(_slots(shape, each, fleet) for each in under) for switch, under in by_switch.items()}


def _slots(shape: _Shape, machine: Machine, fleet: Fleet) -> int:
    """Instances of the shape that still fit; those that are there already are not taken off d."""
    most = float(shape.most_per_node or machine.allocatable.get("pods", math.inf))
    have, used = machine.allocatable, fleet.used(machine.name)
    for resource, amount in shape.requests:
        fit = (have.get(resource, 0.0) - used.get(resource, 0.0) + _NEAR) // amount
        if fit < most:
            most = fit
            if most <= 0:
                return 0
    return int(most) if most < math.inf else 0


def _distance(asked: Tenant, machine: Machine, fleet: Fleet) -> tuple[int, float, float, str]:
    """Hops to the network card, then what is left over of devices, as shares, then of cores; then the name."""
    hops = machine.gpu_nic_hops if asked.has_devices else machine.cpu_nic_hops
    left = sum(
        fleet.free(machine, resource) / amount
        for resource, amount in machine.allocatable.items()
        if amount > 0 and is_device(resource)
    )
    return hops, left, fleet.free(machine, "cpu"), machine.name
