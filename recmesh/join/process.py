"""The loop of a join: read, decide, send, write down."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

from recmesh.join.domain import (
    Effect,
    Empty,
    Ended,
    Event,
    Fate,
    Full,
    Join,
    Joined,
    Label,
    Late,
    Position,
    Read,
    Rules,
    Side,
    Tick,
    Unreadable,
)
from recmesh.join.files import Files
from recmesh.join.inputs import Input, JetStreamInput, Merge
from recmesh.join.messages import CONSUMED, FATE, Message, event_of, labels_in, position_of
from recmesh.join.positions import Positions
from recmesh.join.record import Record
from recmesh.join.topics import Topics, id_in
from recmesh.runtime.bus import Link
from recmesh.runtime.clock import Clock, system_clock
from recmesh.runtime.errors import ResourceExhausted
from recmesh.runtime.telemetry import Metrics, get_logger
from recmesh.spec.join import LabelJoin

_TICK_S = 0.25
_BURST = 64
"""Events between two looks at the clock."""
_MOST_UNNOTED = 20_000
"""Messages that are sent, or files' rows, before positions are written down, however little time has passed."""

_log = get_logger(__name__)
_metrics = Metrics("join")
_fates = _metrics.counter("messages", "Samples and labels by what became of them", labels=("join", "fate"))
_waiting = _metrics.gauge("waiting_samples", "Samples that wait for a label", labels=("join",))
_held = _metrics.gauge("held_labels", "Labels whose sample has not come", labels=("join",))
_frontier = _metrics.gauge("frontier_seconds", "Event time up to which all samples went out", labels=("join",))
_full = _metrics.gauge("full", "1 while samples are not read because too many wait", labels=("join",))
_commits = _metrics.counter("commits", "Positions written down", labels=("join",))
_late_samples = _metrics.gauge("late_samples", "Samples in a later window than their own", labels=("join",))
_lost = _metrics.counter("lost_messages", "Gone from the input before they were settled", labels=("join", "side"))


@dataclass
class JoinProcess:
    """One join, from its last positions on; `stop` may be called at any time."""

    spec: LabelJoin
    link: Link
    to_end: bool = False
    """End when all that is in the input now is joined, as if nothing came after it."""
    tell: Callable[["JoinProcess"], None] = lambda _: None
    every_s: float = 10.0
    clock: Clock = system_clock
    positions: Positions = field(init=False)
    join: Join = field(init=False)
    _stop: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        spec = self.spec
        self._topics = Topics(self.link, spec)
        self._files = Files(spec) if spec.files else None
        self._record = Record(self.link, spec.name)
        self._inputs: dict[Side, Input] = {
            "samples": JetStreamInput(self.link, "samples", spec.samples.topic),
            "labels": JetStreamInput(self.link, "labels", spec.labels.topic),
        }
        self._merge = Merge(self._parsed, self.clock)
        self._unnoted = 0
        self._told: dict[str, int] = {}
        self._noted_at = self._spoke_at = 0.0

    def stop(self) -> None:
        """End after the event at hand; what was sent is waited for, and written down."""
        self._stop.set()

    @property
    def counts(self) -> dict[str, int]:
        """Messages by their fate, as of the last note, over all lives; and what waits now."""
        if not hasattr(self, "join"):
            return {}
        found = {fate.value: self.positions.counts.get(fate, 0) for fate in Fate}
        if self._files is not None:
            found["late_samples"] = self._files.late_samples
        return found | {"waiting_samples": self.join.waiting, "held_labels": self.join.held}

    async def run(self) -> None:
        """Joins until it is stopped, or, with `to_end`, until the input's end. The link is open.

        NotFound: there is no such topic. ResourceExhausted: samples and labels are both at their limit, so that none of
        them can be settled. FailedPrecondition: another process has taken over.
        """
        try:
            await self._begin()
            while not self._stop.is_set():
                if await self._step():
                    break
            await self._note()
        finally:
            await self._merge.close()
            await self._topics.stop()

    async def _begin(self) -> None:
        for topic in self._inputs.values():
            await topic.start()
        counts = {side: topic.partitions for side, topic in self._inputs.items()}
        record = await self._record.take()         # another process of this name ends when it writes next
        if record is None:
            self.positions, known = Positions(**counts), None
        else:
            self.positions, known = Positions.decode(record, **counts)
        self._told = dict(self.positions.counts)
        if self._files is not None and known is not None:
            self._files.restore(known["files"])
        for headers in await self._topics.start(known["ends"] if known else None):
            self._recover(id_in(headers), headers.get(FATE, ""), headers.get(CONSUMED, ""))
        spec = self.spec
        self.join = Join(Rules(
            window_s=spec.window, early_s=spec.early_s, several=spec.labels.several,
            default_label=spec.default_label, disorder_s=(spec.samples.disorder, spec.labels.disorder),
            idle_s=spec.idle, remembered=spec.limit,
        ), **counts)
        await self._note()
        for side, topic in self._inputs.items():
            begins = {}
            for partition in range(topic.partitions):
                begins[partition] = await self._first(topic, partition)
            self._merge.open(topic, begins, to_end=self.to_end)
            _log.info("%s are read from %s on", side, {number: begin for number, (begin, _) in begins.items()})

    async def _first(self, topic: Input, partition: int) -> tuple[int, int]:
        """Where it is read from, and its last sequence now."""
        low = self.positions.low(topic.side, partition)
        first, last = await topic.bounds(partition)
        if max(low, first) > last:              # all of it was read, or is gone
            await self._handle(Empty(topic.side, partition))
        if first > low and self.positions.counts:
            gone = sum(
                not self.positions.is_settled(Position(topic.side, partition, n)) for n in range(low, first)
            ) if first - low < 1_000_000 else first - low
            if gone:
                _lost.labels(self.spec.name, topic.side).inc(gone)
                _log.error("%s %d: %d messages were removed before they were joined", topic.side, partition, gone)
        return max(low, first), last

    def _recover(self, id_: str, fate: str, labels: str) -> None:
        """A message of an output that was stored and not written down."""
        at = position_of(id_, self.spec.name)
        if at is None:
            return
        if at.side == "labels":
            self.positions.settle(at, Fate.LATE)
            return
        self.positions.settle(at, Fate(fate), keep=True)
        for label in labels_in(labels):
            self.positions.settle(label, Fate.JOINED)

    def _parsed(self, message: Message) -> Read:
        side = self.spec.labels if message.at.side == "labels" else self.spec.samples
        return event_of(message, side, self.positions.is_settled)

    async def _step(self) -> bool:
        """Some events, or a moment's rest; whether all is done."""
        for _ in range(_BURST):
            if self._merge.fresh:
                waiting = tuple(self._merge.fresh)
                self._merge.fresh.clear()
                await self._handle(Tick(waiting))
            sides = self._with_room()
            event = self._merge.take(sides)
            if event is None:
                if await self._rest(sides):
                    return True
                break
            self.positions.read(event.at)
            await self._handle(event)
        await self._when_due()
        await asyncio.sleep(0)                    # who reads and who hears answers has its turn
        return False

    def _with_room(self) -> list[Side]:
        """Of which there are not too many."""
        sides: list[Side] = []
        if self.join.waiting < self.spec.limit:
            sides.append("samples")
        if self.join.held < self.spec.limit:
            sides.append("labels")
        return sides

    async def _rest(self, sides: list[Side]) -> bool:
        """Nothing that may be read is at hand; whether nothing ever will be."""
        is_full = "samples" not in sides
        _full.labels(self.spec.name).set(is_full)
        if not sides:
            raise ResourceExhausted(
                f"{self.join.waiting:,} samples and {self.join.held:,} labels wait for each other: raise `limit`, or "
                "make `window` shorter", reason="JOIN_FULL",
            )
        if self._merge.over:
            await self._handle(Ended())
            return True
        await self._handle(Tick(tuple(self._merge.waiting())))
        if is_full:
            await self._handle(Full())
        for side in self._inputs:
            if self.to_end and self._merge.ended(side):
                await self._handle(Ended(side))
        await self._merge.wait(_TICK_S)
        return False

    async def _when_due(self) -> None:
        now = self.clock.monotonic()
        if now - self._noted_at >= self.spec.commit or self._unnoted >= _MOST_UNNOTED:
            await self._note()
        if now - self._spoke_at >= self.every_s:
            self._spoke_at = now
            self.tell(self)

    async def _handle(self, event: Event) -> None:
        if isinstance(event, Unreadable):
            _log.warning("%s %d: message %d is left out: %s", *event.at, event.reason)
        for effect in self.join.handle(event, self.clock.monotonic()):
            await self._apply(effect)

    async def _apply(self, effect: Effect) -> None:
        match effect:
            case Joined():
                self._unnoted += 1
                await (self._files.join(effect) if self._files else self._topics.join(effect))
            case Late(label) if self.spec.late_topic:
                self._unnoted += 1
                await self._topics.late(label)
            case _:
                self.positions.note(effect)

    async def _note(self) -> None:
        """Wait until all is stored that was sent, then write down what is settled."""
        if self._files is not None:
            await self._files.advance(self.join.frontier)
            for joined in await self._files.flush():
                self.positions.joined(joined)
        for stored in await self._topics.flush():
            if isinstance(stored, Label):
                self.positions.settle(stored.at, Fate.LATE)
            else:
                self.positions.joined(stored)
        more = {"ends": self._topics.ends, "files": self._files.state() if self._files else None}
        await self._record.write(self.positions.encode(more))
        if self._files is not None:
            await self._files.finish()
        self._unnoted, self._noted_at = 0, self.clock.monotonic()
        self._measure()

    def _measure(self) -> None:
        name = self.spec.name
        for fate, count in self.positions.counts.items():
            _fates.labels(name, fate).inc(count - self._told.get(fate, 0))
        self._told = dict(self.positions.counts)
        _waiting.labels(name).set(self.join.waiting)
        _held.labels(name).set(self.join.held)
        _frontier.labels(name).set(self.join.frontier)
        if self._files is not None:
            _late_samples.labels(name).set(self._files.late_samples)
        _commits.labels(name).inc()
