"""Databases of other releases: replicas that start together bring one up to date once, and keep what is in it; where a
newer release has only added to it, this one works on."""

import re
import shutil
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import inspect, text

from recmesh.runtime.errors import FailedPrecondition
from recmesh.runtime.sql.engine import open_engine
from recmesh.runtime.sql.migrate import migrate
from services.brain.domain.model import History, Job
from services.forecaster.domain.series import Point
from tests.support import next_version
from tests.support.postgres import database_url, postgres_address

pytestmark = pytest.mark.integration
__all__ = ["database_url", "postgres_address"]
ROOT = Path(__file__).parents[3]
REPLICAS = 2
ROWS = {
    "brain": "INSERT INTO brain_jobs (job_id, owner, outcome, ended, document) VALUES ('j', 'ads', 'Stopped', 7, '{}')",
    "forecaster": "INSERT INTO forecaster_series (name, step_s) VALUES ('topic.clicks', 10.0)",
}
VALUES = {"brain": "ads", "forecaster": "topic.clicks"}
KEPT = {"brain": "SELECT owner FROM brain_jobs", "forecaster": "SELECT name FROM forecaster_series"}


@pytest.mark.long
@pytest.mark.parametrize("service", ["brain", "forecaster"])
def test_replicas_that_start_together_upgrade_once_and_keep_the_rows(
    service: str, database_url: str, tmp_path: Path
) -> None:
    revisions = ROOT / "services" / service / "store" / "revisions"
    first = tmp_path / "revisions"
    first.mkdir()
    shutil.copy(next(revisions.glob("0001_*.py")), first)
    engine = open_engine(database_url, what=service)
    table = __import__(f"services.{service}.store.sql", fromlist=["VERSION_TABLE"]).VERSION_TABLE
    migrate(engine, revisions=first, version_table=table)
    with engine.begin() as connection:
        connection.execute(text(ROWS[service]))
    old = set(inspect(engine).get_table_names())
    engine.dispose()

    program = (
        f"import sys; from services.{service}.store import SqlStore; store = SqlStore(sys.argv[1])\n"
        "sys.stdin.read()\n"                                     # all at the same time
        "store.open(); store.ping(); store.close()"
    )
    started = [
        subprocess.Popen(
            [sys.executable, "-c", program, database_url],
            cwd=ROOT, stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for _ in range(REPLICAS)
    ]
    for process in started:
        assert process.stdin is not None
        process.stdin.close()
    for process in started:
        assert process.stderr is not None
        said = process.stderr.read()
        assert process.wait(60) == 0, said
        process.stderr.close()

    engine = open_engine(database_url, what=service)
    with engine.connect() as connection:
        assert connection.execute(text(KEPT[service])).scalars().all() == [VALUES[service]]
        newest = max(path.name[:4] for path in revisions.glob("0*.py"))
        assert connection.execute(text(f"SELECT version_num FROM {table}")).scalars().all() == [newest]
    assert set(inspect(engine).get_table_names()) > old
    engine.dispose()


def store_of(service: str, url: str) -> Any:
    return import_module(f"services.{service}.store").SqlStore(url)


def upgraded_by_the_next_release(service: str, url: str, folder: Path) -> None:
    """Its revisions are ours and one more, which adds a column and a table."""
    next_version.added_to(ROOT / "services" / service / "store" / "revisions", folder, service)
    engine = open_engine(url, what=service)
    migrate(engine, revisions=folder, version_table=f"{service}_schema")
    engine.dispose()


@pytest.mark.parametrize("service", ["brain", "forecaster"])
def test_a_newer_release_s_additions_let_this_one_read_write_and_start_again(
    service: str, database_url: str, tmp_path: Path
) -> None:
    running = store_of(service, database_url)
    running.open()
    upgraded_by_the_next_release(service, database_url, tmp_path / "next")
    again = store_of(service, database_url)
    again.open()                                    # a pod of the old release that restarts, or an update taken back
    for store, name in ((running, "before"), (again, "after")):
        if service == "forecaster":
            assert store.put(name, 10.0, [Point(0.0, 1.0), Point(10.0, 2.0)]) == 2
            assert len(store.points(name, 10.0, since=0.0, until=100.0)) == 2
        else:
            store.put_history(History(Job(name, "ads"), "Succeeded", ended=7.0))
            assert name in {each.job.job_id for each in store.histories(owner="ads")}
        store.close()
    engine = open_engine(database_url, what=service)
    with engine.connect() as connection:
        assert connection.execute(text(f"SELECT version_num FROM {service}_schema")).scalars().all() == ["0099"]
    engine.dispose()


def test_a_newer_database_that_lets_nobody_older_in_is_refused_by_name(database_url: str, tmp_path: Path) -> None:
    store = store_of("brain", database_url)
    store.open()
    folder = tmp_path / "next"
    next_version.added_to(ROOT / "services" / "brain" / "store" / "revisions", folder, "brain")
    text_ = (folder / "0099_next.py").read_text()
    (folder / "0099_next.py").write_text(text_.replace("works_from", "_"))
    migrate(store.engine, revisions=folder, version_table="brain_schema")
    with pytest.raises(FailedPrecondition) as caught:
        store.open()
    assert caught.value.reason == "SCHEMA"
    assert "has revision 0099, this release knows 0004 at most" in str(caught.value)
    assert "Start the newer release" in str(caught.value)
    store.close()


@pytest.mark.parametrize("service", ["brain", "forecaster"])
def test_what_a_revision_lets_older_releases_use_is_still_there_and_asks_nothing_new_of_them(
    service: str, database_url: str, tmp_path: Path
) -> None:
    revisions = ROOT / "services" / service / "store" / "revisions"
    shutil.copytree(revisions, tmp_path / "all", ignore=shutil.ignore_patterns("__pycache__"))
    names = sorted(path.name[:4] for path in (tmp_path / "all").glob("0*.py"))
    promised = {
        name: re.findall(r'works_from = "(\d+)"', next((tmp_path / "all").glob(f"{name}_*.py")).read_text())
        for name in names
    }
    engine = open_engine(database_url, what=service)
    schemas = {}
    for name in names:
        part = tmp_path / name
        part.mkdir()
        for path in (tmp_path / "all").glob("0*.py"):
            if path.name[:4] <= name:
                shutil.copy(path, part)
        migrate(engine, revisions=part, version_table=f"{service}_schema")
        looked = inspect(engine)
        schemas[name] = {table: {c["name"]: c for c in looked.get_columns(table)} for table in looked.get_table_names()}
    engine.dispose()
    assert any(promised.values())
    for name, oldest in ((name, each) for name, found in promised.items() for each in found):
        for table, columns in schemas[oldest].items():
            after = schemas[name][table]
            for column, known in columns.items():
                assert str(after[column]["type"]) == str(known["type"]), (name, table, column)
            for column in after.keys() - columns.keys():
                assert after[column]["nullable"] or after[column]["default"] is not None, (name, table, column)
