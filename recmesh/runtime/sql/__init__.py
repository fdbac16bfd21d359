"""SQL stores: one engine for SQLite (embedded) and PostgreSQL (by address), with migrations at start.

Only services that keep a SQL store import this; a training image has no SQLAlchemy.
"""

from recmesh.runtime.sql.engine import open_engine, reading, sql_errors, writing
from recmesh.runtime.sql.migrate import migrate

__all__ = ["migrate", "open_engine", "reading", "sql_errors", "writing"]
