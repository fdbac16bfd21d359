"""Cost, gain, and room of allocations."""

from dataclasses import replace

import numpy as np
import pytest

from recmesh.plugins.planning import Allocation, Bounds, ClusterView, Overheads, Resources, Shapes
from services.brain.domain.planning.grid import axes, clamped, enumerated
from services.brain.domain.planning.survey import Survey, allocation_at, present, price, ps_memory, survey
from tests.support.planning import GIB, SMALL, WIDE, Flat, Paper, cluster, job

NOW = Allocation(2, 2, 2.0, 2.0, 4 * GIB, 8 * GIB)


def row(shapes: Shapes, workers: int, ps: int, worker_cpu: float, ps_cpu: float) -> int:
    found = (shapes.workers == workers) & (shapes.ps == ps)
    found &= (shapes.worker_cpu == worker_cpu) & (shapes.ps_cpu == ps_cpu)
    return int(np.flatnonzero(found)[0])


def surveyed(**rest: object) -> Survey:
    one = job(now=NOW, **rest)  # type: ignore[arg-type]  # by name, as given
    return survey(one, cluster(), enumerated(axes(one.bounds, one.now)), present(one, cluster()))


def test_the_paper_s_throughput_is_reproduced() -> None:
    shapes = enumerated(axes(WIDE, NOW)).shapes
    assert Paper(batch=1.0).predict(shapes).rate[row(shapes, 8, 4, 8.0, 8.0)] == pytest.approx(1.468564, abs=1e-6)


def test_the_wide_grid_has_28_800_allocations() -> None:
    assert axes(WIDE, Allocation(4, 2, 8.0, 8.0)).size == 28_800


def test_many_allocations_are_faster_at_no_more_cost() -> None:
    """So gain per cost alone cannot rank them: it breaks where the cost is not above 0."""
    one = job(now=Allocation(4, 2, 8.0, 8.0), bounds=WIDE)
    at = present(one, cluster())
    seen = survey(one, cluster(), enumerated(axes(WIDE, one.now)), at)
    assert ((seen.cost <= 0.0) & (seen.rate > at.rate)).sum() > 2_000


def test_gain_is_net_of_each_kind_of_change() -> None:
    seen = surveyed(throughput=Flat(100.0), overheads=Overheads(10.0, 30.0, 60.0), remaining=1e9)
    h = cluster().horizon_s
    assert seen.gain[row(seen.shapes, 2, 2, 2.0, 2.0)] == 0.0
    assert seen.gain[row(seen.shapes, 3, 2, 2.0, 2.0)] == pytest.approx(-100 * 10 / h)
    assert seen.gain[row(seen.shapes, 2, 3, 2.0, 2.0)] == pytest.approx(-100 * 30 / h)
    assert seen.gain[row(seen.shapes, 2, 2, 3.0, 2.0)] == pytest.approx(-100 * 60 / h)
    assert seen.gain[row(seen.shapes, 3, 3, 2.0, 3.0)] == pytest.approx(-100 * 100 / h)


def test_what_ends_soon_has_little_time_to_pay_a_change_back() -> None:
    seen = surveyed(throughput=Flat(100.0), overheads=Overheads(workers_s=10.0), remaining=100.0 * 20.0)
    assert seen.gain[row(seen.shapes, 3, 2, 2.0, 2.0)] == pytest.approx(-50.0)
    late = surveyed(throughput=Flat(100.0), overheads=Overheads(workers_s=10.0), remaining=100.0)
    assert late.gain[row(late.shapes, 3, 2, 2.0, 2.0)] == pytest.approx(-100.0), (
        "a change that outlasts the job trains nothing"
    )


def test_predictions_are_scaled_to_what_is_measured() -> None:
    alone, measured = surveyed(), surveyed(rate=2.0 * present(job(now=NOW), cluster()).rate)
    assert measured.rate == pytest.approx(2.0 * alone.rate)


def test_cost_prices_cores_memory_and_processes() -> None:
    seen = surveyed()
    room = cluster()
    for shape in ((3, 2, 2.0, 2.0), (2, 3, 2.0, 2.0), (2, 2, 4.0, 1.0), (1, 1, 1.0, 1.0), (6, 4, 4.0, 4.0)):
        k = row(seen.shapes, *shape)
        one = job(now=NOW)
        assert seen.cost[k] == pytest.approx(price(allocation_at(one, seen.shapes, k), room) - price(NOW, room))
    one_core_more = seen.cost[row(seen.shapes, 2, 2, 2.0, 3.0)]
    assert one_core_more == 2.0
    assert seen.cost[row(seen.shapes, 3, 2, 2.0, 2.0)] == 2.0 + 0.25 + 0.5


def test_a_queued_job_costs_all_that_it_takes_and_gains_all_that_it_trains() -> None:
    seen = surveyed(queued=True)
    k = row(seen.shapes, 2, 2, 2.0, 2.0)
    assert seen.cost[k] == pytest.approx(price(NOW, cluster()))
    assert seen.gain[k] == seen.rate[k]


def test_fewer_servers_hold_the_same_rows() -> None:
    one = job(now=NOW)
    assert [ps_memory(one, ps) for ps in (1, 2, 4)] == [16 * GIB, 8 * GIB, 8 * GIB]
    assert ps_memory(job(now=NOW, ps_state_bytes=24.0 * GIB), 2) == 12 * GIB


def test_memory_of_a_server_falls_as_their_number_grows_where_the_state_is_known() -> None:
    known = replace(job(now=Allocation(2, 2, 2.0, 2.0, 2 * GIB, 8 * GIB)), ps_state_bytes=12.0 * GIB)
    assert ps_memory(known, 4) == 3 * GIB
    assert ps_memory(known, 1) == 12 * GIB
    assert ps_memory(known, 2) == 8 * GIB, "it only falls with a change that is made anyway"
    assert ps_memory(replace(known, ps_state_bytes=0.0), 4) == 8 * GIB, "unknown: as now"


def test_a_server_gets_no_more_memory_than_it_may_have() -> None:
    bounds = Bounds(SMALL.workers, SMALL.ps, SMALL.worker_cpu, SMALL.ps_cpu, ps_memory_bytes=8 * GIB)
    seen = surveyed(bounds=bounds)
    assert not seen.allowed[row(seen.shapes, 2, 1, 2.0, 2.0)]
    assert seen.allowed[row(seen.shapes, 2, 2, 2.0, 2.0)]


def test_room_counts_only_what_is_taken_beyond_what_the_job_has() -> None:
    one = job(now=NOW)
    tight = ClusterView(0.0, Resources(2.0, 4.0 * GIB))
    seen = survey(one, tight, enumerated(axes(one.bounds, one.now)), present(one, tight))
    assert seen.within_free[row(seen.shapes, 3, 2, 2.0, 2.0)]
    assert not seen.within_free[row(seen.shapes, 3, 2, 2.0, 3.0)], "four cores more, and two are free"
    assert not seen.within_free[row(seen.shapes, 2, 3, 2.0, 2.0)], "8 GiB more, and 4 are free"
    assert seen.within_free[row(seen.shapes, 1, 2, 1.0, 1.0)]


def test_cores_go_by_step_and_include_what_the_job_has() -> None:
    assert axes(Bounds(worker_cpu=(1.0, 4.0)), Allocation(1, 1, 2.5, 1.0)).worker_cpu == (1.0, 2.0, 2.5, 3.0, 4.0)
    assert axes(Bounds(worker_cpu=(0.2, 1.0)), Allocation(1, 1, 1.0, 1.0)).worker_cpu == (0.2, 0.25, 0.5, 0.75, 1.0)
    assert axes(Bounds(worker_cpu=(1.0, 2.0), cpu_step=0.5), NOW).worker_cpu == (1.0, 1.5, 2.0)


def test_the_closest_that_limits_hold() -> None:
    inside = clamped(Allocation(9, 1, 0.5, 2.0), Bounds((1, 4), (2, 2), (1.0, 2.0), (1.0, 8.0)))
    assert (inside.workers, inside.ps, inside.worker_cpu, inside.ps_cpu) == (4, 2, 1.0, 2.0)
