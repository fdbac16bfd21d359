import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recmesh.runtime.errors import InvalidArgument
from services.forecaster.domain.tiers import Stored, Tier, coarser, for_step, on_step, tiers_of

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
