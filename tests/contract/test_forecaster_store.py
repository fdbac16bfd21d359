"""What every store of rates does, whichever SQL server holds it."""

from collections.abc import Iterator

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext

from recmesh.runtime.errors import ResourceExhausted
from recmesh.runtime.sql import reading
from services.forecaster.domain.series import Point, SeriesInfo
from services.forecaster.store import SqlStore
from services.forecaster.store.tables import metadata
from tests.support.postgres import database_url, postgres_address

__all__ = ["database_url", "postgres_address"]


@pytest.fixture
def store(database_url: str) -> Iterator[SqlStore]:
    made = SqlStore(database_url, max_series=3)
    made.open()
    yield made
    made.close()


def points(*values: float) -> list[Point]:
    return [Point(at * 60.0, value) for at, value in enumerate(values)]


def test_what_is_put_comes_back_and_the_same_again_replaces(store: SqlStore) -> None:
    assert store.put("qps", 60, points(1, 2, 3)) == 3
    assert store.put("qps", 60, points(1, 5)) == 2
    assert store.points("qps", 60) == points(1, 5, 3)
    assert store.put("qps", 60, []) == 0


def test_a_range_and_a_limit_choose_the_newest(store: SqlStore) -> None:
    store.put("qps", 60, points(0, 1, 2, 3, 4))
    assert [point.value for point in store.points("qps", 60, since=60, until=240)] == [1, 2, 3]
    assert [point.value for point in store.points("qps", 60, limit=2)] == [3, 4]


def test_series_of_one_name_and_different_steps_are_apart(store: SqlStore) -> None:
    store.put("qps", 60, points(1))
    store.put("qps", 3600, points(9))
    assert store.steps("qps") == [60, 3600]
    assert store.steps("other") == []
    assert store.points("qps", 3600) == [Point(0, 9)]
    assert store.names() == ["qps"]


def test_what_each_step_covers_is_told_up_to_a_moment(store: SqlStore) -> None:
    store.put("qps", 60, points(1, 2, 3))
    store.put("qps", 30, [Point(90.0, 7)])
    store.put("qps", 3600, [Point(90 * 86_400.0, 7)])
    assert {each.step_s: each.seconds for each in store.covered("qps", until=1e6)} == {60: 180, 30: 30}
    assert {each.step_s: each.seconds for each in store.covered("qps", until=90)} == {60: 120}
    assert {each.step_s for each in store.covered("qps", until=1e9)} == {3600}      # all else is months older
    assert store.covered("other", until=1e9) == []


def test_what_is_stored_is_told_by_prefix(store: SqlStore) -> None:
    store.put("job.a", 60, points(1, 2))
    store.put("job_b", 60, points(7))
    store.put("100%", 60, points(3))
    assert store.info(prefix="job") == [
        SeriesInfo("job.a", 60, 2, 0, 60, 2), SeriesInfo("job_b", 60, 1, 0, 0, 7),
    ]  # fmt: skip
    assert [each.series for each in store.info(prefix="job_")] == ["job_b"]
    assert [each.series for each in store.info(limit=1)] == ["100%"]


def test_too_many_series_are_refused_and_the_others_still_grow(store: SqlStore) -> None:
    for name in "abc":
        store.put(name, 60, points(1))
    with pytest.raises(ResourceExhausted, match="3 series"):
        store.put("d", 60, points(1))
    assert store.put("a", 60, points(1, 2)) == 2


def test_forgetting_bounds_age_and_number_and_removes_empty_series(store: SqlStore) -> None:
    store.put("old", 60, points(1))
    store.put("long", 60, points(*range(10)))
    assert store.forget(before=60, points_per_series=4) == 1 + 1 + 5
    assert [point.value for point in store.points("long", 60)] == [6, 7, 8, 9]
    assert store.names() == ["long"]


def test_the_revisions_lead_to_the_schema_that_the_code_uses(store: SqlStore) -> None:
    with reading(store.engine) as connection:
        context = MigrationContext.configure(
            connection,
            opts={"include_name": lambda name, kind, _: kind != "table" or name in metadata.tables},
        )
        assert compare_metadata(context, metadata) == []
