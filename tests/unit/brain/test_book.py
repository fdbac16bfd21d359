"""Who holds what, as it is given out and as jobs tell it."""

import math

import pytest

from recmesh.plugins.planning import Resources
from services.brain.app import book as module
from services.brain.app.book import PATIENCE_S, Book
from services.brain.domain.model import Free, RolePlan
from tests.support.gateway import FakeClock

GIB = 1 << 30


def workers(count: int, cpu: float = 1.0) -> RolePlan:
    return RolePlan("worker", count, cpu, GIB)


def book(clock: FakeClock, cores: float = 10.0) -> Book:
    return Book({"ads": Resources(cores, 100 * GIB)}, clock=clock, interval_s=180.0)


def cores(held: Book) -> float:
    left = held.left("ads")
    assert left is not None
    return left.cpu


def test_a_first_plan_holds_until_the_job_tells_what_it_has() -> None:
    clock = FakeClock()
    made = book(clock)
    made.give("a", "ads", [workers(8), RolePlan("ps", 1, 1.0, GIB)])
    assert cores(made) == 1.0 and made.room(Free(20.0, 0)).cpu == 11.0
    assert made.left("ads", but="a") == Resources(10.0, 100 * GIB) and made.room(Free(20.0, 0), but="a").cpu == 20.0
    clock.time += 300.0
    assert cores(made) == 1.0 and made.room(Free(20.0, 0)).cpu == 20.0      # its images may be pulled still
    made.see("a", "ads", [workers(1), RolePlan("ps", 1, 1.0, GIB)])         # brain could not be heard in time
    assert cores(made) == 8.0


def test_what_was_promised_counts_in_its_own_cluster() -> None:
    made = book(FakeClock())
    made.give("a", "ads", [workers(8)], cluster="east")
    assert made.room(Free(20.0, cluster="east")).cpu == 12.0
    assert made.room(Free(20.0, cluster="west")).cpu == 20.0
    assert cores(made) == 2.0, "a quota is for all of them"


def test_a_job_that_is_silent_too_long_holds_nothing() -> None:
    clock = FakeClock()
    made = book(clock)
    made.see("a", "ads", [workers(8)])
    clock.time += PATIENCE_S
    assert cores(made) == 2.0
    clock.time += 1.0
    assert cores(made) == 10.0


def test_growth_is_kept_back_until_it_runs_and_what_shrinks_is_held_until_it_is_gone() -> None:
    clock = FakeClock()
    made = book(clock)
    made.see("a", "ads", [workers(4)])
    made.give("a", "ads", [workers(6)])
    made.see("a", "ads", [workers(4)])
    assert cores(made) == 4.0 and made.room(Free(5.0, None)).cpu == 3.0
    made.see("a", "ads", [workers(6)])
    assert cores(made) == 4.0 and made.room(Free(3.0, None)).cpu == 3.0
    made.give("a", "ads", [workers(2)])
    made.see("a", "ads", [workers(6)])
    assert cores(made) == 4.0
    made.see("a", "ads", [workers(2)])
    assert cores(made) == 8.0


def test_a_promise_of_larger_processes_is_not_fulfilled_by_as_many_small_ones() -> None:
    made = book(FakeClock())
    made.see("a", "ads", [workers(2)])
    made.give("a", "ads", [workers(2, 4.0)])
    made.see("a", "ads", [workers(2)])
    assert cores(made) == 2.0


@pytest.mark.parametrize("settled", [True, False])
def test_a_promise_that_is_not_carried_out_ends_with_its_verdict_or_in_time(settled: bool) -> None:
    clock = FakeClock()
    made = book(clock)
    made.see("a", "ads", [workers(2)])
    made.give("a", "ads", [workers(8)])
    assert cores(made) == 2.0
    if settled:
        made.settle("a")
    else:
        clock.time += 181.0
    assert cores(made) == 8.0 and made.room(Free(9.0, None)).cpu == 9.0


def test_roles_that_a_job_has_no_more_are_free() -> None:
    made = book(FakeClock())
    made.see("a", "ads", [workers(2), RolePlan("data", 4, 1.0, GIB)])
    made.see("a", "ads", [RolePlan("data", 3, 1.0, GIB)], whole=False)
    assert cores(made) == 5.0
    made.see("a", "ads", [workers(2)])
    assert cores(made) == 8.0
    made.forget("a")
    assert made.quotas_left() == {"ads": Resources(10.0, 100 * GIB)} and made.left("search") is None


def test_a_process_without_a_limit_counts_as_a_core() -> None:
    made = book(FakeClock())
    made.see("a", "ads", [workers(3, 0.0)])
    assert cores(made) == 7.0


def test_accelerators_bound_where_they_are_known() -> None:
    made = Book(clock=FakeClock())
    assert made.room(Free(), kinds=["a100"]).gpus == {"a100": math.inf}
    made.give("a", "", [RolePlan("worker", 2, 1.0, GIB, 1.0, "a100")])
    assert made.room(Free(gpus={"a100": 3.0}), kinds=["a100"]).gpus == {"a100": 1.0}


def test_the_longest_silent_job_goes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_JOBS", 2)
    made = book(FakeClock())
    for name in ("a", "b", "a", "c"):
        made.see(name, "ads", [workers(1 if name == "a" else 3)])
    assert cores(made) == 6.0
