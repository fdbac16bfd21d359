"""The tier between a process and its disk: rows in Valkey, which all processes of a model share.

Only rows of mapped snapshots are here, under keys that name the snapshot: they never change, so that a row found is
right, whoever wrote it and whenever. What is newer lies in every process. A server that is away, slow or full costs a
request the deadline once; then it is left alone for a while, and the disk answers. No request connects: names are
resolved before any socket has a deadline, which may take a resolver many seconds. A thread of its own does.
"""

import contextlib
import queue
import threading
from typing import Any

import numpy as np
import redis
from numpy.typing import NDArray
from redis.backoff import NoBackoff
from redis.retry import Retry

from recmesh.formats.tables import Ids, Rows
from recmesh.serving.settings import ValkeySettings

MOST_IDS = 4096
"""Of one MGET; the rest of a request's ids is read from disk."""
WRITES_WAITING = 64
PAUSES_S = (1.0, 2.0, 5.0, 10.0, 30.0)

_FAILURES = (redis.RedisError, OSError, ValueError)


_connecting = threading.local()


def _connected_by_connectors(kind: type[Any]) -> type[Any]:
    """The connection class, whose connections no other thread opens: where one is not open, that is a failure."""

    def _connect(self: Any) -> Any:
        if not getattr(_connecting, "allowed", False):
            raise ConnectionError("it is not connected")
        return kind._connect(self)

    return type(f"Connected{kind.__name__}", (kind,), {"_connect": _connect})


class Valkey:
    """Used by one thread; another writes what was read from disk, and a third connects."""

    def __init__(self, settings: ValkeySettings, *, prefix: str) -> None:
        self._settings, self._prefix = settings, prefix.encode()
        timeout_s = settings.deadline_ms / 1e3
        self._client: Any = redis.Redis.from_url(
            settings.url, socket_timeout=timeout_s, socket_connect_timeout=max(timeout_s, 0.05),
            retry=Retry(NoBackoff(), 0), protocol=2,
        )
        pool = self._client.connection_pool
        pool.connection_class = _connected_by_connectors(pool.connection_class)
        self._failures, self._closed = 0, False
        self._up, self._down, self._closing = threading.Event(), threading.Event(), threading.Event()
        self._writes: queue.Queue[tuple[list[bytes], Rows] | None] = queue.Queue(WRITES_WAITING)
        self.dropped = 0
        """Batches of rows that were not written for want of room in the queue, or by a failure."""
        self.errors = 0
        """Look-ups that failed."""
        self._writer = threading.Thread(target=self._write, name="valkey-writer", daemon=True)
        self._writer.start()
        self._connector = threading.Thread(target=self._connect, name="valkey-connector", daemon=True)
        self._connector.start()

    @property
    def is_up(self) -> bool:
        """It is asked at the next look-up."""
        return not self._closed and self._up.is_set()

    def connected(self, timeout_s: float) -> bool:
        """Wait for it to be up; False when that took longer."""
        return self._up.wait(timeout_s)

    def get(self, table: str, snapshot: int, ids: Ids, out: Rows) -> NDArray[np.bool_]:
        """Which of the ids are there; their rows are written to out [ids, dim]. Never raises for a server's sake."""
        found = np.zeros(len(ids), np.bool_)
        if not len(ids) or not self.is_up:
            return found
        size_bytes = out.shape[1] * 4
        try:
            values = self._client.mget(self._keys(table, snapshot, ids[:MOST_IDS]))
            self._failures = 0
        except _FAILURES:
            self._rest()
            return found
        for place, value in enumerate(values):
            if value is not None and len(value) == size_bytes:
                out[place] = np.frombuffer(value, "<f4")
                found[place] = True
        return found

    def offer(self, table: str, snapshot: int, ids: Ids, rows: Rows) -> None:
        """Rows read from disk; written behind the request's back, or dropped."""
        if not len(ids) or not self.is_up:
            return
        try:
            self._writes.put_nowait((self._keys(table, snapshot, ids), rows.copy()))
        except queue.Full:
            self.dropped += 1

    def close(self) -> None:
        """End the writer after the batch that it is at; what waits is dropped."""
        self._closed = True
        self._closing.set()
        self._down.set()
        with contextlib.suppress(queue.Empty):
            while self._writes.get_nowait() is not None:
                self.dropped += 1
        with contextlib.suppress(queue.Full):        # a late offer filled it: the writer wakes by that
            self._writes.put_nowait(None)
        with contextlib.suppress(*_FAILURES):
            self._client.close()

    def _keys(self, table: str, snapshot: int, ids: Ids) -> list[bytes]:
        head = b"%s:%d:%s:" % (self._prefix, snapshot, table.encode())
        return [head + id_.tobytes() for id_ in ids.astype("<i8")]

    def _rest(self) -> None:
        self.errors += 1
        self._up.clear()
        with contextlib.suppress(*_FAILURES):        # or the late answer would be taken for the next one's
            self._client.connection_pool.disconnect()
        self._down.set()

    def _connect(self) -> None:
        _connecting.allowed = True
        while True:
            self._down.clear()
            if self._closed:                         # else it is told from here on
                return
            with contextlib.suppress(*_FAILURES):
                self._client.ping()
                self._up.set()
                self._down.wait()
            pause_s = PAUSES_S[min(self._failures, len(PAUSES_S) - 1)]
            self._failures += 1                      # until a look-up succeeds: one that answers pings alone is not up
            self._closing.wait(pause_s)

    def _write(self) -> None:
        client: Any = redis.Redis.from_url(
            self._settings.url, socket_timeout=1.0, socket_connect_timeout=1.0, protocol=2
        )
        while (item := self._writes.get()) is not None and not self._closed:
            keys, rows = item
            try:
                with client.pipeline(transaction=False) as pipe:
                    for key, row in zip(keys, rows, strict=True):
                        pipe.set(key, row.astype("<f4").tobytes(), ex=self._settings.ttl_s)
                    pipe.execute()
            except _FAILURES:
                self.dropped += 1
        client.close()
