"""Scripts of concurrent calls share round trips to Valkey, and its fsyncs."""

import asyncio
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from redis.asyncio import Redis
from redis.exceptions import ConnectionError as ValkeyGone
from redis.exceptions import NoScriptError, RedisError, ResponseError
from redis.exceptions import TimeoutError as ValkeyLate

from recmesh.runtime.errors import Internal, MeshError, Unavailable
from services.shardsvc.store.lane import Lane

LANES = 4
"""Round trips under way at once; whoever comes meanwhile shares the next one."""
MOST_TOGETHER = 64
MOST_WAITING = 8_192
TIMEOUT_S = 5.0

_PASSING = ("LOADING", "BUSY", "READONLY", "MASTERDOWN", "OOM", "MISCONF", "CLUSTERDOWN")
"""Refusals that a moment or an operator mends; all others are bugs of a script."""


@dataclass(frozen=True, slots=True)
class Script:
    """A script by its text and hash; the server may forget it at any time."""

    text: str
    sha: str


@dataclass(frozen=True, slots=True)
class _Call:
    script: Script
    keys: Sequence[str]
    args: Sequence[Any]
    answer: "asyncio.Future[Any]"


class Funnel:
    """Runs scripts. A call may run twice when a connection breaks: scripts must bear it."""

    def __init__(self, client: Redis, *, timeout_s: float = TIMEOUT_S) -> None:
        """`timeout_s`: for a round trip, each time it is tried."""
        self._client = client
        self._waiting: deque[_Call] = deque()
        self._free = [Lane(client, timeout_s=timeout_s) for _ in range(LANES)]
        self._draining: set[asyncio.Task[None]] = set()

    async def run(self, script: Script, *, keys: Sequence[str], args: Sequence[Any]) -> Any:
        """The script's answer; Unavailable when Valkey does not give one."""
        if len(self._waiting) >= MOST_WAITING:
            raise Unavailable(f"{MOST_WAITING} calls wait for Valkey already", reason="VALKEY_BACKLOG")
        call = _Call(script, keys, args, asyncio.get_running_loop().create_future())
        if not self._free:
            self._waiting.append(call)
            return await call.answer
        lane = self._free.pop()                 # the last that was used: where calls come one by one, it is always this
        try:
            await self._settled(lane, [call])
        finally:
            self._go_on(lane)
        return call.answer.result()

    async def stop(self) -> None:
        """Drops the connections."""
        for lane in self._free:
            await lane.close()

    def _go_on(self, lane: Lane) -> None:
        """The lane is free, or has those that wait."""
        if not self._waiting:
            self._free.append(lane)
            return
        task = asyncio.create_task(self._drain(lane), name="valkey-lane")
        self._draining.add(task)
        task.add_done_callback(self._draining.discard)

    async def _drain(self, lane: Lane) -> None:
        try:
            while self._waiting:
                together = [self._waiting.popleft() for _ in range(min(MOST_TOGETHER, len(self._waiting)))]
                await self._settled(lane, [call for call in together if not call.answer.done()])    # some gave up
        finally:
            self._free.append(lane)

    async def _settled(self, lane: Lane, calls: list[_Call]) -> None:
        try:
            await self._send(lane, calls)
        except Exception as error:
            for call in calls:
                _settle(call, _explained(error))

    async def _send(self, lane: Lane, calls: list[_Call]) -> None:
        answers = await self._round_trip(lane, calls)
        unknown = [i for i, answer in enumerate(answers) if isinstance(answer, NoScriptError)]
        if unknown:
            for text in {calls[i].script.text for i in unknown}:
                await self._client.script_load(text)
            again = await self._round_trip(lane, [calls[i] for i in unknown])
            for i, answer in zip(unknown, again, strict=True):
                answers[i] = answer
        for call, answer in zip(calls, answers, strict=True):
            _settle(call, _explained(answer) if isinstance(answer, Exception) else answer)

    async def _round_trip(self, lane: Lane, calls: list[_Call]) -> list[Any]:
        if not calls:
            return []
        return await lane.exchange([
            ("EVALSHA", call.script.sha, len(call.keys), *call.keys, *call.args) for call in calls
        ])


def _settle(call: _Call, outcome: Any) -> None:
    if call.answer.done():
        return
    if isinstance(outcome, Exception):
        call.answer.set_exception(outcome)
    else:
        call.answer.set_result(outcome)


def _explained(error: Exception) -> Exception:
    match error:
        case MeshError():
            return error
        case ValkeyGone() | ValkeyLate():
            return Unavailable(f"Valkey does not answer: {error}", reason="VALKEY_DOWN")
        case ResponseError() if not _is_passing(error):
            return Internal(f"a queue script failed: {error}")
        case RedisError():
            return Unavailable(f"Valkey refuses now: {error}", reason="VALKEY_DOWN")
        case _:
            return Internal(f"calling Valkey failed: {type(error).__name__}: {error}")


def _is_passing(error: ResponseError) -> bool:
    text = f"{type(error).__name__.upper()} {error}"
    return any(word in text for word in _PASSING)


async def guarded(awaitable: Any) -> Any:
    """The awaitable's result; errors of Valkey explained."""
    try:
        return await awaitable
    except (RedisError, OSError) as error:
        raise _explained(error) from error
