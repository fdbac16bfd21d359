"""Queues in Valkey, changed by atomic scripts only; replicas of shardsvc share them without more ado."""

import hashlib
from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import Any, cast

import orjson
from redis.asyncio import BlockingConnectionPool, Redis
from redis.asyncio.retry import Retry
from redis.backoff import ExponentialBackoff
from redis.exceptions import ConnectionError as ValkeyGone
from redis.exceptions import TimeoutError as ValkeyLate

from recmesh.formats import IntervalSet
from recmesh.runtime.clock import Clock, system_clock
from recmesh.runtime.errors import InvalidArgument, Unavailable
from services.shardsvc.domain.lease import (
    Cause,
    Extended,
    Granted,
    Lease,
    Opening,
    Reconciled,
    Released,
    Renewed,
    Requeued,
    State,
    View,
)
from services.shardsvc.store.funnel import Funnel, Script, guarded
from services.shardsvc.store.queue import MOST_HELD, Opened

_SCRIPTS = Path(__file__).parent / "lua"
_NAMES = ("open", "extend", "lease", "renew", "release", "reconcile", "look", "size")
_KINDS = ("queue", "leases", "expiry", "workers", "recent", "lapsed")
_REQUEST_KEPT_MS = 60_000
_RELEASE_KEPT_MS = 600_000
_LEAST_WAIT_S, _MOST_WAIT_S = 0.05, 1.0


def connect(url: str, *, connections: int = 8, timeout_s: float = 5.0) -> Redis:
    """A client with a bounded pool. Calls are retried when a connection broke: each script may run twice."""
    try:
        pool = BlockingConnectionPool.from_url(
            url,
            max_connections=connections,
            timeout=timeout_s,
            socket_timeout=timeout_s,
            socket_connect_timeout=timeout_s,
            retry=Retry(ExponentialBackoff(cap=0.5, base=0.02), retries=4),
            retry_on_error=[ValkeyGone, ValkeyLate],
        )
    except ValueError as error:
        raise InvalidArgument(f"RECMESH_VALKEY_URL is wrong: {error}", reason="BAD_CONFIG") from None
    return Redis.from_pool(pool)


class ValkeyQueue:
    """`QueueStore` in Valkey."""

    name = "valkey"

    def __init__(
        self, client: Redis, *, clock: Clock = system_clock, start_timeout_s: float = 30.0
    ) -> None:
        self._client = client
        self._clock = clock
        self._start_timeout_s = start_timeout_s
        self._funnel = Funnel(client)
        self._scripts = {name: _script(name) for name in _NAMES}

    async def start(self) -> None:
        """Returns when the server answers; Unavailable when it does not within the time."""
        deadline = self._clock.monotonic() + self._start_timeout_s
        while True:
            try:
                await self.ping()
                return
            except Unavailable:
                if self._clock.monotonic() >= deadline:
                    raise
                await self._clock.sleep(0.2)

    async def ping(self) -> None:
        """Returns when the server answers; Unavailable otherwise."""
        await guarded(self._client.ping())

    async def stop(self) -> None:
        """Drops all connections."""
        await self._funnel.stop()
        await self._client.aclose()

    async def _run(
        self, script: str, job_id: str, gen: int, *args: Any, more: Sequence[str] = ()
    ) -> list[Any]:
        keys = [f"rm:{{{job_id}}}:run", *(f"rm:{{{job_id}}}:{gen}:{kind}" for kind in _KINDS), *more]
        reply = await self._funnel.run(self._scripts[script], keys=keys, args=[gen, *args])
        return cast(list[Any], orjson.loads(reply))

    async def open(self, job_id: str, opening: Opening) -> Opened:
        """See QueueStore."""
        pairs = [bound for piece in opening.to_do for bound in piece]
        ttl_ms = max(1, round(opening.ttl_s * 1000))
        reply = await self._run(
            "open", job_id, opening.gen, opening.total, opening.batch_size, opening.shard_batches, ttl_ms,
            opening.first_epoch, f"rm:{{{job_id}}}:", int(opening.more), *pairs,
        )
        return cast(Opened, reply[0])

    async def extend(self, job_id: str, gen: int, *, total: int, closed: bool) -> Extended:
        """See QueueStore."""
        reply = await self._run("extend", job_id, gen, total, int(closed))
        return Extended(State(reply[0]), reply[1] if len(reply) > 1 else 0)

    async def lease(
        self, job_id: str, gen: int, *, worker: str, shards: int, request_id: str, below: int = 0
    ) -> Granted:
        """See QueueStore."""
        request = f"rm:{{{job_id}}}:{gen}:request:{worker}:{request_id}"
        kept_ms = _REQUEST_KEPT_MS if request_id else 0
        reply = await self._run("lease", job_id, gen, worker, shards, kept_ms, MOST_HELD, below, more=[request])
        state = State(reply[0])
        if len(reply) == 1:
            return Granted(state)
        _, ttl_ms, wait_ms, granted, told = reply
        by_four = zip(*[iter(granted)] * 4, strict=True)
        wait_s = min(_MOST_WAIT_S, max(_LEAST_WAIT_S, wait_ms / 1000)) if state is State.WAIT else 0.0
        return Granted(
            state,
            tuple(Lease(epoch, worker, lo, hi, progress) for epoch, lo, hi, progress in by_four),
            ttl_s=ttl_ms / 1000,
            retry_after_s=wait_s,
            requeued=_requeued(told, Cause.EXPIRED),
        )

    async def renew(
        self, job_id: str, gen: int, *, worker: str, progress: Sequence[tuple[int, int, bool, int]]
    ) -> Renewed:
        """See QueueStore."""
        complete = " ".join(str(epoch) for epoch, _, is_complete, _ in progress if is_complete)
        going_on = [(epoch, done_to, hi) for epoch, done_to, is_complete, hi in progress if not is_complete]
        reply = await self._run("renew", job_id, gen, worker, complete, *chain.from_iterable(going_on))
        if len(reply) == 1:
            return Renewed(State(reply[0]))
        return Renewed(State(reply[0]), tuple(reply[1]), tuple((epoch, hi) for epoch, hi in reply[2]))

    async def size(self, job_id: str, gen: int, *, worker: str, shard_batches: int) -> Released:
        """See QueueStore."""
        reply = await self._run("size", job_id, gen, worker, shard_batches)
        told = reply[1] if len(reply) > 1 else []
        return Released(State(reply[0]), _requeued(told, Cause.CUT))

    async def release(self, job_id: str, gen: int, *, worker: str, crashed: bool) -> Released:
        """See QueueStore."""
        more = [f"rm:{{{job_id}}}:deaths", f"rm:{{{job_id}}}:{gen}:release:{worker}"]
        reply = await self._run("release", job_id, gen, worker, int(crashed), _RELEASE_KEPT_MS, more=more)
        if len(reply) == 1:
            return Released(State(reply[0]))
        state, told, suspects, deaths = reply
        cause = Cause.CRASHED if crashed else Cause.RELEASED
        pieces = tuple((lo, hi) for lo, hi in suspects)
        return Released(State(state), _requeued(told, cause), pieces, deaths)

    async def reconcile(self, job_id: str, gen: int, *, done: IntervalSet) -> Reconciled:
        """See QueueStore."""
        reply = await self._run("reconcile", job_id, gen, *(bound for piece in done for bound in piece))
        orphans = tuple((lo, hi) for lo, hi in reply[2]) if len(reply) > 1 else ()
        return Reconciled(State(reply[0]), orphans)

    async def look(self, job_id: str, gen: int) -> tuple[Released, View | None]:
        """See QueueStore."""
        reply = await self._run("look", job_id, gen, 1)
        state = State(reply[0])
        if len(reply) == 1:
            return Released(state), None
        _, told, (total, queued, granted, requeues, expirations, pieces, first), leases = reply
        held = tuple(
            Lease(epoch, worker, lo, hi, progress, age_ms / 1000)
            for epoch, lo, hi, progress, age_ms, worker in sorted(leases)
        )
        view = View(gen, total, queued, held, expirations, requeues, granted, pieces, first)
        return Released(state, _requeued(told, Cause.EXPIRED)), view

    async def sweep(self, job_id: str, gen: int) -> Released:
        """See QueueStore."""
        reply = await self._run("look", job_id, gen, 0)
        told = reply[1] if len(reply) > 1 else []
        return Released(State(reply[0]), _requeued(told, Cause.EXPIRED))

    async def forget(self, job_id: str, gen: int) -> None:
        """See QueueStore."""
        names = [f"rm:{{{job_id}}}:run", f"rm:{{{job_id}}}:deaths"]
        names += [f"rm:{{{job_id}}}:{gen}:{kind}" for kind in _KINDS]
        await guarded(self._client.unlink(*names))


def _script(name: str) -> Script:
    text = (_SCRIPTS / "prelude.lua").read_text() + (_SCRIPTS / f"{name}.lua").read_text()
    return Script(text, hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest())


def _requeued(told: Sequence[Any], cause: Cause) -> tuple[Requeued, ...]:
    return tuple(Requeued(worker, epoch, lo, hi, cause) for worker, epoch, lo, hi in told)
