"""Key-value buckets on JetStream: compare-and-set, watch, listing; each write acknowledged."""

import time
import uuid
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass

from nats.aio.msg import Msg
from nats.js import api
from nats.js import errors as js_errors

from recmesh.runtime.bus.link import Link, Session
from recmesh.runtime.bus.pull import Place, follow
from recmesh.runtime.bus.stored import DUPLICATE_WINDOW_S, ensure_stream, store
from recmesh.runtime.errors import Aborted, AlreadyExists, InvalidArgument, Violation

_ALLOWED = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_/=.")
_OPERATION = "KV-Operation"
_MARKER = "Nats-Marker-Reason"


@dataclass(frozen=True, slots=True)
class Entry:
    """A key's value at a revision; a deleted key has `deleted` and no value."""

    key: str
    value: bytes
    revision: int
    at: float
    """When it was written, unix seconds of the server."""
    deleted: bool = False


class KeyValue:
    """One bucket. Reads come from the stream's leader, so they see every acknowledged write."""

    def __init__(
        self, link: Link, bucket: str, *, history: int = 1, ttl_s: float | None = None, replicas: int = 1,
        max_bytes: int = -1,
    ) -> None:
        self.bucket = bucket
        self._link = link
        self._stream = f"KV_{bucket}"
        self._root = f"$KV.{bucket}."
        self._config = api.StreamConfig(
            name=self._stream, subjects=[f"{self._root}>"], max_msgs_per_subject=history, max_age=ttl_s or 0,
            storage=api.StorageType.FILE, discard=api.DiscardPolicy.NEW, allow_rollup_hdrs=True,
            deny_delete=True, allow_direct=True, num_replicas=replicas, max_bytes=max_bytes,
            duplicate_window=min(DUPLICATE_WINDOW_S, ttl_s or DUPLICATE_WINDOW_S),
        )
        self._ensured = False

    async def get(self, key: str) -> Entry | None:
        """The entry; None when there is none, or it was deleted or has expired."""
        entry = await self._last(key)
        return None if entry is None or entry.deleted else entry

    async def create(self, key: str, value: bytes) -> int:
        """The first revision of the key; AlreadyExists when it has a value."""
        last = 0
        while True:
            try:
                return await self._write(key, value, expected=last)
            except Aborted:
                entry = await self._last(key)
                if entry is not None and not entry.deleted:
                    raise AlreadyExists(f"{self.bucket}/{key} exists", reason="KEY_EXISTS") from None
                last = 0 if entry is None else entry.revision

    async def update(self, key: str, value: bytes, revision: int) -> int:
        """The new revision; Aborted when the key is no longer at `revision`.

        An answer lost on the way does not turn success into Aborted: the write is repeated under its
        own id. Unavailable means "not known": read again.
        """
        try:
            return await self._write(key, value, expected=revision)
        except Aborted:
            raise Aborted(
                f"{self.bucket}/{key} is no longer at revision {revision}", reason="WRONG_REVISION"
            ) from None

    async def put(self, key: str, value: bytes) -> int:
        """Write whatever is there; returns the revision."""
        return await self._write(key, value, expected=None)

    async def delete(self, key: str, *, revision: int | None = None) -> None:
        """Delete, at `revision` only when it is given (Aborted when lost). Deleting nothing is no error."""
        headers = {_OPERATION: "PURGE", api.Header.ROLLUP.value: "sub"}
        await self._write(key, b"", expected=revision, headers=headers)

    async def entries(self, prefix: str = "") -> list[Entry]:
        """All live entries whose keys begin with `prefix`, by key; each read once, not one snapshot."""
        found: dict[str, Entry] = {}
        async for message in self._follow(prefix, to_end=True, headers_only=False):
            entry = self._entry(message)
            found[entry.key] = entry
        return [found[key] for key in sorted(found) if not found[key].deleted and key.startswith(prefix)]

    async def keys(self, prefix: str = "") -> Sequence[str]:
        """Live keys that begin with `prefix`, sorted."""
        found: dict[str, bool] = {}
        async for message in self._follow(prefix, to_end=True, headers_only=True):
            entry = self._entry(message)
            found[entry.key] = entry.deleted
        return sorted(key for key, deleted in found.items() if not deleted and key.startswith(prefix))

    async def watch(self, prefix: str = "") -> AsyncGenerator[Entry, None]:
        """What is there now, then every change, for ever, through restarts of the server.

        Of changes made while the connection was away the last of each key comes. Deletions come as
        entries with `deleted`; keys that a TTL removed do not come.
        """
        async with aclosing(self._follow(prefix, to_end=False, headers_only=False)) as messages:
            async for message in messages:
                entry = self._entry(message)
                if entry.key.startswith(prefix):
                    yield entry

    async def _follow(
        self, prefix: str, *, to_end: bool, headers_only: bool
    ) -> AsyncGenerator[Msg, None]:
        await self._ensure()
        place = Place(f"{self._root}{prefix.rpartition('.')[0]}.>" if "." in prefix else f"{self._root}>",
                      headers_only=headers_only)
        async with aclosing(follow(self._link, self._stream, place, to_end=to_end)) as messages:
            async for message in messages:
                yield message

    async def _write(
        self, key: str, value: bytes, *, expected: int | None, headers: dict[str, str] | None = None
    ) -> int:
        await self._ensure()
        return await store(
            self._link, self._subject(key), value, message_id=uuid.uuid4().hex, headers=headers,
            expected_last=expected, stream=self._stream, last=True,   # states of what goes on or ends
        )

    async def _last(self, key: str) -> Entry | None:
        await self._ensure()
        subject = self._subject(key)

        async def read(session: Session) -> api.RawStreamMsg | None:
            try:
                return await session.js.get_last_msg(self._stream, subject)
            except js_errors.NotFoundError:
                return None

        raw = await self._link.call(f"get {self.bucket}/{key}", read)
        if raw is None or raw.seq is None:
            return None
        headers = raw.headers or {}
        at = raw.time.timestamp() if raw.time is not None else time.time()
        return Entry(key, raw.data or b"", raw.seq, at, _OPERATION in headers or _MARKER in headers)

    def _entry(self, message: Msg) -> Entry:
        meta = message.metadata
        headers = message.headers or {}
        return Entry(
            message.subject.removeprefix(self._root), message.data, meta.sequence.stream,
            meta.timestamp.timestamp(), _OPERATION in headers or _MARKER in headers,
        )

    def _subject(self, key: str) -> str:
        if not key or not set(key) <= _ALLOWED or key[0] == "." or key[-1] == "." or ".." in key:
            reason = f"{key!r} is no key: letters, digits, '-_/=' and single dots inside"
            raise InvalidArgument(reason, violations=[Violation("key", reason)])
        return self._root + key

    async def _ensure(self) -> None:
        if not self._ensured:
            await ensure_stream(self._link, self._config)
            self._ensured = True
