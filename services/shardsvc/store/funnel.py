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

LANES = 4
"""Round trips under way at once; whoever comes meanwhile shares the next one."""
MOST_TOGETHER = 64
MOST_WAITING = 8_192

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

    def __init__(self, client: Redis) -> None:
        self._client = client
        self._waiting: deque[_Call] = deque()
        self._lanes: set[asyncio.Task[None]] = set()

    async def run(self, script: Script, *, keys: Sequence[str], args: Sequence[Any]) -> Any:
        """The script's answer; Unavailable when Valkey does not give one."""
        if len(self._waiting) >= MOST_WAITING:
            raise Unavailable(f"{MOST_WAITING} calls wait for Valkey already", reason="VALKEY_BACKLOG")
        call = _Call(script, keys, args, asyncio.get_running_loop().create_future())
        self._waiting.append(call)
        if len(self._lanes) < LANES:
            lane = asyncio.create_task(self._drain(), name="valkey-lane")
            self._lanes.add(lane)
            lane.add_done_callback(self._lanes.discard)
        return await call.answer

    async def _drain(self) -> None:
        while self._waiting:
            together = [self._waiting.popleft() for _ in range(min(MOST_TOGETHER, len(self._waiting)))]
            calls = [call for call in together if not call.answer.done()]       # its caller gave up
            try:
                await self._send(calls)
            except Exception as error:
                for call in calls:
                    _settle(call, _explained(error))

    async def _send(self, calls: list[_Call]) -> None:
        answers = await self._round_trip(calls)
        unknown = [i for i, answer in enumerate(answers) if isinstance(answer, NoScriptError)]
        if unknown:
            for text in {calls[i].script.text for i in unknown}:
                await self._client.script_load(text)
            again = await self._round_trip([calls[i] for i in unknown])
            for i, answer in zip(unknown, again, strict=True):
                answers[i] = answer
        for call, answer in zip(calls, answers, strict=True):
            _settle(call, _explained(answer) if isinstance(answer, Exception) else answer)

    async def _round_trip(self, calls: list[_Call]) -> list[Any]:
        if not calls:
            return []
        async with self._client.pipeline(transaction=False) as pipeline:
            for call in calls:
                pipeline.evalsha(call.script.sha, len(call.keys), *call.keys, *call.args)
            return list(await pipeline.execute(raise_on_error=False))


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
