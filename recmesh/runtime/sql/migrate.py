"""Schemas change by alembic revisions that a service carries, applied when it starts."""

import zlib
from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.util import CommandError
from sqlalchemy import Engine, text

from recmesh.runtime.errors import FailedPrecondition
from recmesh.runtime.sql.engine import writing


def migrate(engine: Engine, *, revisions: Path, version_table: str) -> None:
    """Bring the schema to the newest revision in the folder. Blocks.

    Replicas that start together wait for each other. FailedPrecondition when the database was made by
    a newer release, whose revision is unknown here.
    """
    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent / "alembic"))
    config.set_main_option("version_locations", str(revisions))
    config.set_main_option("path_separator", "newline")
    with writing(engine) as connection:
        if engine.dialect.name == "postgresql":  # SQLite's write transaction is a lock already
            connection.execute(
                text("SELECT pg_advisory_xact_lock(:key)"), {"key": zlib.crc32(version_table.encode())}
            )
        config.attributes["connection"] = connection
        config.attributes["version_table"] = version_table
        try:
            command.upgrade(config, "head")
        except CommandError as error:
            raise FailedPrecondition(
                f"the database's schema is not one that this release knows: {error}", reason="SCHEMA"
            ) from None
