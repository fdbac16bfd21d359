"""A mesh on NATS, Valkey and PostgreSQL of its owner's: they are used, and left running."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import create_engine, text

from tests.support.postgres import fresh_database, postgres_address
from tests.support.servers import NatsServer, ValkeyServer, nats_server, valkey_server
from tests.support.tiny_jobs import ROWS, tiny_job
from tests.support.waiting import until
from tests.support.whole_mesh import STEP_S, WholeMesh

__all__ = ["postgres_address"]
pytestmark = [pytest.mark.integration, pytest.mark.e2e, pytest.mark.long]

TOKEN = "the-token-of-this-nats"


@pytest.fixture
def database(postgres_address: str) -> Iterator[str]:
    with fresh_database(postgres_address) as address:
        yield address


@pytest.fixture
def nats(tmp_path: Path) -> Iterator[NatsServer]:
    with nats_server(tmp_path / "nats", token=TOKEN) as server:
        yield server


@pytest.fixture
def valkey(tmp_path: Path) -> Iterator[ValkeyServer]:
    with valkey_server(tmp_path / "valkey") as server:
        yield server


def rows_of(database: str, table: str) -> int:
    engine = create_engine(database.replace("postgresql://", "postgresql+psycopg://"))
    try:
        with engine.connect() as connection:
            return int(connection.execute(text(f"SELECT count(*) FROM {table}")).scalar_one())
    finally:
        engine.dispose()


def test_a_mesh_on_external_servers_trains_leaves_them_running_and_finds_its_job_again(
    tmp_path: Path, database: str, nats: NatsServer, valkey: ValkeyServer
) -> None:
    mesh = WholeMesh(tmp_path)
    mesh.home.root.mkdir()
    mesh.home.config_file.write_text(
        f'[nats]\nurl = "{nats.url}"\ntoken = "{TOKEN}"\n'
        f'[valkey]\nurl = "{valkey.url}"\n[database]\nurl = "{database}"\n'
    )
    servers = nats.pid, valkey.pid
    try:
        found = mesh.up()
        assert not {"nats", "valkey"} & set(found["components"]) and "brain" in found["components"]
        job = mesh.ended(mesh.submit(tiny_job(mesh, "abroad")))
        assert job.phase == "Succeeded", (job.reason, job.message)
        assert job.progress.samples == job.progress.total == ROWS
        until(lambda: rows_of(database, "brain_jobs") == 1, timeout_s=STEP_S)
        mesh.down()
        assert mesh.is_empty() and list(mesh.home.root.glob("**/*.sqlite")) == []
        assert (nats.pid, valkey.pid) == servers and nats.listens() and valkey.listens()
        mesh.up()
        again = mesh.job(job.job_id)
        assert (again.phase, again.progress, again.transitions) == (job.phase, job.progress, job.transitions)
        second = mesh.ended(mesh.submit(tiny_job(mesh, "abroad-again")))
        assert second.phase == "Succeeded" and second.progress.samples == ROWS
    finally:
        mesh.down()
