import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.brain.domain.fragmentation import (
    FreeNodes,
    Request,
    Workload,
    cpu_fragment_share,
    cpu_fragments,
    fits,
    gpu_fragment_share,
    gpu_fragments,
    gpu_unusable,
)


def nodes(*rows: tuple[int, list[int]]) -> FreeNodes:
    return FreeNodes(np.array([cpu for cpu, _ in rows]), np.array([gpus for _, gpus in rows]))


def test_a_task_that_fits_wastes_only_the_gpus_too_small_for_it() -> None:
    free = nodes((8000, [1000, 300, 200, 0]))
    assert gpu_fragments(free, Workload.of([Request(4000, 300, 1)])) == pytest.approx([200])


def test_a_task_without_enough_cpu_wastes_all_gpus() -> None:
    free = nodes((3999, [1000, 300, 200, 0]))
    assert gpu_fragments(free, Workload.of([Request(4000, 300, 1)])) == pytest.approx([1500])


def test_a_task_of_two_gpus_needs_two_whole_ones() -> None:
    work = Workload.of([Request(1000, 1000, 2)])
    assert gpu_fragments(nodes((8000, [1000, 999])), work) == pytest.approx([1999])
    assert gpu_fragments(nodes((8000, [1000, 1000])), work) == pytest.approx([0])


def test_a_task_that_asks_for_no_gpu_can_use_none() -> None:
    assert gpu_fragments(nodes((8000, [1000, 500])), Workload.of([Request(1000)])) == pytest.approx([1500])


def test_classes_weigh_by_their_share() -> None:
    work = Workload.of([Request(1000, 1000, 1)] * 3 + [Request(9000, 1000, 1)])
    assert gpu_fragments(nodes((8000, [1000])), work) == pytest.approx([250])


def test_half_as_many_cores_per_gpu_as_a_service_needs_strand_six_of_eight_gpus() -> None:
    """MATH section 4: a host of 96 CPU and 8 GPU, services of 48 CPU and 1 GPU."""
    service = Request(48_000, 1000, 1)
    host = nodes((96_000, [1000] * 8))
    placed = 0
    while bool(fits(host, Workload.of([service]))[0, 0]):
        host.cpu[0] -= service.cpu
        host.gpus[0, np.flatnonzero(host.gpus[0] == 1000)[0]] = 0
        placed += 1
    assert placed == 2
    assert gpu_fragments(host, Workload.of([service])) == pytest.approx([6000])


def test_cpu_is_wasted_where_a_task_finds_no_gpu() -> None:
    work = Workload.of([Request(1000, 500, 1), Request(4000)])
    assert cpu_fragments(nodes((5000, [400])), work) == pytest.approx([2500])
    assert cpu_fragments(nodes((5000, [500])), work) == pytest.approx([0])


def test_rare_classes_are_left_out_and_shares_sum_to_one() -> None:
    work = Workload.of([Request(1)] * 90 + [Request(2)] * 8 + [Request(3)] * 2, popular=0.95)
    assert list(work.cpu) == [1, 2]
    assert work.share == pytest.approx([90 / 98, 8 / 98])


def test_a_workload_without_tasks_is_refused() -> None:
    with pytest.raises(ValueError, match="no classes"):
        Workload.of([])


def test_a_full_cluster_has_no_fragments() -> None:
    full = nodes((0, [0, 0]))
    work = Workload.of([Request(1, 1, 1)])
    assert gpu_fragment_share(full, work) == 0 and cpu_fragment_share(full, work) == 0


REQUEST = st.one_of(
    st.builds(Request, st.integers(0, 16).map(lambda cores: cores * 1000)),
    st.builds(Request, st.integers(0, 16).map(lambda cores: cores * 1000), st.integers(1, 999), st.just(1)),
    st.builds(Request, st.integers(0, 16).map(lambda cores: cores * 1000), st.just(1000), st.integers(1, 4)),
)
NODE = st.tuples(st.integers(0, 16_000), st.lists(st.integers(0, 1000), min_size=4, max_size=4))


@given(st.lists(NODE, min_size=1, max_size=4), st.lists(REQUEST, min_size=1, max_size=6))
def test_fragments_lie_between_none_and_all_that_is_free(
    rows: list[tuple[int, list[int]]], tasks: list[Request]
) -> None:
    free, work = nodes(*rows), Workload.of(tasks)
    each = gpu_fragments(free, work)
    assert (each >= -1e-9).all() and (each <= free.gpus.sum(axis=1) + 1e-6).all()
    each = cpu_fragments(free, work)
    assert (each >= -1e-9).all() and (each <= free.cpu + 1e-6).all()


@given(NODE, REQUEST)
def test_the_columns_agree_with_the_definition_read_one_by_one(row: tuple[int, list[int]], task: Request) -> None:
    cpu, gpus = row
    hosts = cpu >= task.cpu and task.gpus > 0 and sum(left >= task.gpu for left in gpus) >= task.gpus
    expected = sum(left for left in gpus if left < task.gpu) if hosts else sum(gpus)
    assert gpu_unusable(nodes(row), Workload.of([task]))[0, 0] == expected
