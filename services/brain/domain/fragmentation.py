"""How much of what is free cannot be used: the measure of 'Beware of fragmentation' (USENIX ATC 2023), for GPU and CPU.

A workload is a mix of classes m (CPU, GPU), each with its share. For a node n, F_n(m) is what m cannot use of it:

- m does not fit (too little CPU, too few GPUs that hold it), or m asks for no GPU: all that is free;
- m fits: the free parts of the GPUs that are each too small for it.

F_n = Σ_m share_m · F_n(m), and the cluster's is the sum over nodes. A task that asks for a part of one GPU (a MIG
profile, say) is a class like any other. CPU alike (MATH section 4): F_cpu = Σ_n Σ_m share_m · free_cpu(n) · [m does
not fit n]; a fitting task can use all CPU that is free.

Integers, in thousandths of a core and of a GPU, so that 'fits' never hangs on a rounding.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

WHOLE_GPU = 1000


@dataclass(frozen=True, slots=True)
class FreeNodes:
    """What is free now. `gpus` has one column per GPU slot of the largest node; 0 where a node has none."""

    cpu: Ints
    """Thousandths of a core, (nodes,)."""
    gpus: Ints
    """Thousandths of each GPU, (nodes, slots)."""

    def __len__(self) -> int:
        return len(self.cpu)

    def only(self, which: slice | Ints) -> "FreeNodes":
        """Some of them."""
        return FreeNodes(self.cpu[which], self.gpus[which])


@dataclass(frozen=True, slots=True, order=True)
class Request:
    """What one task asks for. A part of a GPU: `gpus` 1 and `gpu` below 1000; whole ones: `gpu` 1000."""

    cpu: int
    gpu: int = 0
    gpus: int = 0


@dataclass(frozen=True)
class Workload:
    """Classes of tasks as columns, each (classes,), and what share of the tasks each is; shares sum to 1."""

    cpu: Ints
    gpu: Ints
    gpus: Ints
    share: Floats

    def __len__(self) -> int:
        return len(self.share)

    @cached_property
    def levels(self) -> tuple[Ints, Ints]:
        """Sizes of GPU parts that are asked for, and which of them each class asks for: there are few."""
        levels, of_class = np.unique(self.gpu, return_inverse=True)
        return levels, of_class

    @classmethod
    def of(cls, requests: Iterable[Request], *, popular: float = 1.0) -> "Workload":
        """The classes seen, by their number, the most frequent first, until they make up `popular` of all tasks.

        'Beware of fragmentation' takes 0.95; the shares are of those that are left.

        Raises:
            ValueError: there is no task.
        """
        counts = sorted(Counter(requests).items(), key=lambda item: (item[1], item[0]), reverse=True)
        total = sum(many for _, many in counts)
        if not total:
            raise ValueError("a workload without tasks has no classes")
        so_far = np.cumsum([many for _, many in counts])
        kept = counts[: int(np.searchsorted(so_far, popular * total - 1e-9)) + 1]
        share = np.array([many for _, many in kept], dtype=np.float64)
        return cls(
            np.array([each.cpu for each, _ in kept], dtype=np.int64),
            np.array([each.gpu for each, _ in kept], dtype=np.int64),
            np.array([each.gpus for each, _ in kept], dtype=np.int64),
            share / share.sum(),
        )


def gpu_unusable(nodes: FreeNodes, workload: Workload) -> Floats:
    """F_n(m) for GPU, thousandths, (nodes, classes)."""
    free = nodes.gpus.sum(axis=1)
    levels, level_of = workload.levels
    too_small = nodes.gpus[:, None, :] < levels[None, :, None]
    crumbs = np.where(too_small, nodes.gpus[:, None, :], 0).sum(axis=2)[:, level_of]
    holding = (~too_small).sum(axis=2)[:, level_of]
    usable = (
        (holding >= workload.gpus) & (nodes.cpu[:, None] >= workload.cpu) & (workload.gpus > 0) & (workload.gpu > 0)
    )
    unusable: Floats = np.where(usable, crumbs, free[:, None]).astype(np.float64)
    return unusable


def cpu_unusable(nodes: FreeNodes, workload: Workload) -> Floats:
    """F_n(m) for CPU, thousandths of a core, (nodes, classes)."""
    unusable: Floats = np.where(fits(nodes, workload), 0, nodes.cpu[:, None]).astype(np.float64)
    return unusable


def fits(nodes: FreeNodes, workload: Workload) -> NDArray[np.bool_]:
    """Whether a node can host a task of a class, (nodes, classes)."""
    holding = (nodes.gpus[:, None, :] >= np.maximum(workload.gpu, 1)[None, :, None]).sum(axis=2)
    enough: NDArray[np.bool_] = (holding >= workload.gpus) & (nodes.cpu[:, None] >= workload.cpu)
    return enough


def gpu_fragments(nodes: FreeNodes, workload: Workload) -> Floats:
    """F_n for GPU, thousandths, (nodes,)."""
    return gpu_unusable(nodes, workload) @ workload.share


def cpu_fragments(nodes: FreeNodes, workload: Workload) -> Floats:
    """F_n for CPU, thousandths of a core, (nodes,)."""
    return cpu_unusable(nodes, workload) @ workload.share


def gpu_fragment_share(nodes: FreeNodes, workload: Workload) -> float:
    """F / free GPU of the cluster; 0 when none is free."""
    free = int(nodes.gpus.sum())
    return float(gpu_fragments(nodes, workload).sum()) / free if free else 0.0


def cpu_fragment_share(nodes: FreeNodes, workload: Workload) -> float:
    """F_cpu / free CPU of the cluster; 0 when none is free."""
    free = int(nodes.cpu.sum())
    return float(cpu_fragments(nodes, workload).sum()) / free if free else 0.0
