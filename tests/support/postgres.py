"""A real PostgreSQL for tests: the one at RECMESH_TEST_POSTGRES, else one started from local binaries."""

import os
import pwd
import shutil
import subprocess
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import create_engine, text

from tests.support.servers import free_port
from tests.support.waiting import until

ADDRESS = "RECMESH_TEST_POSTGRES"
"""`postgresql://user:password@host/name` of a server on which databases may be made."""


def _binary(name: str) -> str | None:
    places = sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{name}"), reverse=True)
    return shutil.which(name) or (str(places[0]) if places else None)


def _owner() -> dict[str, Any]:
    """PostgreSQL refuses to run as root, so there it runs as its own user."""
    if os.geteuid() != 0:
        return {}
    try:
        entry = pwd.getpwnam("postgres")
    except KeyError:
        pytest.skip("PostgreSQL does not run as root, and there is no user postgres")
    return {"user": entry.pw_uid, "group": entry.pw_gid, "extra_groups": []}


@contextmanager
def postgres_server() -> Iterator[str]:
    """The address of a server; skips the test, saying why, where there is none."""
    if os.environ.get(ADDRESS):
        yield os.environ[ADDRESS]
        return
    initdb, postgres = _binary("initdb"), _binary("postgres")
    if initdb is None or postgres is None:
        pytest.skip(f"no PostgreSQL: set {ADDRESS}, or install initdb and postgres")
    owner = _owner()
    folder = Path(tempfile.mkdtemp(prefix="recmesh-postgres-"))
    try:
        if owner:
            os.chown(folder, owner["user"], owner["group"])
        data, port = folder / "data", free_port()
        command = [
            initdb,
            "-D",
            str(data),
            "-U",
            "recmesh",
            "-A",
            "trust",
            "-E",
            "UTF8",
            "--locale=C",
            "--no-sync",
        ]
        made = subprocess.run(
            command, capture_output=True, text=True, cwd=folder, timeout=120, check=False, **owner
        )
        if made.returncode:
            pytest.skip(f"initdb failed: {made.stderr.strip()[-300:]}")
        settings = {
            "listen_addresses": "127.0.0.1",
            "unix_socket_directories": "",
            "fsync": "off",
            "shared_buffers": "16MB",
        }
        options = [item for name, value in settings.items() for item in ("-c", f"{name}={value}")]
        with (folder / "log").open("wb") as log:
            server = subprocess.Popen(
                [postgres, "-D", str(data), "-p", str(port), *options],
                stdout=log,
                stderr=log,
                cwd=folder,
                **owner,
            )
        address = f"postgresql://recmesh@127.0.0.1:{port}/postgres"
        try:
            until(lambda: server.poll() is None and _answers(address))
            yield address
        finally:
            server.terminate()
            server.wait(30)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _answers(address: str) -> bool:
    engine = create_engine(_driver(address), connect_args={"connect_timeout": 2})
    try:
        with engine.connect() as connection:
            return connection.execute(text("SELECT 1")).scalar() == 1
    except Exception:  # not up yet, in whatever way
        return False
    finally:
        engine.dispose()


@contextmanager
def fresh_database(address: str) -> Iterator[str]:
    """The address of an empty database on the server."""
    name = f"test_{uuid.uuid4().hex[:12]}"
    engine = create_engine(_driver(address), isolation_level="AUTOCOMMIT")
    try:
        with engine.connect() as connection:
            connection.execute(text(f"CREATE DATABASE {name}"))
        yield f"{address.rpartition('/')[0]}/{name}"
        with engine.connect() as connection:
            connection.execute(text(f"DROP DATABASE {name} WITH (FORCE)"))
    finally:
        engine.dispose()


def _driver(address: str) -> str:
    return address.replace("postgresql://", "postgresql+psycopg://").replace(
        "postgres://", "postgresql+psycopg://"
    )


@pytest.fixture(scope="module")
def postgres_address() -> Iterator[str]:
    """One server for a module's tests."""
    with postgres_server() as address:
        yield address


@pytest.fixture(params=["sqlite", "postgresql"])
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """An empty database of each kind. Import it, and `postgres_address`, to use it."""
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path}/db/test.sqlite"
        return
    with fresh_database(request.getfixturevalue("postgres_address")) as url:
        yield url
