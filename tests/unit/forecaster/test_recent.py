"""Rows in memory are those of the store, and only the newest are read again."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from services.forecaster.domain.series import Point
from services.forecaster.domain.tiers import Rows, tiers_of
from services.forecaster.store import Recent, SqlStore, coarsen
from services.forecaster.store.recent import LATE_STEPS, REREAD_S

COUNT = 1000


class _Counting(SqlStore):
    read = 0

    def rows(self, *args: Any, **options: Any) -> Rows:
        found = super().rows(*args, **options)
        self.read += len(found)
        return found


@pytest.fixture
def store(tmp_path: Path) -> Iterator[_Counting]:
    made = _Counting(f"sqlite:///{tmp_path}/forecaster.sqlite")
    made.open()
    made.put("qps", 10, [Point(10.0 * at, float(at)) for at in range(COUNT)])
    yield made
    made.close()


def test_an_ask_reads_what_is_new_and_late_rates_are_read_too(store: _Counting) -> None:
    now = 0.0
    recent = Recent(store, clock=lambda: now)

    def same() -> int:
        before = store.read
        mine = recent.rows("qps", 10, within_s=8000.0, limit=COUNT)
        read = store.read - before
        whole = SqlStore.rows(store, "qps", 10, within_s=8000.0, limit=COUNT)
        for name in ("at", "value", "width", "count"):
            assert np.array_equal(getattr(mine, name), getattr(whole, name)), name
        return read

    def put(at: float, value: float) -> None:
        store.put("qps", 10, [Point(at, value)])
        recent.stored("qps", at)

    assert same() == 800
    for step in range(5):
        put(10.0 * (COUNT + step), 1.0)
        put(10.0 * (COUNT + step - 20), 7.0)        # again, and a little late
        assert same() <= LATE_STEPS + 2
    put(10.0 * (COUNT - 300), 9.0)                  # long past
    assert same() == 800
    now += REREAD_S + 1
    coarsen(store, tiers_of([(0.05, 60)], setting="tiers"), now=10.0 * COUNT)
    assert same() < 800
    put(10.0 * (COUNT + 10), 1.0)                   # after a gap
    assert same() <= LATE_STEPS + 2
    store.forget(before=1e9, points_per_series=1, idle_before=1e9)
    assert same() == 0


def test_rows_in_memory_are_bounded_by_what_was_asked_for_longest_ago(store: _Counting) -> None:
    for name in ("a", "b"):
        store.put(name, 10, [Point(10.0 * at, 1.0) for at in range(100)])
    recent = Recent(store, max_rows=250, clock=lambda: 0.0)
    for name in ("a", "b", "a", "qps"):             # the last one alone is too much
        recent.rows(name, 10, within_s=1e9, limit=COUNT)
    store.read = 0
    recent.rows("a", 10, within_s=1e9, limit=COUNT)
    assert store.read == 100
    recent.rows("a", 10, within_s=1e9, limit=COUNT)
    assert store.read < 200


def test_a_late_rate_that_comes_while_all_is_read_is_not_lost(store: _Counting) -> None:
    recent, first = Recent(store, clock=lambda: 0.0), [True]
    whole = store.rows

    def meanwhile(*args: Any, **options: Any) -> Rows:
        found = whole(*args, **options)
        if first:
            first.clear()
            store.put("qps", 10, [Point(50.0, 99.0)])
            recent.stored("qps", 50.0)
        return found

    store.rows = meanwhile  # type: ignore[method-assign]  # a writer between the read and its end
    recent.rows("qps", 10, within_s=1e9, limit=COUNT)
    assert recent.rows("qps", 10, within_s=1e9, limit=COUNT).value[5] == 99
