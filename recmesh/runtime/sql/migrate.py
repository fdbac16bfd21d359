"""Schemas change by alembic revisions that a service carries, applied when it starts.

A revision that only adds says `works_from`: the oldest revision whose release may go on reading and writing beside it.
It is kept in the database, so that a release that does not know the newest revision knows whether it may work all the
same: while a newer one takes its place, and when that is taken back.
"""

import zlib
from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from alembic.util import CommandError
from sqlalchemy import Connection, Engine, inspect, text

from recmesh.runtime.errors import FailedPrecondition
from recmesh.runtime.sql.engine import writing
from recmesh.runtime.telemetry import get_logger

_log = get_logger(__name__)


def migrate(engine: Engine, *, revisions: Path, version_table: str) -> None:
    """Bring the schema to the newest revision in the folder. Blocks.

    Replicas that start together wait for each other. A database of a newer release is left as it is when what that
    release added lets this one work; FailedPrecondition when it does not.
    """
    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent / "alembic"))
    config.set_main_option("version_locations", str(revisions))
    config.set_main_option("path_separator", "newline")
    scripts = ScriptDirectory.from_config(config)
    with writing(engine) as connection:
        if engine.dialect.name == "postgresql":  # SQLite's write transaction is a lock already
            connection.execute(
                text("SELECT pg_advisory_xact_lock(:key)"), {"key": zlib.crc32(version_table.encode())}
            )
        found = MigrationContext.configure(connection, opts={"version_table": version_table}).get_current_revision()
        if found is not None and not _knows(scripts, found):
            _may_work(connection, scripts, found, version_table)
            return
        config.attributes["connection"] = connection
        config.attributes["version_table"] = version_table
        try:
            command.upgrade(config, "head")
        except CommandError as error:
            raise FailedPrecondition(
                f"the database's schema cannot be brought up to date: {error}", reason="SCHEMA"
            ) from None
        _write_floor(connection, scripts, version_table)


def floor(scripts: ScriptDirectory) -> str:
    """The oldest revision whose release works with the newest schema of the folder."""
    newest = scripts.get_revision("head")
    return str(getattr(newest.module, "works_from", newest.revision))


def _knows(scripts: ScriptDirectory, revision: str) -> bool:
    try:
        return scripts.get_revision(revision) is not None
    except CommandError:
        return False


def _may_work(connection: Connection, scripts: ScriptDirectory, found: str, version_table: str) -> None:
    here, table = scripts.get_current_head(), _floor_table(version_table)
    oldest = ""
    if inspect(connection).has_table(table):
        oldest = connection.execute(text(f"SELECT revision FROM {table}")).scalar() or ""
    if oldest and _knows(scripts, oldest):
        _log.warning(
            "the database is of a newer release (revision %s, here %s), which lets this one work", found, here
        )
        return
    needs = f"revision {oldest}" if oldest else "that release"
    raise FailedPrecondition(
        f"the database was made by a newer release: it has revision {found}, this release knows {here} at most, and "
        f"nothing older than {needs} may use it. Start the newer release, or bring back a copy of the database "
        "from before it", reason="SCHEMA",
    )


def _write_floor(connection: Connection, scripts: ScriptDirectory, version_table: str) -> None:
    table, oldest = _floor_table(version_table), floor(scripts)
    if not inspect(connection).has_table(table):
        connection.execute(text(f"CREATE TABLE {table} (revision VARCHAR(32) NOT NULL)"))
    kept = connection.execute(text(f"SELECT revision FROM {table}")).scalar()
    if kept != oldest:
        connection.execute(text(f"DELETE FROM {table}"))
        connection.execute(text(f"INSERT INTO {table} (revision) VALUES (:revision)"), {"revision": oldest})


def _floor_table(version_table: str) -> str:
    return f"{version_table}_floor"
