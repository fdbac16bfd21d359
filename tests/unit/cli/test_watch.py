"""The rules of supervision."""

import pytest

from recmesh.cli.mesh.probes import Answer
from recmesh.cli.mesh.watch import FIRST_DELAY_S, LARGEST_DELAY_S, SILENCE_S, STEADY_S, Action, State, Watch


def ready_watch(at: float = 0.0) -> Watch:
    watch = Watch()
    watch.started(at)
    watch.heard(Answer.READY, at)
    return watch


def test_a_component_starts_once_it_may() -> None:
    watch = Watch()
    assert watch.decide(0, alive=False, may_start=False) is Action.NOTHING
    assert watch.decide(0, alive=False, may_start=True) is Action.START


def test_delays_double_up_to_the_largest() -> None:
    watch, now, delays = Watch(), 0.0, []
    for _ in range(10):
        watch.started(now)
        watch.died(now, exit_code=1)
        delays.append(watch.next_start - now)
        now = watch.next_start
    assert delays[:3] == [FIRST_DELAY_S, 2 * FIRST_DELAY_S, 4 * FIRST_DELAY_S]
    assert delays[-1] == LARGEST_DELAY_S and max(delays) == LARGEST_DELAY_S


def test_no_start_before_the_delay_is_over() -> None:
    watch = ready_watch()
    watch.died(1.0, exit_code=None)
    assert watch.decide(1.0, alive=False, may_start=True) is Action.NOTHING
    assert watch.decide(1.0 + FIRST_DELAY_S, alive=False, may_start=True) is Action.START
    assert watch.restarts == 1


def test_a_steady_component_starts_again_with_the_first_delay() -> None:
    watch = ready_watch()
    for _ in range(5):
        watch.died(1.0, exit_code=1)
    watch.started(2.0)
    watch.heard(Answer.READY, 2.0)
    watch.died(2.0 + STEADY_S, exit_code=1)
    assert watch.next_start == 2.0 + STEADY_S + FIRST_DELAY_S


def test_a_crash_loop_after_short_readiness_keeps_its_long_delay() -> None:
    watch = ready_watch()
    for at in range(5):
        watch.started(at)
        watch.heard(Answer.READY, at)
        watch.died(at, exit_code=1)
    assert watch.next_start - 4 == FIRST_DELAY_S * 2**4


@pytest.mark.parametrize(("exit_code", "deaths"), [(78, 1), (73, 1), (64, 1), (75, 3), (1, 3), (None, 3)])
def test_a_start_is_hopeless_after_bad_settings_at_once_and_else_after_three_deaths(
    exit_code: int | None, deaths: int
) -> None:
    watch = Watch()
    for death in range(1, deaths + 1):
        watch.started(death)
        watch.died(death, exit_code=exit_code)
        assert watch.hopeless is (death == deaths)


def test_a_component_that_was_ready_is_never_hopeless_until_it_fails_to_start_again() -> None:
    watch = ready_watch()
    watch.died(1.0, exit_code=78)
    assert not watch.hopeless
    watch.started(2.0)
    watch.died(3.0, exit_code=78)
    assert watch.hopeless
    watch.started(4.0)
    watch.heard(Answer.READY, 5.0)
    assert not watch.hopeless


def test_one_that_answers_nobody_for_long_is_killed() -> None:
    watch = ready_watch()
    watch.heard(Answer.SILENT, 1.0)
    assert watch.state is State.UNREADY
    assert watch.decide(SILENCE_S - 1, alive=True, may_start=True) is Action.NOTHING
    assert watch.decide(SILENCE_S, alive=True, may_start=True) is Action.KILL


def test_one_that_says_not_ready_is_never_killed() -> None:
    watch = ready_watch()
    for at in range(0, 1000, 10):
        watch.heard(Answer.NOT_READY, at)
        assert watch.decide(at, alive=True, may_start=True) is Action.NOTHING
    assert watch.state is State.UNREADY


def test_one_that_is_ready_again_counts_as_ready() -> None:
    watch = ready_watch()
    watch.heard(Answer.NOT_READY, 1.0)
    watch.heard(Answer.READY, 2.0)
    assert watch.state is State.READY and watch.since == 2.0


def test_a_long_start_is_not_a_hang() -> None:
    watch = Watch()
    watch.started(0.0)
    watch.heard(Answer.REFUSED, 1.0)
    assert watch.decide(10 * SILENCE_S, alive=True, may_start=True) is Action.NOTHING
