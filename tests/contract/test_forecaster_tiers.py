"""How a store makes old rates coarser, whichever SQL server holds it."""

from collections.abc import Iterator
from typing import Any

import pytest
from sqlalchemy import event, insert, select

from recmesh.runtime.sql import reading, writing
from services.forecaster.domain.series import Point
from services.forecaster.domain.tiers import Stored, tiers_of
from services.forecaster.store import Observation, SqlStore, coarsen
from services.forecaster.store.tables import coarse, rates
from tests.support.postgres import database_url, postgres_address

__all__ = ["database_url", "postgres_address"]
DAY = 86_400.0
TIERS = tiers_of(((2, 60), (15, 600)), setting="tiers")
NOW = 1_000 * DAY


@pytest.fixture
def store(database_url: str) -> Iterator[SqlStore]:
    made = SqlStore(database_url)
    made.open()
    yield made
    made.close()


def filled(store: SqlStore, name: str = "qps") -> None:
    """80 minutes around each border, a value each 10 s, with gaps."""
    points = [
        Point(border - 2400 + 10.0 * step, float(step % 97))
        for border in (NOW - 15 * DAY, NOW - 2 * DAY, NOW - 2400)
        for step in range(480) if step % 11
    ]  # fmt: skip
    store.put(name, 10, points)


def all_rows(store: SqlStore) -> list[Any]:
    with reading(store.engine) as connection:
        return list(connection.execute(select(rates).order_by(rates.c.series_id, rates.c.at)))


def test_old_rates_become_means_and_new_ones_stay(store: SqlStore) -> None:
    filled(store)
    before = store.stored("qps", 10)
    assert coarsen(store, TIERS, now=NOW) > 0
    after = store.stored("qps", 10)
    assert sorted({row.step_s for row in after}) == [10, 60, 600]
    assert all(row.at >= NOW - 2 * DAY for row in after if row.step_s == 10)
    assert all(NOW - 15 * DAY <= row.at < NOW - 2 * DAY for row in after if row.step_s == 60)
    assert sum(row.steps for row in after) == len(before)
    assert sum(row.value * row.steps for row in after) == pytest.approx(sum(row.value for row in before))
    assert coarsen(store, TIERS, now=NOW) == 0 and store.stored("qps", 10) == after


def test_history_reads_the_same_on_a_coarse_step_before_and_after(store: SqlStore) -> None:
    filled(store)
    before = store.points("qps", 10, on=600)
    coarsen(store, TIERS, now=NOW)
    after = store.points("qps", 10, on=600)
    assert [point.at for point in after] == [point.at for point in before]
    assert [point.value for point in after] == pytest.approx([point.value for point in before])
    newest = store.points("qps", 10, limit=8)       # of eight steps, of which one has no value
    assert [point.at - NOW for point in newest] == [-80, -60, -50, -40, -30, -20, -10]
    within = store.points("qps", 10, on=600, since=NOW - 15 * DAY - 1000, until=NOW - 15 * DAY)
    assert [point.at for point in within] == [NOW - 15 * DAY - 1200, NOW - 15 * DAY - 600]


def test_it_is_done_in_small_transactions_with_the_same_result(store: SqlStore) -> None:
    filled(store, "a")
    filled(store, "b")
    coarsen(store, TIERS, now=NOW, chunk=50)
    assert store.stored("a", 10) == store.stored("b", 10)
    steps = {row.step_s for row in store.stored("a", 10)}
    assert steps == {10, 60, 600}


def test_one_that_was_cut_short_at_any_statement_is_gone_on_with(store: SqlStore) -> None:
    filled(store)
    before = all_rows(store)
    coarsen(store, TIERS, now=NOW, chunk=300)
    expected = [tuple(row)[1:] for row in all_rows(store)]
    left = 0

    def cut(*_: Any) -> None:
        nonlocal left
        left -= 1
        if left < 0:
            raise KeyboardInterrupt

    for allowed in (0, 4, 7, 9, 10, 11, 16, 23):
        with writing(store.engine) as connection:
            connection.execute(coarse.delete())
            connection.execute(rates.delete())
            connection.execute(insert(rates), [dict(row._mapping) for row in before])
        left = allowed
        event.listen(store.engine, "before_cursor_execute", cut)
        try:
            with pytest.raises(KeyboardInterrupt):
                coarsen(store, TIERS, now=NOW, chunk=300)
        finally:
            event.remove(store.engine, "before_cursor_execute", cut)
        coarsen(store, TIERS, now=NOW, chunk=300)
        assert [tuple(row)[1:] for row in all_rows(store)] == expected


def test_what_comes_too_late_for_a_mean_is_passed_over_and_what_fills_a_gap_is_kept(store: SqlStore) -> None:
    old = NOW - 3 * DAY
    store.put("qps", 10, [Point(old, 1.0), Point(old + 10, 3.0), Point(NOW, 5.0)])
    coarsen(store, TIERS, now=NOW)
    assert store.put("qps", 10, [Point(old + 20, 100.0)]) == 0
    assert store.put("qps", 10, [Point(old, 1.0), Point(old + 60, 8.0), Point(NOW, 6.0)]) == 2
    coarsen(store, TIERS, now=NOW)
    assert store.stored("qps", 10) == [
        Stored(old, 2.0, 60, 2), Stored(old + 60, 8.0, 60, 1), Stored(NOW, 6.0, 10, 1),
    ]  # fmt: skip


def test_a_long_past_that_is_put_backwards_is_made_coarser_too(store: SqlStore) -> None:
    for day in (3, 20, 10):
        store.put("qps", 10, [Point(NOW - day * DAY + 10.0 * step, 4.0) for step in range(60)])
        coarsen(store, TIERS, now=NOW)
    assert [(row.at, row.step_s, row.steps) for row in store.stored("qps", 10) if row.step_s == 600] == [
        (NOW - 20 * DAY, 600, 60)
    ]
    assert {row.step_s for row in store.stored("qps", 10)} == {60, 600}


def test_many_series_are_put_at_once_and_those_beyond_the_bound_alone_are_refused(database_url: str) -> None:
    store = SqlStore(database_url, max_series=2)
    store.open()
    told = store.put_many([Observation(name, 60, [Point(0, 1), Point(60, 2)]) for name in ("a", "b", "c", "a")])
    assert [str(each).partition(";")[0] for each in told] == ["2", "2", "2 series are stored", "2"]
    assert store.names() == ["a", "b"]
    store.close()


def test_forgetting_goes_on_over_many_rows(store: SqlStore) -> None:
    store.put("old", 1, [Point(float(at), 1.0) for at in range(120)])
    store.put("long", 1, [Point(200.0 + at, 1.0) for at in range(110)])
    assert store.forget(before=150, points_per_series=5, chunk=20) == 120 + 105
    assert store.names() == ["long"] and len(store.points("long", 1)) == 5


def test_series_that_nobody_measures_any_more_make_room(store: SqlStore) -> None:
    store.put("job/ended", 5, [Point(100.0 + 5 * n, 1.0) for n in range(9)])
    store.put("job/runs", 5, [Point(100.0, 1.0), Point(900.0, 1.0)])
    assert store.forget(before=0, points_per_series=100, idle_before=500) == 9
    assert store.names() == ["job/runs"] and len(store.points("job/runs", 5)) == 2
