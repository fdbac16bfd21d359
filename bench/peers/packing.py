"""Six policies that place tasks with fractional GPUs on nodes, each as in the published simulator of FGD (ATC 2023).

Scores are whole numbers from 0 to 100 there, so near ties are ties, and the node that comes first wins them; the
nodes' order is drawn by seed. Both are kept, because the published results depend on them.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from services.brain.domain.fragmentation import WHOLE_GPU, FreeNodes, Ints, Request, Workload, gpu_fragments

MOST_CPU, MOST_GPU = 128_000, 8_000
"""The largest node, by which scores are normalised."""

Scores = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Task:
    """What arrives."""

    request: Request
    memory_mib: int


@dataclass
class Cluster:
    """What is free, and what was placed where; nodes stand in the order in which ties are broken."""

    cpu: Ints
    gpus: Ints
    slots: Ints
    """GPUs of each node."""
    memory: Ints
    """MiB; the policies don't look at it, but a task needs it."""
    kinds: list[dict[int, int]] = field(default_factory=list)
    """By node, how many tasks of each affinity (0: part of a GPU, k: k whole ones) it holds."""

    @classmethod
    def empty(cls, nodes: FreeNodes, memory: Ints, rng: np.random.Generator) -> "Cluster":
        """All free, in an order drawn."""
        order = rng.permutation(len(nodes))
        gpus = nodes.gpus[order].copy()
        return cls(nodes.cpu[order].copy(), gpus, (gpus > 0).sum(axis=1), memory[order].copy(), [{} for _ in order])

    @property
    def free(self) -> FreeNodes:
        """As the measure takes it."""
        return FreeNodes(self.cpu, self.gpus)

    def feasible(self, task: Request, memory: int) -> Ints:
        """Nodes that can host it, in order."""
        fits = (self.cpu >= task.cpu) & (self.memory >= memory)
        if task.gpus:
            fits &= (self.gpus >= task.gpu).sum(axis=1) >= task.gpus
        return np.flatnonzero(fits)

    def place(self, node: int, task: Request, memory: int, gpu: int | None) -> None:
        """Takes what is asked; whole GPUs are the first free ones."""
        self.cpu[node] -= task.cpu
        self.memory[node] -= memory
        if not task.gpus:
            return
        if task.gpu < WHOLE_GPU:
            assert gpu is not None
            self.gpus[node, gpu] -= task.gpu
        else:
            self.gpus[node, np.flatnonzero(self.gpus[node] == WHOLE_GPU)[: task.gpus]] = 0
        kind = affinity(task)
        self.kinds[node][kind] = self.kinds[node].get(kind, 0) + 1


def affinity(task: Request) -> int:
    """0: part of a GPU; k: k whole ones."""
    return task.gpus if task.gpu == WHOLE_GPU else 0


class Policy(ABC):
    """Scores the feasible nodes, and chooses the GPU for a task that takes a part of one: the tightest by default."""

    def placed(self, node: int) -> None:  # noqa: B027  # a hook: most policies keep nothing of a node
        """What was kept of it is of yesterday."""

    @abstractmethod
    def scores(self, cluster: Cluster, task: Request, nodes: Ints, rng: np.random.Generator) -> Scores:
        """Of each of the nodes, higher is better."""

    def gpu(self, cluster: Cluster, task: Request, node: int, rng: np.random.Generator) -> int:
        left = cluster.gpus[node]
        return int(np.argmin(np.where(left >= task.gpu, left, np.iinfo(np.int64).max)))


class Random(Policy):
    """Any node, any GPU."""

    def scores(self, cluster: Cluster, task: Request, nodes: Ints, rng: np.random.Generator) -> Scores:
        chosen = np.zeros(len(nodes), dtype=np.int64)
        chosen[rng.integers(len(nodes))] = 1
        return chosen

    def gpu(self, cluster: Cluster, task: Request, node: int, rng: np.random.Generator) -> int:
        return int(rng.choice(np.flatnonzero(cluster.gpus[node] >= task.gpu)))


class DotProduct(Policy):
    """Tetris's alignment, the smallest first."""

    def scores(self, cluster: Cluster, task: Request, nodes: Ints, rng: np.random.Generator) -> Scores:
        cpu = cluster.cpu[nodes] / MOST_CPU * (task.cpu / MOST_CPU)
        gpu = cluster.gpus[nodes].sum(axis=1) / MOST_GPU * (task.gpu * task.gpus / MOST_GPU)
        return _whole(100 * (1 - (cpu + gpu) / 2))


class Clustering(Policy):
    """Tasks that ask for as many GPUs go together; among such nodes the fullest."""

    def scores(self, cluster: Cluster, task: Request, nodes: Ints, rng: np.random.Generator) -> Scores:
        if not task.gpus:
            return np.zeros(len(nodes), dtype=np.int64)
        kind = affinity(task)
        base = np.array([_likeness(cluster.kinds[node], kind) for node in nodes], dtype=np.int64)
        used = MOST_GPU - cluster.gpus[nodes].sum(axis=1)
        scores: Scores = base + 25 * used // MOST_GPU
        return scores


def _likeness(kinds: dict[int, int], kind: int) -> int:
    if kind in kinds:
        return 75 if len(kinds) == 1 else 50
    return 0 if kinds else 25


class Packing(Policy):
    """GPUs in use first, then free GPUs on nodes in use, then free nodes."""

    def scores(self, cluster: Cluster, task: Request, nodes: Ints, rng: np.random.Generator) -> Scores:
        if not task.gpus:
            return np.zeros(len(nodes), dtype=np.int64)
        left = cluster.gpus[nodes]
        whole = (left == WHOLE_GPU).sum(axis=1)
        holding = np.where(left >= task.gpu, left, np.iinfo(np.int64).max)
        taken = np.sort(holding, axis=1)[:, : task.gpus]
        fresh = (taken == WHOLE_GPU).sum(axis=1)
        shared = np.maximum(100 - (taken * 100 // WHOLE_GPU).sum(axis=1) // 10, 50)
        in_use = np.where(fresh > 0, np.maximum(50 - fresh, 33), shared)
        scores: Scores = np.where(whole == cluster.slots[nodes], np.maximum(33 - whole, whole), in_use)
        return scores


class BestFit(Policy):
    """The least left over, CPU and GPU weighing alike."""

    def scores(self, cluster: Cluster, task: Request, nodes: Ints, rng: np.random.Generator) -> Scores:
        cpu = (cluster.cpu[nodes] - task.cpu) / MOST_CPU
        gpu = (cluster.gpus[nodes].sum(axis=1) - task.gpu * task.gpus) / MOST_GPU
        return _whole((1 - (cpu + gpu) / 2) * 100)


class Gradient(Policy):
    """FGD: the placement that adds the least fragments, by the measure of brain.

    A node's scores are kept by class of task until something is placed on it: a task changes one node only.
    """

    def __init__(self, workload: Workload) -> None:
        self._workload = workload
        self._kept: dict[Request, tuple[Scores, Ints]] = {}
        self._placed: list[int] = []
        self._seen: dict[Request, int] = {}

    def scores(self, cluster: Cluster, task: Request, nodes: Ints, rng: np.random.Generator) -> Scores:
        if task not in self._kept:
            size = len(cluster.cpu)
            self._kept[task] = np.zeros(size, dtype=np.int64), np.zeros(size, dtype=np.int64)
            stale = nodes
        else:
            changed = np.array(self._placed[self._seen[task] :], dtype=np.int64)
            stale = np.intersect1d(changed, nodes)
        self._seen[task] = len(self._placed)
        scores, gpus = self._kept[task]
        if len(stale):
            scores[stale], gpus[stale] = self._fresh(cluster, task, stale)
        return scores[nodes]

    def gpu(self, cluster: Cluster, task: Request, node: int, rng: np.random.Generator) -> int:
        return int(self._kept[task][1][node])

    def placed(self, node: int) -> None:
        self._placed.append(node)

    def _fresh(self, cluster: Cluster, task: Request, nodes: Ints) -> tuple[Scores, Ints]:
        """(score, GPU) of each node."""
        cpu, gpus = cluster.cpu[nodes], cluster.gpus[nodes]
        now = gpu_fragments(cluster.free.only(nodes), self._workload)
        if not task.gpus or task.gpu == WHOLE_GPU:
            after = gpus.copy()
            if task.gpus:
                whole = np.cumsum(after == WHOLE_GPU, axis=1)
                after[(after == WHOLE_GPU) & (whole <= task.gpus)] = 0
            then = gpu_fragments(FreeNodes(cpu - task.cpu, after), self._workload)
            return _rounded(now - then), np.zeros(len(nodes), dtype=np.int64)
        rows, slots = np.nonzero(gpus >= task.gpu)
        after = gpus[rows]
        after[np.arange(len(rows)), slots] -= task.gpu
        then = gpu_fragments(FreeNodes(cpu[rows] - task.cpu, after), self._workload)
        each = np.full(gpus.shape, -1, dtype=np.int64)
        each[rows, slots] = _rounded(now[rows] - then)
        return each.max(axis=1), each.argmax(axis=1)


def _rounded(less: NDArray[np.float64]) -> Scores:
    """Fragments that go away, thousandths of a GPU, as a score from 0 to 100."""
    return _whole(100 / (1 + np.exp(-less / WHOLE_GPU)))


def _whole(scores: NDArray[np.float64]) -> Scores:
    return scores.astype(np.int64)


POLICIES: dict[str, Callable[[Workload], Policy]] = {
    "01-Random": lambda _: Random(),
    "02-DotProd": lambda _: DotProduct(),
    "03-GpuClustering": lambda _: Clustering(),
    "04-GpuPacking": lambda _: Packing(),
    "05-BestFit": lambda _: BestFit(),
    "06-FGD": Gradient,
}
"""By the names of the published results."""


def fill(
    cluster: Cluster,
    tasks: Sequence[Task],
    policy: Policy,
    rng: np.random.Generator,
    arrived: Callable[[Task, int | None], bool],
) -> None:
    """Places tasks in order, each once, until `arrived(task, node or None)` says that it is enough."""
    for task in tasks:
        request = task.request
        nodes = cluster.feasible(request, task.memory_mib)
        node = None
        if len(nodes):
            node = int(nodes[int(np.argmax(policy.scores(cluster, request, nodes, rng)))])
            shared = request.gpus == 1 and request.gpu < WHOLE_GPU
            gpu = policy.gpu(cluster, request, node, rng) if shared else None
            cluster.place(node, request, task.memory_mib, gpu)
            policy.placed(node)
        if arrived(task, node):
            return
