"""Fragments of GPU and CPU: brain's measure against published results, and DLRM serving whole and split.

1. Six policies of 'Beware of fragmentation' (ATC 2023) place openb's tasks on openb's GPU nodes, in the same way as its
   simulator (order shuffled by seed, tasks drawn again once all have come). brain's measure of what they leave is
   held against the published series at each percent of demand, both as means over seeds.
2. On the nodes as FGD leaves them at 90 % of GPU allocated: what the DLRM serving trace (NSDI 2025) cannot use, as
   whole services ('before': per application n_HN of them, CPU = HN + CN · n_CN/n_HN) and as the split instances that
   the trace holds ('after').
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from bench.criteo import DataMissing
from bench.figures import Result
from bench.mesh import say
from bench.peers.packing import POLICIES, Cluster, Task, fill
from bench.workloads import openb
from services.brain.domain.fragmentation import (
    Floats,
    FreeNodes,
    Ints,
    Request,
    Workload,
    cpu_unusable,
    fits,
    gpu_fragments,
    gpu_unusable,
)

SEEDS, QUICK_SEEDS = 10, 2
QUICK = ("01-Random", "05-BestFit", "06-FGD")
DEMAND = 100
"""Percent of the cluster's GPUs up to which demand is followed."""
CROWDED = 0.9
POPULAR = 0.95
"""Classes that make up 95 % of the tasks, as published."""


@dataclass(frozen=True, slots=True)
class Course:
    """What one policy left with one seed."""

    share: Floats
    """Percent of idle GPU that is fragments, at each percent of demand, (DEMAND + 1,)."""
    crowded: FreeNodes | None
    """When CROWDED of the GPUs were allocated; None: they never were."""


def run(*, quick: bool) -> Result:
    """Both parts, with the same seeds."""
    try:
        published, tasks = openb.published(), openb.pods()
        nodes, memory, services = openb.nodes(), openb.memory_mib(), openb.serving()
    except DataMissing as missing:
        say(str(missing))
        return Result("fragmentation", {}, {"missing": str(missing)})
    seeds = QUICK_SEEDS if quick else SEEDS
    figures: dict[str, float] = {}
    errors: dict[str, float] = {}
    crowded: list[FreeNodes] = []
    for name in QUICK if quick else tuple(POLICIES):
        courses = [course(name, nodes, memory, tasks, seed) for seed in range(seeds)]
        ours = np.mean([each.share for each in courses], axis=0)
        theirs = published[name].mean(axis=0)[: DEMAND + 1]
        errors[name] = float(np.max(np.abs(ours - theirs)))
        short = name.split("-")[1].lower()
        figures[f"{short}_at_90_pct"] = float(ours[90])
        figures[f"{short}_at_90_published_pct"] = float(theirs[90])
        figures[f"error_{short}_pct"] = errors[name]
        say(
            f"{name}: {ours[90]:.1f} % at 90 % of demand, published {theirs[90]:.1f}; off by {errors[name]:.2f} at most"
        )
        if name == "06-FGD":
            crowded = [each.crowded for each in courses if each.crowded is not None]
    figures = {"fgd_max_abs_error_pct": max(errors.values()), **disaggregation(crowded, services, nodes), **figures}
    return Result(
        "fragmentation",
        figures,
        {
            "seeds": seeds,
            "policies": len(errors),
            "nodes": len(nodes),
            "tasks": len(tasks),
            "classes": len(Workload.of((task.request for task in tasks), popular=POPULAR)),
            "error": f"largest difference of the means over seeds at any demand from 0 to {DEMAND} %, in points",
            "published": "10 seeds, other draws than ours",
            "before": "whole services by the formula, even where no node could hold one; *_fitting leaves those out",
            "reductions": "on the GPU nodes that FGD has filled to 90 % of GPU; paper .53 and .27",
            "applications": len(services),
            "instances": sum(len(hn) + len(cn) for hn, cn in services.values()),
            "quick": f"{seeds} seeds instead of {SEEDS}, {len(QUICK)} policies instead of {len(POLICIES)}"
            if quick
            else "",
        },
    )


def course(name: str, nodes: FreeNodes, memory: Ints, tasks: Sequence[Task], seed: int) -> Course:
    """One policy from the empty cluster on; the mean of the measure over the tasks that came at each percent."""
    rng = np.random.default_rng(seed)
    workload = Workload.of((task.request for task in tasks), popular=POPULAR)
    cluster = Cluster.empty(nodes, memory, rng)
    total = int(nodes.gpus.sum())
    queue = [tasks[index] for index in rng.permutation(len(tasks))]
    queue += [tasks[index] for index in rng.integers(len(tasks), size=len(tasks) // 4)]
    each = gpu_fragments(cluster.free, workload)
    sums, counts = np.zeros(DEMAND + 1), np.zeros(DEMAND + 1)
    demand = 0
    crowded: FreeNodes | None = None

    def arrived(task: Task, node: int | None) -> bool:
        nonlocal demand, crowded
        demand += task.request.gpu * task.request.gpus
        level = round(100 * demand / total)
        if level > DEMAND:
            return True
        if node is not None:
            each[node] = gpu_fragments(cluster.free.only(slice(node, node + 1)), workload)[0]
        idle = int(cluster.gpus.sum())
        sums[level] += 100 * each.sum() / idle
        counts[level] += 1
        if crowded is None and idle <= (1 - CROWDED) * total:
            crowded = FreeNodes(cluster.cpu.copy(), cluster.gpus.copy())
        return False

    fill(cluster, queue, POLICIES[name](workload), rng, arrived)
    known = np.flatnonzero(counts)  # a task of eight GPUs may step over a percent: its neighbours tell
    return Course(np.interp(np.arange(DEMAND + 1), known, sums[known] / counts[known]), crowded)


def whole(hn: Sequence[Request], cn: Sequence[Request]) -> list[Request]:
    """An application's services before they are split: one per HN, with its share of the CN's CPU."""
    cpu = round((sum(each.cpu for each in hn) + sum(each.cpu for each in cn)) / len(hn))
    return [Request(cpu, each.gpu, each.gpus) for each in hn]


def disaggregation(
    crowded: Sequence[FreeNodes], services: dict[str, tuple[list[Request], list[Request]]], empty: FreeNodes
) -> dict[str, float]:
    """Reductions of fragments, as means over the clusters given.

    Of each resource by the classes that ask for it: all ask for CPU; of the split instances only HN ask for GPU.
    (`gpu_fragments_after_any` counts CN too, which FGD's definition says can use no GPU at all.)
    """
    before = {name: whole(hn, cn) for name, (hn, cn) in services.items()}
    hosted = {name for name, tasks in before.items() if bool(fits(empty, Workload.of(tasks)).any())}
    figures: dict[str, float] = {"applications_that_fit_whole": len(hosted) / len(services)}
    for suffix, chosen in (("", services.keys()), ("_fitting", hosted)):
        old = Workload.of(task for name in chosen for task in before[name])
        new = Workload.of(task for name in chosen for task in (*services[name][0], *services[name][1]))
        asks_gpu = new.gpus > 0
        shares = np.array(
            [
                [
                    _share(cpu_unusable(free, old), old.share, free.cpu),
                    _share(cpu_unusable(free, new), new.share, free.cpu),
                    _share(cpu_unusable(free, new), new.share * asks_gpu, free.cpu),
                    _share(cpu_unusable(free, new), new.share * ~asks_gpu, free.cpu),
                    _share(gpu_unusable(free, old), old.share, free.gpus),
                    _share(gpu_unusable(free, new), new.share * asks_gpu, free.gpus),
                    _share(gpu_unusable(free, new), new.share, free.gpus),
                ]
                for free in crowded
            ]
        ).mean(axis=0)
        cpu_before, cpu_after, cpu_hn, cpu_cn, gpu_before, gpu_after, gpu_all = (float(each) for each in shares)
        figures |= {
            f"cpu_reduction{suffix}": 1 - cpu_after / cpu_before,
            f"gpu_reduction{suffix}": 1 - gpu_after / gpu_before,
            f"cpu_fragments_before{suffix}": cpu_before,
            f"cpu_fragments_after{suffix}": cpu_after,
            f"cpu_fragments_after_hn{suffix}": cpu_hn,
            f"cpu_fragments_after_cn{suffix}": cpu_cn,
            f"gpu_fragments_before{suffix}": gpu_before,
            f"gpu_fragments_after_hn{suffix}": gpu_after,
            f"gpu_fragments_after_any{suffix}": gpu_all,
        }
    return figures


def _share(unusable: Floats, weights: Floats, free: Ints) -> float:
    """Σ_n Σ_m weight_m · F_n(m) / free."""
    return float((unusable @ (weights / weights.sum())).sum()) / int(free.sum())
