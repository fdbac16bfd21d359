"""The policies that the fragmentation benchmark compares."""

import numpy as np
import pytest

from bench.peers.packing import POLICIES, Cluster, Gradient, Policy, Task, fill
from services.brain.domain.fragmentation import FreeNodes, Ints, Request, Workload

KINDS = [Request(4000, 460, 1), Request(6000, 1000, 1), Request(8000), Request(16_000, 1000, 2), Request(2000, 220, 1)]


def nodes() -> FreeNodes:
    gpus = np.zeros((12, 4), dtype=np.int64)
    for index in range(12):
        gpus[index, : 1 + index % 4] = 1000
    return FreeNodes(np.full(12, 32_000, dtype=np.int64), gpus)


def tasks(rng: np.random.Generator) -> list[Task]:
    return [Task(KINDS[index], 1000) for index in rng.integers(len(KINDS), size=60)]


def filled(policy: Policy, seed: int = 0) -> tuple[Cluster, list[int | None]]:
    rng = np.random.default_rng(seed)
    cluster = Cluster.empty(nodes(), np.full(12, 50_000, dtype=np.int64), rng)
    found: list[int | None] = []

    def arrived(_: Task, node: int | None) -> bool:
        found.append(node)
        return False

    fill(cluster, tasks(rng), policy, rng, arrived)
    return cluster, found


@pytest.mark.parametrize("name", sorted(POLICIES))
def test_no_policy_gives_out_more_than_there_is(name: str) -> None:
    cluster, found = filled(POLICIES[name](Workload.of(KINDS)))
    assert (cluster.cpu >= 0).all() and (cluster.gpus >= 0).all() and (cluster.memory >= 0).all()
    assert any(node is None for node in found) and any(node is not None for node in found)


class Forgetful(Gradient):
    """Scores all nodes anew for each task."""

    def scores(self, cluster: Cluster, task: Request, nodes: Ints, rng: np.random.Generator) -> Ints:
        self._kept.pop(task, None)
        return super().scores(cluster, task, nodes, rng)


def test_scores_that_are_kept_lead_to_the_same_places_as_scores_made_anew() -> None:
    work = Workload.of(KINDS)
    for seed in range(3):
        assert filled(Gradient(work), seed)[1] == filled(Forgetful(work), seed)[1]


def test_a_task_without_memory_for_it_is_not_placed() -> None:
    rng = np.random.default_rng(0)
    cluster = Cluster.empty(nodes(), np.full(12, 100, dtype=np.int64), rng)
    fill(cluster, [Task(KINDS[0], 101)], POLICIES["05-BestFit"](Workload.of(KINDS)), rng, lambda _, node: node is None)
    assert (cluster.cpu == 32_000).all()
