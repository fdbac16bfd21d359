"""Nodes and processes."""

import numpy as np
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from recmesh.plugins.planning import Resources
from services.brain.simulator.cluster import Cluster, Pods

GIB = 1 << 30


def test_processes_fill_the_fullest_node_that_has_room() -> None:
    cluster = Cluster([Resources(8, 32 * GIB), Resources(4, 32 * GIB)])
    pods = Pods(Resources(2, GIB))
    assert cluster.add(pods, 3)
    assert pods.where == {1: 2, 0: 1}


def test_what_fits_the_sum_but_no_node_is_refused() -> None:
    cluster = Cluster([Resources(4, GIB), Resources(4, GIB)])
    assert Resources(6, 0).within(cluster.free)
    assert not cluster.add(Pods(Resources(6, 0)), 1)
    assert cluster.used == Resources()


def test_a_refused_pair_leaves_no_trace() -> None:
    cluster = Cluster([Resources(4, GIB)])
    servers, workers = Pods(Resources(1, 0)), Pods(Resources(2, 0))
    assert not cluster.add_all([(servers, 2), (workers, 2)])
    assert servers.count == 0 and cluster.free.cpu == 4 and cluster.freed == 0


def test_accelerators_bound_too() -> None:
    cluster = Cluster([Resources(64, GIB, {"gpu": 2.0}), Resources(64, GIB)])
    pods = Pods(Resources(1, 0, {"gpu": 1.0}))
    assert not cluster.add(pods, 3)
    assert cluster.add(pods, 2) and pods.where == {0: 2}


def test_what_is_taken_away_clears_the_emptiest_nodes_first() -> None:
    cluster = Cluster([Resources(4, GIB), Resources(4, GIB)])
    pods = Pods(Resources(1, 0))
    cluster.add(pods, 5)
    cluster.remove(pods, 1)
    assert sorted(pods.where.values()) == [4] and cluster.freed == 1


@hypothesis_settings(deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 16), st.integers(0, 64)), min_size=1, max_size=5),
    st.lists(st.tuples(st.booleans(), st.integers(0, 3), st.integers(1, 9)), max_size=30),
)
def test_no_node_is_ever_over_full_and_all_of_it_comes_back(
    nodes: list[tuple[int, int]], steps: list[tuple[bool, int, int]]
) -> None:
    cluster = Cluster([Resources(float(cpu), float(memory)) for cpu, memory in nodes])
    sizes = [Resources(1.0, 4.0), Resources(2.0), Resources(0.5, 16.0), Resources(3.0, 1.0)]
    all_pods = [Pods(size) for size in sizes]
    for adding, which, count in steps:
        if adding:
            cluster.add(all_pods[which], count)
        else:
            cluster.remove(all_pods[which], min(count, all_pods[which].count))
        for node in range(len(nodes)):
            free = cluster.free_of(node)
            assert free.cpu >= -1e-9 and free.memory_bytes >= -1e-9
        held = sum(pods.count * pods.size.cpu for pods in all_pods)
        assert np.isclose(cluster.total.cpu - cluster.free.cpu, held)
    for pods in all_pods:
        cluster.remove(pods, pods.count)
    assert np.isclose(cluster.free.cpu, cluster.total.cpu)
    assert np.isclose(cluster.free.memory_bytes, cluster.total.memory_bytes)


def test_a_node_that_is_away_takes_nothing_and_counts_for_nothing() -> None:
    cluster = Cluster([Resources(8.0, 8 * GIB), Resources(8.0, 8 * GIB)])
    pods = Pods(Resources(4.0, GIB))
    assert cluster.add(pods, 3)
    held = dict(pods.where)
    assert cluster.lose(pods, 0) == held[0] and pods.count == held[1]
    cluster.fail(0)
    assert cluster.free.cpu == 8.0 - 4.0 * held[1] and cluster.total.cpu == 16.0
    assert not cluster.add(Pods(Resources(4.0, GIB)), 2 - held[1] + 1)
    freed = cluster.freed
    cluster.repair(0)
    assert cluster.free.cpu == 16.0 - 4.0 * held[1] and cluster.freed == freed + 1
    assert cluster.add(pods, held[0])
