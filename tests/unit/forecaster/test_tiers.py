import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from recmesh.runtime.errors import InvalidArgument
from services.forecaster.domain.tiers import Rows, Stored, Tier, coarser, for_step, grid_of, on_step, tiers_of

DAY = 86_400.0
USUAL = tiers_of(((2, 60), (15, 600), (90, 3600)), setting="RECMESH_RATE_TIERS")


@st.composite
def past(draw: st.DrawFn) -> list[Stored]:
    """Rows of a 10 s series, some missing; old ones on 60 s, older ones on 600 s, in whole buckets."""
    values = draw(st.dictionaries(st.integers(0, 400), st.floats(0, 1e6), min_size=1))
    rows = [Stored(10.0 * place, value, 10.0) for place, value in sorted(values.items())]
    first, second = sorted((draw(st.integers(0, 7)) * 600.0, draw(st.integers(0, 7)) * 600.0))
    oldest = coarser([row for row in rows if row.at < first], 600.0)
    older = coarser([row for row in rows if first <= row.at < second], 60.0)
    return [*oldest, *older, *(row for row in rows if row.at >= second)]


def total(rows: list[Stored]) -> float:
    return math.fsum(row.value * row.steps for row in rows)


@given(past(), st.sampled_from([60.0, 600.0, 3600.0]))
def test_means_keep_the_sum_and_the_number_of_what_was_measured(rows: list[Stored], step_s: float) -> None:
    means = coarser([row for row in rows if row.step_s < step_s], step_s)
    kept = [row for row in rows if row.step_s >= step_s]
    assert total([*means, *kept]) == pytest.approx(total(rows))
    assert sum(row.steps for row in [*means, *kept]) == sum(row.steps for row in rows)


@given(past())
def test_means_of_means_are_means(rows: list[Stored]) -> None:
    at_once = coarser(rows, 3600.0)
    in_turn = coarser(coarser(rows, 600.0), 3600.0)
    assert [(row.at, row.steps) for row in in_turn] == [(row.at, row.steps) for row in at_once]
    assert [row.value for row in in_turn] == pytest.approx([row.value for row in at_once])


@given(past())
def test_all_tiers_are_read_on_one_grid_as_if_measured_on_it(rows: list[Stored]) -> None:
    found = on_step(rows, 600.0)
    expected = coarser(rows, 600.0)
    assert [point.at for point in found] == [row.at for row in expected]
    assert [point.value for point in found] == pytest.approx([row.value for row in expected])


@given(past())
def test_on_the_finest_step_a_mean_holds_for_all_steps_that_it_covers(rows: list[Stored]) -> None:
    found = {point.at: point.value for point in on_step(rows, 10.0)}
    for row in rows:
        for step in range(round(row.step_s / 10)):
            assert found.pop(row.at + 10.0 * step) == pytest.approx(row.value)
    assert not found


def test_a_step_that_divides_no_tier_takes_its_part_of_each_row() -> None:
    rows = [Stored(0.0, 6.0, 600.0, 60), Stored(600.0, 12.0, 600.0, 60)]
    found = on_step(rows, 400.0)
    assert [point.at for point in found] == [0.0, 400.0, 800.0]
    assert [point.value for point in found] == pytest.approx([6.0, 9.0, 12.0])
    assert on_step([], 60.0) == []


@pytest.mark.parametrize(
    ("own_step_s", "steps"), [(10.0, [60, 600, 3600]), (7.0, [63, 630, 3780]), (60.0, [600, 3600]), (3600.0, [])]
)
def test_steps_of_tiers_nest_whatever_the_own_step_is(own_step_s: float, steps: list[float]) -> None:
    assert [tier.step_s for tier in for_step(own_step_s, USUAL)] == steps


def test_a_tier_that_the_own_step_has_reached_keeps_its_age_for_the_next() -> None:
    assert for_step(60.0, USUAL)[0] == Tier(15 * DAY, 600.0)


@pytest.mark.parametrize("pairs", [((0, 60),), ((2, 0),), ((2, 60), (2, 600)), ((2, 600), (9, 60)), ((2, 1e6),)])
def test_tiers_that_do_not_grow_are_refused_by_their_setting(pairs: tuple[tuple[float, float], ...]) -> None:
    with pytest.raises(InvalidArgument) as caught:
        tiers_of(pairs, setting="RECMESH_RATE_TIERS")
    assert caught.value.violations[0].path == "RECMESH_RATE_TIERS"


def columns(rows: list[Stored]) -> Rows:
    return Rows.of(np.array([(row.at, row.value, row.step_s, row.steps) for row in rows], dtype=np.float64))


@given(past())
def test_a_grid_has_what_is_known_of_every_step(rows: list[Stored]) -> None:
    grid = grid_of(columns(rows), 10.0, limit=10_000)
    known = on_step(rows, 10.0)
    assert grid.start == known[0].at and grid.missing is not None
    place = np.round((np.array([point.at for point in known]) - grid.start) / 10).astype(int)
    assert grid.values[place] == pytest.approx([point.value for point in known])
    assert np.flatnonzero(~grid.missing).tolist() == place.tolist()
    assert len(grid_of(columns(rows), 10.0, limit=7).values) <= 7


def test_steps_within_longer_means_are_told_apart_where_enough_were_measured_as_they_are() -> None:
    old = [Stored(60.0 * at, float(at), 60.0, 6) for at in range(10)]
    new = [Stored(600.0 + 10 * at, 1.0, 10.0) for at in range(300)]
    grid = grid_of(columns([*old, *new]), 10.0, limit=10_000)
    assert grid.coarse is not None and grid.unseen is not None
    assert np.flatnonzero(grid.coarse).tolist() == np.flatnonzero(grid.unseen).tolist() == list(range(60))
    assert grid_of(columns([*old, *new]), 60.0, limit=10_000).coarse is None
    assert grid_of(columns([*old, *new[:30]]), 10.0, limit=10_000).coarse is None


@pytest.mark.parametrize(
    ("now", "last", "end"),
    [
        (0.0, 350, 360.0),      # measured to its end
        (0.0, 340, 300.0),
        (395.0, 380, 360.0),    # three of six values of the newest step
        (360.0, 350, 360.0),
        (361.0, 340, 360.0),    # the last one is late
        (361.0, 310, 300.0),
        (125.0, 380, 120.0),    # of the past
    ],
)
def test_only_whole_steps_are_known(now: float, last: int, end: float) -> None:
    rows = [Stored(float(at), float(at), 10.0) for at in range(0, last + 1, 10)]
    assert grid_of(columns(rows), 60.0, now=now, limit=100).end == end


def test_a_mean_that_reaches_beyond_now_is_not_known_yet() -> None:
    rows = [Stored(0.0, 1.0, 3600.0, 60), Stored(3600.0, 99.0, 3600.0, 60)]
    grid = grid_of(columns(rows), 60.0, now=5400.0, limit=1000)
    assert grid.end == 3600 and grid.values.max() == 1
    assert not len(grid_of(columns(rows), 60.0, now=1800.0, limit=1000).values)
