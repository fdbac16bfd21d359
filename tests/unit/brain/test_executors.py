import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.brain.domain.executors import horizontal, oom, vertical
from services.brain.domain.executors.horizontal import Executors, Signal, Tried
from services.brain.domain.executors.vertical import GIB, Limits, Use

RULE = horizontal.Rule()


def executors(fill: float | None, count: int = 8, *history: Tried, **more: int) -> Executors:
    return Executors(count, signal=None if fill is None else Signal(fill), history=history, **more)


def test_empty_buffers_ask_for_more_executors_and_full_ones_for_fewer() -> None:
    starved = horizontal.decide(executors(0.05), 0.0, RULE)
    idle = horizontal.decide(executors(0.98), 0.0, RULE)
    assert starved.reason is horizontal.Reason.STARVED and starved.count > 8
    assert idle.reason is horizontal.Reason.IDLE and idle.count < 8


def test_within_the_band_nothing_is_changed() -> None:
    assert horizontal.decide(executors(0.5), 0.0, RULE).reason is horizontal.Reason.IN_BAND


def test_idle_cpu_and_buffers_pull_the_same_way() -> None:
    rule = horizontal.Rule(weights=(1.0, 1.0, 0.0))
    starved = horizontal.level(Signal(buffer_fill=0.0, cpu_idle=0.0), rule)
    idle = horizontal.level(Signal(buffer_fill=1.0, cpu_idle=1.0), rule)
    assert (starved, idle) == (0.0, 1.0)


@pytest.mark.parametrize("weights", [(0.0, 0.0, 0.0), (1.0, -1.0, 0.0)])
def test_weights_that_mean_nothing_are_refused(weights: tuple[float, float, float]) -> None:
    with pytest.raises(ValueError, match="weights"):
        horizontal.level(Signal(0.5), horizontal.Rule(weights=weights))


def test_after_a_change_nothing_happens_for_the_cooldown() -> None:
    before = Tried(100.0, "by-one", 0.1, None)
    assert horizontal.decide(executors(1.0, 8, before), 399.0, RULE).reason is horizontal.Reason.COOLING
    assert horizontal.decide(executors(1.0, 8, before), 400.0, RULE).reason is horizontal.Reason.IDLE
    assert horizontal.decide(executors(0.0, 8, before), 129.0, RULE).reason is horizontal.Reason.COOLING
    assert horizontal.decide(executors(0.0, 8, before), 130.0, RULE).reason is horizontal.Reason.STARVED


def test_a_count_that_starved_is_not_gone_back_to_for_a_while() -> None:
    before = Tried(0.0, "doubling", 0.1, 0.9, count=4, wanted=8)
    assert horizontal.decide(executors(1.0, 8, before), 1000.0, RULE).count == 5
    assert horizontal.decide(executors(1.0, 16, before), 1000.0, RULE).count == 8
    assert horizontal.decide(executors(1.0, 6, before), 1000.0, RULE).count == 5
    held = horizontal.decide(executors(1.0, 5, before), 1000.0, RULE)
    assert (held.count, held.reason) == (5, horizontal.Reason.STARVED_BEFORE)
    assert horizontal.decide(executors(1.0, 5, before), 4000.0, RULE).count == 3


def test_more_that_bring_nothing_are_taken_back_and_not_tried_again_for_a_while() -> None:
    useless = Tried(0.0, "doubling", 0.1, 0.12, count=4, wanted=8, rate_before=1000.0, rate_after=1050.0)
    undone = horizontal.decide(executors(0.12, 8, useless), 40.0, RULE)
    assert (undone.count, undone.reason) == (4, horizontal.Reason.NO_USE)
    undo = Tried(40.0, "undo", 0.12, 0.1, count=8, wanted=4, rate_before=1050.0, rate_after=1000.0)
    held = horizontal.decide(executors(0.1, 4, useless, undo), 80.0, RULE)
    assert (held.count, held.reason) == (4, horizontal.Reason.NO_USE)
    assert horizontal.decide(executors(0.1, 4, useless, undo), 601.0, RULE).reason is horizontal.Reason.STARVED
    assert horizontal.decide(executors(1.0, 5, useless, undo), 601.0, RULE).count < 5     # that was no starving
    helped = Tried(0.0, "doubling", 0.1, 0.12, count=4, wanted=8, rate_before=1000.0, rate_after=1500.0)
    assert horizontal.decide(executors(0.12, 8, helped), 40.0, RULE).count > 8


def test_idleness_never_adds_any() -> None:
    before = Tried(0.0, "doubling", 0.1, 0.9, count=4, wanted=8)
    for count in (2, 4, 5):
        found = horizontal.decide(executors(1.0, count, before), 1000.0, RULE)
        assert (found.count, found.reason) == (count, horizontal.Reason.STARVED_BEFORE)


def test_the_strategy_that_helped_before_is_tried_again() -> None:
    history = (Tried(0.0, "proportional", 0.1, 0.12), Tried(500.0, "by-one", 0.1, 0.25))
    found = horizontal.decide(executors(0.1, 8, *history), 1000.0, RULE)
    assert (found.strategy, found.count) == ("by-one", 9)


def test_a_strategy_that_changed_nothing_twice_rests() -> None:
    rule = horizontal.Rule(rest_s=3600.0)
    useless = tuple(Tried(500.0 * index, name, 0.0, 0.0) for index in range(2) for name in ("proportional", "doubling"))
    found = horizontal.decide(executors(0.0, 8, *useless), 1000.0, rule)
    assert found.strategy == "by-one"
    all_useless = (*useless, Tried(500.0, "by-one", 0.0, 0.0), Tried(600.0, "by-one", 0.0, 0.0))
    assert horizontal.decide(executors(0.0, 8, *all_useless), 1000.0, rule).reason is horizontal.Reason.NO_STRATEGY
    later = horizontal.decide(executors(0.0, 8, *all_useless), 5000.0, rule)
    assert later.reason is horizontal.Reason.STARVED


def test_at_the_limit_it_says_so() -> None:
    assert horizontal.decide(executors(0.0, 8, most=8), 0.0, RULE).reason is horizontal.Reason.AT_LIMIT
    assert horizontal.decide(executors(1.0, 1), 0.0, RULE).reason is horizontal.Reason.AT_LIMIT


def test_without_a_report_nothing_is_known() -> None:
    assert horizontal.decide(executors(None), 0.0, RULE).reason is horizontal.Reason.UNKNOWN


@given(st.floats(0, 1), st.integers(1, 64), st.integers(1, 64))
def test_counts_stay_within_their_limits_and_never_more_than_double(fill: float, count: int, most: int) -> None:
    count = min(count, most)
    found = horizontal.decide(executors(fill, count, most=most), 0.0, RULE)
    assert 1 <= found.count <= most
    assert count / 2 <= found.count <= max(2 * count, count + 1)


# Vertical scaling


@pytest.mark.parametrize(("samples", "expected"), [([2, 2, 3, 5], 0.83333), ([0, 1, 2, 3, 4, 5], 0.45667), ([3], 0.0)])
def test_the_trend_is_as_computed_by_hand(samples: list[float], expected: float) -> None:
    assert vertical.trend(samples) == pytest.approx(expected, abs=1e-5)


def test_the_newest_difference_weighs_most() -> None:
    """With the weights reversed, [2, 2, 3, 5] would give .38889 (MATH section 3)."""
    assert vertical.trend([2, 2, 3, 5]) > vertical.trend([2, 4, 5, 5])
    assert vertical.trend([2, 4, 5, 5]) == pytest.approx(0.38889, abs=1e-5)


@given(st.floats(-5, 5), st.integers(1, 12))
def test_on_a_line_the_trend_is_its_slope_times_the_harmonic_mean(slope: float, steps: int) -> None:
    harmonic = sum(1 / k for k in range(1, steps + 1))
    assert vertical.trend([slope * k for k in range(steps + 1)]) == pytest.approx(slope * harmonic / steps, abs=1e-9)


def test_cores_that_nobody_uses_are_given_back() -> None:
    """Primus: 400 executors from 10 to 6 cores."""
    found = vertical.cpu(Use(10.0, (5.0, 5.1, 5.0, 4.9, 5.0), peak=5.2), Limits(1, 16))
    assert found.reason is vertical.Reason.SHRINK and found.size == pytest.approx(6.0)


def test_a_process_at_its_limit_grows() -> None:
    found = vertical.cpu(Use(2.0, (1.9, 2.0, 2.0)), Limits(1, 16))
    assert found.reason is vertical.Reason.GROW and found.size > 2.2


def test_nothing_is_changed_for_crumbs() -> None:
    found = vertical.cpu(Use(10.0, (8.5, 8.5, 8.5)), Limits(1, 16))
    assert (found.reason, found.size) == (vertical.Reason.KEEP, 10.0)
    assert "change of less than" in found.why


def test_a_pin_is_a_pin_and_one_sample_is_none() -> None:
    assert vertical.cpu(Use(4.0, (1.0, 1.0)), Limits(4, 4)).reason is vertical.Reason.PINNED
    assert vertical.cpu(Use(4.0, (1.0,)), Limits(1, 8)).reason is vertical.Reason.UNKNOWN


def test_a_role_that_wants_more_than_its_limit_says_so() -> None:
    found = vertical.cpu(Use(4.0, (4.0, 4.0)), Limits(1, 4))
    assert (found.reason, found.size) == (vertical.Reason.AT_LIMIT, 4.0)


def test_memory_never_goes_below_the_peak_though_use_falls() -> None:
    found = vertical.memory(Use(40.0 * GIB, (20.0 * GIB, 2.0 * GIB, 1.0 * GIB)), Limits(GIB, 64.0 * GIB))
    assert found.reason is vertical.Reason.SHRINK and 20 * GIB <= found.size < 40 * GIB


def test_memory_foreseen_forbids_shrinking_below_it() -> None:
    use = Use(40.0 * GIB, (10.0 * GIB, 10.0 * GIB))
    found = vertical.memory(use, Limits(GIB, 64.0 * GIB), foreseen=30.0 * GIB)
    assert found.reason is vertical.Reason.FORECAST and found.size >= 30 * GIB


@given(
    st.lists(st.floats(0, 60), min_size=2, max_size=12),
    st.floats(1, 64),
    st.floats(0, 60),
    st.floats(0.5, 8),
    st.floats(8, 64),
)
def test_memory_is_never_planned_below_its_peak(
    samples: list[float], held: float, foreseen: float, least: float, most: float
) -> None:
    use = Use(held * GIB, tuple(each * GIB for each in samples))
    found = vertical.memory(use, Limits(least * GIB, most * GIB), foreseen=foreseen * GIB)
    assert found.size >= max(samples) * GIB or found.size == use.held > max(samples) * GIB
    assert found.why


# Memory ahead


def saturating(samples: float, a: float = 1e6, b: float = 5e6) -> int:
    return round(a * samples / (b + samples))


def grown(curve: "object", table: oom.Table = oom.Table(16, state_values=16)) -> oom.Growth:  # noqa: B008  # frozen
    return oom.Growth(table, tuple(oom.Rows(n, curve(n)) for n in range(1_000_000, 6_000_000, 500_000)))  # type: ignore[operator]  # a function


@pytest.mark.parametrize(
    ("dim", "width_bytes", "state", "words"),
    [(16, 4, 0, 24), (16, 4, 16, 40), (16, 2, 16, 32), (7, 2, 1, 16), (1, 4, 1, 8), (64, 4, 128, 200)],
)
def test_a_row_is_padded_to_eight_words_with_its_header(dim: int, width_bytes: int, state: int, words: int) -> None:
    index = oom.ENTRY_BYTES / oom.EMPTIEST
    assert oom.Table(dim, width_bytes, state).row_bytes == 4 * words + index


def test_a_row_costs_values_state_and_index() -> None:
    assert oom.Table(16, state_values=16).row_bytes - oom.Table(16).row_bytes == 64
    assert oom.Table(16, width_bytes=2).row_bytes - oom.Table(16).row_bytes == -32


def test_a_curve_that_saturates_is_carried_on_and_stays_below_the_bound() -> None:
    growth = grown(saturating)
    assert growth.rows_at(50e6) == pytest.approx(saturating(50e6), rel=0.01)
    assert growth.bound_at(50e6) > 2 * growth.rows_at(50e6)


def test_new_ids_for_ever_are_a_line() -> None:
    growth = grown(lambda n: n // 10)
    assert growth.rows_at(50e6) == pytest.approx(5e6, rel=1e-3)


@given(st.floats(1e4, 1e8), st.floats(1e4, 1e9), st.floats(6e6, 1e10))
def test_the_linear_bound_is_never_below_the_saturating_curve(a: float, b: float, samples: float) -> None:
    growth = grown(lambda n: saturating(n, a, b))
    assert growth.rows_at(samples) <= growth.bound_at(samples) + 1e-6


def server(name: str, limit_gib: float, rows_scale: float = 1.0) -> oom.Server:
    return oom.Server(name, 0.2 * GIB, limit_gib * GIB, (grown(lambda n: round(rows_scale * saturating(n, 2e7, 2e7))),))


def test_servers_are_looked_at_one_by_one_because_slots_are_skewed() -> None:
    progress = oom.Progress(5.5e6, 1e8, 1000.0)
    found = oom.needs([server("cool", 4), server("hot", 4, 3.0)], progress)
    assert [each.server for each in found] == ["hot", "cool"]
    assert found[0].over_in_s < math.inf == found[1].over_in_s
    assert oom.size_for_all(found) == found[0].need_bytes > 4 * GIB


def test_it_acts_only_when_the_time_left_is_about_what_a_change_takes() -> None:
    slow, fast = (oom.needs([server("hot", 4, 3.0)], oom.Progress(5.5e6, 1e9, rate))[0] for rate in (500.0, 5000.0))
    assert not slow.act and fast.act
    assert 5 < slow.over_in_s / fast.over_in_s < 15


def test_a_job_that_ends_before_needs_nothing() -> None:
    found = oom.needs([server("hot", 4, 3.0)], oom.Progress(5.5e6, 5.6e6, 1000.0))[0]
    assert found.over_in_s == math.inf and not found.act and found.need_bytes < 4 * GIB


def test_what_no_server_may_hold_is_spread_over_more() -> None:
    found = oom.needs([server("a", 4, 3.0), server("b", 4, 3.0)], oom.Progress(5.5e6, 1e9, 5000.0))
    many = oom.servers_for(found, static_bytes=0.2 * GIB, most_bytes=4 * GIB)
    assert many > 2 and oom.servers_for(found, static_bytes=0.2 * GIB, most_bytes=64 * GIB) == 2
    rows = sum(each.need_bytes - 0.2 * GIB for each in found)
    assert rows / many <= 3.8 * GIB
    assert oom.servers_for(found, static_bytes=5 * GIB, most_bytes=4 * GIB) == 0


def test_a_reserve_of_everything_is_refused() -> None:
    with pytest.raises(ValueError, match="reserve"):
        oom.needs([], oom.Progress(0, 1, 1), oom.Foresight(reserve=1.0))


def test_too_few_profiles_are_carried_on_as_a_line() -> None:
    growth = oom.Growth(oom.Table(8), (oom.Rows(100, 50), oom.Rows(200, 75)))
    assert growth.rows_at(400) == growth.bound_at(400) == pytest.approx(125)
    assert np.isfinite(oom.Growth(oom.Table(8), ()).rows_at(10))
