"""A service as its next release might be: `python -m tests.support.next_version gateway`.

What it says has more in it than this release knows, wherever releases of one version are let add something: fields of
messages, of events, of what is kept in buckets, an event's type, and columns and tables of databases. Nothing that
this release reads is left out.
"""

import shutil
import sys
import tempfile
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

import grpc
import orjson

VERSION = "0.2.0"
FIELD = "of_the_next_version"
UNKNOWN = b"\xc0\xa9\x07\x2a"
"""Field 15000 of any message, which none has: a varint."""
REVISION = '''"""What the next release adds to a database: a column that may be null, and a table."""

import sqlalchemy as sa
from alembic import op

revision = "0099"
down_revision = "{newest}"
branch_labels = None
depends_on = None
works_from = "{newest}"


def upgrade() -> None:
    """Nothing that this release reads goes away."""
    op.add_column("{table}", sa.Column("{field}", sa.Text))
    op.create_table("{service}_{field}", sa.Column("id", sa.Integer, primary_key=True))
'''
TABLES = {"brain": "brain_jobs", "forecaster": "forecaster_rates"}


def main(service: str) -> None:
    """Runs it until it is told to stop."""
    _version()
    _messages()
    _events()
    _buckets()
    if service in TABLES:
        _database(service)
    from importlib import import_module

    from recmesh.runtime import lifecycle

    lifecycle.main(service, import_module(f"services.{service}.__main__").build)


def _version() -> None:
    told = metadata.version

    def version(distribution_name: str) -> str:
        return VERSION if distribution_name == "recmesh" else told(distribution_name)

    metadata.version = version


def _messages() -> None:
    from recmesh.runtime.rpc.channel import MeshChannel

    for kind in ("unary_unary", "unary_stream", "stream_unary", "stream_stream"):
        name = f"{kind}_rpc_method_handler"
        setattr(grpc, name, _answering_more(getattr(grpc, name)))
        setattr(MeshChannel, kind, _asking_more(getattr(MeshChannel, kind)))


def _more(serialize: Callable[[Any], bytes] | None) -> Callable[[Any], bytes]:
    return lambda message: (serialize(message) if serialize else message) + UNKNOWN


def _answering_more(make: Any) -> Any:
    def handler(behavior: Any, request_deserializer: Any = None, response_serializer: Any = None) -> Any:
        return make(behavior, request_deserializer, _more(response_serializer))

    return handler


def _asking_more(make: Any) -> Any:
    def method(
        self: Any, path: str, request_serializer: Any = None, response_deserializer: Any = None, *_: Any, **__: Any
    ) -> Any:
        return make(self, path, _more(request_serializer), response_deserializer)

    return method


def _events() -> None:
    from recmesh.runtime.bus import bus, publisher

    for module in (bus, publisher):
        told = getattr(module, "encode", None)
        if told is None:
            continue

        def encode(event: Any, told: Any = told) -> tuple[dict[str, str], bytes]:
            headers, body = told(event)
            return {**headers, "ce-ofthenextversion": "1"}, _with_more(body)

        module.encode = encode      # type: ignore[attr-defined]  # imported by name


def _buckets() -> None:
    from recmesh.runtime.bus.kv import KeyValue

    write = KeyValue._write

    async def more(self: Any, key: str, value: bytes, **options: Any) -> int:
        return await write(self, key, _with_more(value), **options)

    KeyValue._write = more          # type: ignore[method-assign]  # as the next release would


def _with_more(body: bytes) -> bytes:
    try:
        found = orjson.loads(body)
    except orjson.JSONDecodeError:
        return body
    return orjson.dumps({**found, FIELD: {"is": [1, 2]}}) if isinstance(found, dict) else body


def _database(service: str) -> None:
    from recmesh.runtime import sql

    apply = sql.migrate

    def migrate(engine: Any, *, revisions: Path, version_table: str) -> None:
        with tempfile.TemporaryDirectory() as folder:
            added_to(revisions, Path(folder), service)
            apply(engine, revisions=Path(folder), version_table=version_table)

    sql.migrate = migrate


def added_to(revisions: Path, folder: Path, service: str) -> None:
    """A copy of a service's revisions with one more."""
    shutil.copytree(revisions, folder, dirs_exist_ok=True)
    newest = max(path.name[:4] for path in revisions.glob("0*.py"))
    text = REVISION.format(newest=newest, table=TABLES[service], field=FIELD, service=service)
    (folder / "0099_next.py").write_text(text)


if __name__ == "__main__":
    main(sys.argv[1])
