"""Nodes, and which of them holds which processes."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from recmesh.plugins.planning import Floats, Resources


@dataclass(slots=True)
class Pods:
    """Equal processes of one role of one job, and how many of them are on which node."""

    size: Resources
    where: dict[int, int] = field(default_factory=dict)

    @property
    def count(self) -> int:
        """On all nodes."""
        return sum(self.where.values())


class Cluster:
    """Free resources per node. A process is never split, and never on more than what is free."""

    def __init__(self, nodes: Sequence[Resources]) -> None:
        self.nodes = tuple(nodes)
        self.kinds = tuple(sorted({kind for node in nodes for kind in node.gpus}))
        self.total = _sum(nodes)
        self._cpu = np.array([node.cpu for node in nodes], dtype=np.float64)
        self._memory = np.array([node.memory_bytes for node in nodes], dtype=np.float64)
        self._gpus = {
            kind: np.array([node.gpus.get(kind, 0.0) for node in nodes], dtype=np.float64) for kind in self.kinds
        }
        self.used = Resources()
        self.down: set[int] = set()
        """Nodes that are away."""
        self.freed = 0
        """How often something was given back: who was refused need not ask again before."""

    @property
    def free(self) -> Resources:
        """Over all nodes; a process may still find no node that has enough of it at once."""
        free = self.total.plus(self.used, times=-1.0)
        for node in sorted(self.down):
            free = free.plus(self.nodes[node], times=-1.0)
        return free

    def free_of(self, node: int) -> Resources:
        """What one node has left, were it there."""
        gpus = {kind: float(free[node]) for kind, free in self._gpus.items()}
        return Resources(float(self._cpu[node]), float(self._memory[node]), gpus)

    def add(self, pods: Pods, count: int) -> bool:
        """Places `count` more, all or none, on the nodes that they fill best; False where they do not fit."""
        if count <= 0:
            return True
        room = self._room(pods.size)
        fitting = np.flatnonzero(room > 0)
        if room[fitting].sum() < count:
            return False
        for node in fitting[np.argsort(self._cpu[fitting], kind="stable")]:
            many = min(count, int(room[node]))
            pods.where[int(node)] = pods.where.get(int(node), 0) + many
            self._take(int(node), pods.size, float(many))
            count -= many
            if not count:
                break
        return True

    def add_all(self, wanted: Sequence[tuple[Pods, int]]) -> bool:
        """All of all of them, or nothing."""
        added: list[tuple[Pods, int]] = []
        for pods, count in wanted:
            if self.add(pods, count):
                added.append((pods, max(0, count)))
                continue
            for done, many in added:
                self._withdraw(done, many)
            return False
        return True

    def remove(self, pods: Pods, count: int) -> None:
        """Takes `count` away, from the nodes that hold the fewest of them first, so that whole nodes come free."""
        self._withdraw(pods, count)
        self.freed += 1

    def _withdraw(self, pods: Pods, count: int) -> None:
        for node in sorted(pods.where, key=lambda node: (pods.where[node], node)):
            if count <= 0:
                break
            many = min(count, pods.where[node])
            pods.where[node] -= many
            if not pods.where[node]:
                del pods.where[node]
            self._take(node, pods.size, -float(many))
            count -= many

    def lose(self, pods: Pods, node: int) -> int:
        """Those on a node that fails are gone; returns how many."""
        many = pods.where.pop(node, 0)
        if many:
            self._take(node, pods.size, -float(many))
        return many

    def fail(self, node: int) -> None:
        """Takes nothing until it is repaired. Whatever it held must be lost before."""
        self.down.add(node)

    def repair(self, node: int) -> None:
        """It is there again, and empty."""
        self.down.discard(node)
        self.freed += 1

    def could_ever_hold(self, size: Resources, count: int) -> bool:
        """Whether an empty cluster has room."""
        return sum(int(_times(node, size)) for node in self.nodes) >= count

    def _room(self, size: Resources) -> Floats:
        room = np.full(len(self.nodes), np.inf)
        if size.cpu:
            room = np.minimum(room, self._cpu / size.cpu)
        if size.memory_bytes:
            room = np.minimum(room, self._memory / size.memory_bytes)
        for kind, many in size.gpus.items():
            if many:
                room = np.minimum(room, self._gpus.get(kind, np.zeros(len(self.nodes))) / many)
        room[list(self.down)] = 0.0
        whole: Floats = np.floor(room + 1e-9)
        return whole

    def _take(self, node: int, size: Resources, many: float) -> None:
        self._cpu[node] -= size.cpu * many
        self._memory[node] -= size.memory_bytes * many
        for kind, each in size.gpus.items():
            self._gpus[kind][node] -= each * many
        self.used = self.used.plus(size, times=many)


def _times(node: Resources, size: Resources) -> float:
    shares = [node.cpu / size.cpu] if size.cpu else []
    shares += [node.memory_bytes / size.memory_bytes] if size.memory_bytes else []
    shares += [node.gpus.get(kind, 0.0) / many for kind, many in size.gpus.items() if many]
    return min(shares, default=0.0) + 1e-9


def _sum(nodes: Sequence[Resources]) -> Resources:
    total = Resources()
    for node in nodes:
        total = total.plus(node)
    return total
