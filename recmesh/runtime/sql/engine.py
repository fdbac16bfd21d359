"""Engines and transactions. All calls block: run them in a thread."""

import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Engine, create_engine, event
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import (
    ArgumentError,
    DatabaseError,
    DBAPIError,
    InterfaceError,
    NoSuchModuleError,
    OperationalError,
)

from recmesh.runtime.errors import Internal, InvalidArgument, ResourceExhausted, Unavailable, Violation

BUSY_TIMEOUT_MS = 10_000
"""How long a SQLite writer waits for another."""


def open_engine(url: str, *, what: str) -> Engine:
    """An engine for `sqlite:///file` or `postgresql://...`; nothing is connected yet.

    SQLite runs in WAL mode and syncs each commit: what was acknowledged survives a crash of the machine.
    """
    parsed = _parsed(url, what)
    if parsed.get_backend_name() == "sqlite":
        return _sqlite(parsed)
    return create_engine(
        parsed,
        pool_pre_ping=True,
        pool_size=4,
        max_overflow=4,
        pool_timeout=10,
        pool_recycle=1800,
        connect_args={"connect_timeout": 5, "application_name": f"recmesh-{what}"},
    )


def _parsed(url: str, what: str) -> URL:
    try:
        parsed = make_url(url)
        if parsed.drivername in ("postgres", "postgresql"):
            parsed = parsed.set(drivername="postgresql+psycopg")
        if parsed.get_backend_name() not in ("sqlite", "postgresql"):
            raise ArgumentError("only sqlite and postgresql are supported")
        parsed.get_dialect()
    except (ArgumentError, NoSuchModuleError, ValueError) as error:
        reason = str(error).split("\n")[0].replace(url, "the address")  # it may hold a password
        raise InvalidArgument(
            f"{what} cannot use its database",
            reason="BAD_CONFIG",
            violations=[Violation("RECMESH_DATABASE_URL", reason)],
        ) from None
    return parsed


def _sqlite(url: URL) -> Engine:
    if url.database and url.database != ":memory:":
        Path(url.database).absolute().parent.mkdir(parents=True, exist_ok=True)
    engine = create_engine(url, pool_size=4, max_overflow=4, pool_timeout=10)

    @event.listens_for(engine, "connect")
    def _connect(connection: Any, record: object) -> None:
        del record
        connection.isolation_level = None  # transactions begin where SQLAlchemy says, below
        for pragma in (f"busy_timeout={BUSY_TIMEOUT_MS}", "synchronous=FULL", "foreign_keys=ON"):
            connection.execute(f"PRAGMA {pragma}")
        _use_wal(connection)

    @event.listens_for(engine, "begin")
    def _begin(connection: Connection) -> None:
        # A reader that later writes would fail at once when another wrote meanwhile; writers say so first.
        writes = connection.get_execution_options().get("recmesh_writes", False)
        connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")

    return engine


def _use_wal(connection: Any) -> None:
    """The first connection of a file changes it to WAL; that others wait meanwhile is for them to do: SQLite's busy
    timeout does not hold here."""
    until = time.monotonic() + BUSY_TIMEOUT_MS / 1000
    while True:
        try:
            connection.execute("PRAGMA journal_mode=WAL")
            return
        except sqlite3.OperationalError as error:
            if "locked" not in str(error) or time.monotonic() > until:
                raise
            time.sleep(0.01)


@contextmanager
def reading(engine: Engine) -> Iterator[Connection]:
    """A transaction that reads one state of the database."""
    with sql_errors(), engine.begin() as connection:
        yield connection


@contextmanager
def writing(engine: Engine) -> Iterator[Connection]:
    """A transaction that writes; it is durable when the block has ended."""
    with sql_errors(), engine.execution_options(recmesh_writes=True).begin() as connection:
        yield connection


@contextmanager
def sql_errors() -> Iterator[None]:
    """Database errors as those that a caller can act on."""
    try:
        yield
    except (OperationalError, InterfaceError) as error:
        text = _text(error)
        if ("full" in text and ("disk" in text or "database" in text)) or "No space left" in text:
            raise ResourceExhausted(f"the database's disk is full: {text}", reason="STORAGE_FULL") from error
        raise Unavailable(f"the database does not answer: {text}", reason="DATABASE") from error
    except TimeoutError as error:
        raise Unavailable("no database connection became free in time", reason="DATABASE") from error
    except DatabaseError as error:
        raise Internal(f"the database refused a statement: {_text(error)}", reason="DATABASE") from error


def _text(error: DBAPIError) -> str:
    return str(error.orig).strip().split("\n")[0]
