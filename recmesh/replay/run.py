"""The loop of a replay: read, wait until rows are due, send, and tell how far it is."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from recmesh.partitions import partitions_of
from recmesh.replay.pace import Pace, rounds_apart
from recmesh.replay.resume import There, message_id
from recmesh.replay.rows import Chunk, Rows, as_json, keys_of, times_of
from recmesh.replay.sinks import Sink
from recmesh.runtime.clock import Clock, system_clock

_GRAIN_S = 0.005
"""Rows that are due within it are sent together."""
_PART_ROWS = 2048
"""Rows that are made JSON at once, so that the loop answers in between."""

Times = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Options:
    """What a replay does with its rows."""

    time: str = ""
    """The column of event time; empty: there is none."""
    key: str = ""
    """The column whose value chooses the partition; empty: each in turn."""
    speed: float = 1.0
    """0: as fast as it goes."""
    begin: float | None = None
    end: float | None = None
    """Only rows of this event time, the end not included."""
    limit: int | None = None
    loop: bool = False
    """Again and again; each round's event times follow those of the one before."""
    resume: bool = False
    """Rows that the topic has already are passed over."""


@dataclass(slots=True)
class Progress:
    """How far a replay is."""

    total: int
    """Rows of a round."""
    rounds: int = 0
    sent: int = 0
    skipped: int = 0
    """Rows that were there already, with `resume`."""
    doubles: int = 0
    """Rows that were sent and were there already."""
    left_out: int = 0
    """Rows of other times."""
    size_bytes: int = 0
    event_time: float | None = None
    """Of the last row sent."""
    lag_s: float = 0.0
    """How long after it was due the last row was sent."""
    most_lag_s: float = 0.0
    seconds: float = 0.0
    stopped: bool = False
    """It was asked to end before its end."""


@dataclass
class Replay:
    """One run; `stop` may be called at any time, and then what was sent is waited for."""

    rows: Rows
    sink: Sink
    options: Options
    tell: Callable[[Progress], None] = lambda _: None
    clock: Clock = system_clock
    every_s: float = 1.0
    _stop: asyncio.Event = field(default_factory=asyncio.Event)
    _pace: Pace | None = None
    _began: float = 0.0
    _told: float = 0.0
    _shift: float = 0.0
    """What is added to the times of this round."""

    def stop(self) -> None:
        """End after the row that is being sent."""
        self._stop.set()

    async def run(self) -> Progress:
        """Sends what is to be sent; the sink is started, and stored all of it when this returns."""
        done = Progress(self.rows.total)
        self._began = self._told = self.clock.monotonic()
        there = await self.sink.reached(self.rows.offsets, self.rows.total) if self.options.resume else None
        while not self._over(done):
            first_last: list[float] = []
            for chunk in self.rows.chunks():
                await self._chunk(chunk, done, there, first_last)
                if self._over(done):
                    break
            done.rounds += 1
            if not self.options.loop or not self.rows.total:
                break
            if first_last:
                self._shift += rounds_apart(min(first_last), max(first_last), self.rows.total)
        await self.sink.flush()
        done.doubles = self.sink.doubles
        done.seconds = self.clock.monotonic() - self._began
        done.stopped = self._stop.is_set()
        return done

    def _over(self, done: Progress) -> bool:
        limit = self.options.limit
        return self._stop.is_set() or (limit is not None and done.sent + done.skipped >= limit)

    async def _chunk(
        self, chunk: Chunk, done: Progress, there: list[There] | None, first_last: list[float]
    ) -> None:
        options, table = self.options, chunk.table
        count = table.num_rows
        rows = np.arange(count)
        times: Times | None = None
        if options.time:
            times = times_of(table, options.time, where=f"the rows from {chunk.first_row} on")
            first_last += [float(times.min()), float(times.max())] if count else []
            inside = np.ones(count, bool)
            if options.begin is not None:
                inside &= times >= options.begin
            if options.end is not None:
                inside &= times < options.end
            rows = np.flatnonzero(inside)
        done.left_out += count - len(rows)
        keys = keys_of(table, options.key) if options.key else None
        where = (
            (chunk.number + np.arange(count)) % self.sink.partitions if keys is None
            else partitions_of(keys, self.sink.partitions)
        )
        for lo in range(0, len(rows), _PART_ROWS):
            part = rows[lo : lo + _PART_ROWS]
            await self._part(chunk, part, times, where, keys, done, there)
            if self._over(done):
                return

    async def _part(
        self, chunk: Chunk, part: NDArray[np.int64], times: Times | None, where: NDArray[np.int64], keys: Any,
        done: Progress, there: list[There] | None,
    ) -> None:
        base = done.rounds * self.rows.total + chunk.number
        if there is not None:
            new = np.fromiter((base + row not in there[where[row]] for row in part.tolist()), bool, len(part))
            done.skipped += len(part) - int(new.sum())
            part = part[new]
        if not len(part):
            return
        texts = as_json(chunk.table.take(part), self.rows.columns)
        due = self._due(times[part] + self._shift) if times is not None else None
        names = keys.take(part).to_pylist() if keys is not None else None
        for i, row in enumerate(part.tolist()):
            if due is not None:
                await self._wait(due[i], done)
            if self._over(done):
                return
            at = None if times is None else float(times[row]) + self._shift
            await self.sink.send(
                int(where[row]), texts[i], message_id=message_id(chunk.file, done.rounds, chunk.first_row + row),
                key=names[i] if names else "", at=at,
            )
            done.sent += 1
            done.size_bytes += len(texts[i])
            done.event_time = at
        self._say(done)

    def _due(self, times: Times) -> Times | None:
        if not self.options.speed:
            return None
        if self._pace is None:
            self._pace = Pace(self.options.speed, float(times[0]), self.clock.monotonic())
        return self._pace.due(times)

    async def _wait(self, due: float, done: Progress) -> None:
        now = self.clock.monotonic()
        done.lag_s = max(0.0, now - due)
        done.most_lag_s = max(done.most_lag_s, done.lag_s)
        while due - now > _GRAIN_S and not self._stop.is_set():
            await self.clock.sleep(min(due - now, 0.2))
            now = self.clock.monotonic()
            self._say(done)

    def _say(self, done: Progress) -> None:
        if (now := self.clock.monotonic()) - self._told >= self.every_s:
            done.seconds, self._told = now - self._began, now
            self.tell(done)
