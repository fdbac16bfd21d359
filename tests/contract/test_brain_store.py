"""What every config DB does, whichever SQL server holds it."""

import threading
from collections.abc import Iterator
from dataclasses import replace

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext

from recmesh.runtime.errors import FailedPrecondition, InvalidArgument
from recmesh.runtime.sql import open_engine, reading, writing
from services.brain.domain.model import (
    Change,
    Fit,
    FitPoint,
    FrontPoint,
    History,
    Job,
    Look,
    Plan,
    Profile,
    RolePlan,
    Similar,
)
from services.brain.store import SqlStore
from services.brain.store.tables import VERSION_TABLE, metadata
from tests.support.postgres import database_url, postgres_address

__all__ = ["database_url", "postgres_address"]


@pytest.fixture
def store(database_url: str) -> Iterator[SqlStore]:
    made = SqlStore(database_url)
    made.open()
    yield made
    made.close()


def history(
    job_id: str = "a", *, owner: str = "ads", ended: float = 1.0, outcome: str = "Succeeded"
) -> History:
    job = Job(
        job_id, owner=owner, model="dcn_v2", tables=26, data_rows=2**40, labels={"team": "ä"}, deadline=2e9
    )
    plan = (RolePlan("ps", 2, 1.5, 3 << 30), RolePlan("worker", 4, 2, 1 << 30, gpu=0.5, gpu_kind="mig"))
    return History(
        job,
        outcome,
        reason="done",
        started=0.5,
        ended=ended,
        final_plan=plan,
        samples=2**40,
        metrics={"auc": 0.7},
    )


def plan(plan_id: str, at: float, *, job_id: str = "a") -> Plan:
    similar = (Similar("b", 0.9, "same model"),)
    return Plan((RolePlan("ps", 1, 1, 1),), "similar", "why", similar, plan_id=plan_id, job_id=job_id, at=at)


def test_what_is_put_comes_back_equal(store: SqlStore) -> None:
    store.put_history(history())
    store.put_plan(plan("p", 3.25))
    profile = Profile("a", at=1700000000.123, workers=2, ps=1, samples_per_s=1e5, rows=2**50)
    store.put_profile(profile)
    assert store.histories() == [history()]
    assert store.plans() == [plan("p", 3.25)]
    assert store.profiles("a") == [profile]


def test_the_same_again_replaces_and_does_not_double(store: SqlStore) -> None:
    for samples in (1, 2):
        store.put_history(replace(history(), samples=samples))
        store.put_profile(Profile("a", at=5, workers=samples, ps=1))
        store.put_plan(plan("p", 1))
    assert [each.samples for each in store.histories()] == [2]
    assert [each.workers for each in store.profiles("a")] == [2]
    assert len(store.plans()) == 1


def test_lists_begin_with_the_newest_and_can_be_narrowed(store: SqlStore) -> None:
    for number in range(5):
        store.put_history(
            history(
                f"j{number}",
                owner=f"o{number % 2}",
                ended=number,
                outcome=("Failed", "Succeeded")[number > 0],
            )
        )
        store.put_plan(plan(f"p{number}", number, job_id=f"j{number}"))
    assert [each.job.job_id for each in store.histories(limit=2)] == ["j4", "j3"]
    assert [each.job.job_id for each in store.histories(owner="o0")] == ["j4", "j2", "j0"]
    assert [each.job.job_id for each in store.histories(owner="o0", outcome="Succeeded")] == ["j4", "j2"]
    assert [each.plan_id for each in store.plans(job_id="j3")] == ["p3"]


def test_profiles_come_oldest_first_and_the_newest_when_there_are_too_many(store: SqlStore) -> None:
    for at in (3, 1, 2, 4):
        store.put_profile(Profile("a", at=at, workers=1, ps=1, samples_per_s=at * 10))
    assert [each.at for each in store.profiles("a", limit=3)] == [2, 3, 4]
    assert store.throughput(since=3) == [("a", 3, 30), ("a", 4, 40)]


def test_forgetting_keeps_the_newest_profiles_of_each_job_and_all_histories(store: SqlStore) -> None:
    for job_id in ("a", "b"):
        for at in range(10):
            store.put_profile(Profile(job_id, at=at, workers=1, ps=1))
    store.put_plan(plan("old", 1))
    store.put_plan(plan("new", 9))
    store.put_history(history())
    assert store.forget(before=2, profiles_per_job=3, per_counts=2) == 2 * 7 + 1
    assert [each.at for each in store.profiles("a")] == [7, 8, 9]
    assert [each.plan_id for each in store.plans()] == ["new"]
    assert len(store.histories()) == 1
    assert store.forget(before=0, profiles_per_job=9, histories_before=history().ended) == 0
    assert store.forget(before=0, profiles_per_job=9, histories_before=history().ended + 1) == 1
    assert store.histories() == []


def test_writers_at_the_same_time_all_get_through(store: SqlStore) -> None:
    def write(worker: int) -> None:
        for at in range(10):
            store.put_profile(Profile(f"job-{worker}", at=at, workers=1, ps=1))

    threads = [threading.Thread(target=write, args=(worker,)) for worker in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [len(store.profiles(f"job-{worker}")) for worker in range(4)] == [10] * 4


def test_what_was_stored_is_there_for_the_next_process_and_replicas_may_start_together(
    database_url: str,
) -> None:
    stores = [SqlStore(database_url) for _ in range(3)]
    threads = [threading.Thread(target=store.open) for store in stores]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    stores[0].put_history(history())
    assert stores[1].histories() == stores[2].histories() == [history()]
    for store in stores:
        store.close()


def test_the_revisions_lead_to_the_schema_that_the_code_uses(store: SqlStore) -> None:
    with reading(store.engine) as connection:
        context = MigrationContext.configure(
            connection,
            opts={"include_name": lambda name, kind, _: kind != "table" or name in metadata.tables},
        )
        assert compare_metadata(context, metadata) == []


def test_a_schema_of_a_newer_release_is_refused_and_left_alone(store: SqlStore, database_url: str) -> None:
    with writing(store.engine) as connection:
        connection.exec_driver_sql(f"UPDATE {VERSION_TABLE} SET version_num = '9999'")
        connection.exec_driver_sql(f"UPDATE {VERSION_TABLE}_floor SET revision = '9998'")    # it works with none here
    other = SqlStore(database_url)
    with pytest.raises(FailedPrecondition, match="9999"):
        other.open()
    other.close()


def test_another_kind_of_database_is_refused_without_showing_its_password() -> None:
    with pytest.raises(InvalidArgument) as caught:
        open_engine("mysql://me:secret@host/db", what="brain")
    assert "RECMESH_DATABASE_URL" in str(caught.value)
    assert "secret" not in str(caught.value)


def look(job_id: str, at: float) -> Look:
    now = (RolePlan("worker", 2, 1.5, 1 << 30), RolePlan("ps", 1, 1.0, 2 << 30))
    fit = Fit("dlrover", 0.04, {"compute": 0.2}, (FitPoint(2, 1, 1.5, 1.0, 900.0, 910.0, 0.1, 5.0),), ("a note",))
    front = (FrontPoint(3, 1, 1.5, 1.0, 2.0, 300.0, 1200.0, "GROW", "worth it", is_chosen=True),)
    return Look(job_id, at, "pareto-greedy", "GROW", "it pays", 900.0, now, now[:1], 1200.0, fit, front, "p9")


def change(plan_id: str, at: float, *, job_id: str = "a") -> Change:
    roles = (RolePlan("worker", 2, 1.5, 1 << 30),)
    return Change(plan_id, job_id, at, "taken back", "slower", roles, roles, 900.0, 1200.0, 800.0, 2.5)


def test_the_newest_look_at_a_job_and_all_its_changes_come_back_equal(store: SqlStore) -> None:
    for at in (1.0, 2.0):
        store.put_look(look("a", at))
    store.put_look(look("b", 1.5))
    assert store.look("a") == look("a", 2.0) and store.look("c") is None
    assert store.looks() == [look("a", 2.0), look("b", 1.5)]
    for plan_id, at, job_id in (("p1", 1.0, "a"), ("p2", 2.0, "a"), ("p3", 3.0, "b"), ("p2", 2.5, "a")):
        store.put_change(change(plan_id, at, job_id=job_id))
    assert store.changes(job_id="a") == [change("p2", 2.5), change("p1", 1.0)]
    assert [each.plan_id for each in store.changes(limit=2)] == ["p3", "p2"]


def test_old_looks_and_changes_are_forgotten(store: SqlStore) -> None:
    for at in (1.0, 10.0):
        store.put_look(look(f"job-{at:g}", at))
        store.put_change(change(f"p-{at:g}", at))
    assert store.forget(before=5.0, profiles_per_job=10) == 2
    assert [each.job_id for each in store.looks()] == ["job-10"]
    assert [each.plan_id for each in store.changes()] == ["p-10"]


def test_what_was_measured_long_ago_with_other_counts_is_kept(store: SqlStore) -> None:
    for at in range(30):
        store.put_profile(Profile("a", at=at, workers=1 if at < 5 else 2, ps=1))
    store.put_profile(Profile("b", at=100, workers=3, ps=1))
    assert [(each.workers, each.at) for each in store.shown("a", each=3)] == [
        (1, 2), (1, 3), (1, 4), (2, 27), (2, 28), (2, 29),
    ]  # fmt: skip
    assert store.forget(before=0, profiles_per_job=10, per_counts=3) == 2 + 15
    assert [each.at for each in store.profiles("a")] == [2, 3, 4, *range(20, 30)]
