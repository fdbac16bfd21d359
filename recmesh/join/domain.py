"""Which label belongs to which sample, and when a sample goes out. Pure: `handle(event, now)` gives effects.

Time is that of events, as partitions tell it (marks.py). A label counts when it is at most `early` older and at most
`window` newer than its sample. A sample goes out when no partition of labels can have one any more that counts, so the
order and the speed of arrival change nothing, as long as no message is older than its partition's mark.
"""

import heapq
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Literal, NamedTuple

from recmesh.join.marks import Marks

Side = Literal["samples", "labels"]
MOST_LABELS = 64
"""Of a sample that goes out; of more, only the one that counts is held."""
_STEP_S = 1e-6
"""The least that is more: Unix seconds are rounded to a quarter of it."""


class Position(NamedTuple):
    """Of a message in the input."""

    side: Side
    partition: int
    sequence: int


@dataclass(frozen=True, slots=True)
class Sample:
    """A sample was read."""

    at: Position
    time: float
    key: str
    body: bytes
    is_read: bool = False
    """No other message waits behind it."""


@dataclass(frozen=True, slots=True)
class Label:
    """A label was read."""

    at: Position
    time: float
    key: str
    value: float
    body: bytes
    is_read: bool = False


@dataclass(frozen=True, slots=True)
class Known:
    """A message was read again that is settled; of a sample, its key is remembered."""

    at: Position
    time: float
    key: str = ""
    is_read: bool = False


@dataclass(frozen=True, slots=True)
class Unreadable:
    """A message that is no sample or label."""

    at: Position
    time: float
    reason: str
    is_read: bool = False


@dataclass(frozen=True, slots=True)
class Tick:
    """Time passes. `waiting`: partitions whose messages are at hand and not handled."""

    waiting: Sequence[tuple[Side, int]] = ()


@dataclass(frozen=True, slots=True)
class Empty:
    """There is nothing to read in a partition."""

    side: Side
    partition: int


@dataclass(frozen=True, slots=True)
class Full:
    """No more samples can be taken in. Where no label has come for long, the oldest samples wait no longer."""


@dataclass(frozen=True, slots=True)
class Ended:
    """Nothing will come any more, of one topic or (None) of both."""

    side: Side | None = None


Read = Sample | Label | Known | Unreadable
"""A message of the input."""
Event = Read | Tick | Empty | Full | Ended


class Fate(StrEnum):
    """What became of a message; each has exactly one."""

    LABELLED = "labelled"
    DEFAULTED = "defaulted"
    DROPPED = "dropped"
    DUPLICATE = "duplicate"
    JOINED = "joined"
    LATE = "late"
    ORPHAN = "orphan"
    UNREADABLE = "unreadable"


@dataclass(frozen=True, slots=True)
class Joined:
    """A sample goes out."""

    sample: Sample
    label: float
    fate: Literal[Fate.LABELLED, Fate.DEFAULTED]
    labels: tuple[Position, ...] = ()
    """What was joined: the one that counts, and others."""


@dataclass(frozen=True, slots=True)
class Late:
    """A label came too late."""

    label: Label


@dataclass(frozen=True, slots=True)
class Settled:
    """A message needs nothing else."""

    at: Position
    fate: Fate


@dataclass(frozen=True, slots=True)
class Forgotten:
    """A settled sample need not be read again."""

    at: Position


Effect = Joined | Late | Settled | Forgotten


@dataclass(frozen=True, slots=True)
class Rules:
    """Of one join; seconds."""

    window_s: float
    early_s: float
    several: Literal["last", "first", "max"] = "last"
    default_label: float | None = 0.0
    disorder_s: tuple[float, float] = (0.0, 0.0)
    """Of samples, of labels."""
    idle_s: float = 0.0
    remembered: int = 1_000_000
    """Samples that went out, at most: a label that comes later than that counts as one without a sample."""


@dataclass(slots=True)
class _Waiting:
    sample: Sample
    label: Label | None = None
    """The one of those so far that counts."""
    others: list[Position] = field(default_factory=list)


class Join:
    """What waits, and what is remembered."""

    def __init__(self, rules: Rules, *, samples: int, labels: int) -> None:
        """`samples`, `labels`: how many partitions each topic has."""
        self._rules = rules
        self._marks: dict[Side, Marks] = {
            "samples": Marks(samples, disorder_s=rules.disorder_s[0], idle_s=rules.idle_s),
            "labels": Marks(labels, disorder_s=rules.disorder_s[1], idle_s=rules.idle_s),
        }
        self._waiting: dict[str, _Waiting] = {}
        self._by_time: list[tuple[float, Position, str]] = []
        self._held: dict[str, dict[Position, Label]] = {}
        self._held_count = 0
        self._held_by_time: list[tuple[float, Position, Label]] = []
        self._gone: dict[str, float] = {}
        """Keys of samples that are settled, and their times: later labels are late, further samples duplicates."""
        self._gone_by_time: list[tuple[float, Position, str]] = []
        self.sample_mark = self.label_mark = float("-inf")

    @property
    def waiting(self) -> int:
        """Samples."""
        return len(self._waiting)

    @property
    def held(self) -> int:
        """Labels without a sample so far."""
        return self._held_count

    @property
    def frontier(self) -> float:
        """All samples that are older have gone out."""
        return min(self.sample_mark, self.label_mark - self._rules.window_s)

    def handle(self, event: Event, now: float) -> list[Effect]:
        """`now`: the process's clock, which only tells idle partitions."""
        effects: list[Effect] = []
        match event:
            case Tick(waiting):
                for side, partition in waiting:
                    self._marks[side].wait(partition, now)
            case Empty(side, partition):
                self._marks[side].empty(partition, now)
            case Full():
                self._squeeze(now)
            case Ended(ended):
                for side, marks in self._marks.items():
                    if ended in (None, side):
                        marks.end()
            case _:
                self._marks[event.at.side].hear(event.at.partition, event.time, now, is_read=event.is_read)
        match event:
            case Sample():
                effects += self._sample(event)
            case Label():
                effects += self._label(event)
            case Known(at=Position(side="samples")):
                effects += self._known(event)
            case Unreadable():
                effects.append(Settled(event.at, Fate.UNREADABLE))
        self._advance(now)
        return [*effects, *self._released(), *self._orphaned(), *self._forgotten()]

    def _sample(self, sample: Sample) -> Iterator[Effect]:
        if sample.key in self._waiting or sample.key in self._gone:
            yield Settled(sample.at, Fate.DUPLICATE)
            return
        waiting = self._waiting[sample.key] = _Waiting(sample)
        heapq.heappush(self._by_time, (sample.time, sample.at, sample.key))
        for label in self._taken(sample.key):
            yield from self._offer(waiting, label)

    def _known(self, known: Known) -> Iterator[Effect]:
        if not known.key or known.key in self._waiting or known.key in self._gone:
            yield Forgotten(known.at)             # it was a duplicate, or no sample at all
            return
        self._remember(known.at, known.time, known.key)
        for label in self._taken(known.key):
            yield self._outside(label, known.time)

    def _taken(self, key: str) -> list[Label]:
        labels = list(self._held.pop(key, {}).values())
        self._held_count -= len(labels)
        return labels

    def _label(self, label: Label) -> Iterator[Effect]:
        if waiting := self._waiting.get(label.key):
            yield from self._offer(waiting, label)
        elif (time := self._gone.get(label.key)) is not None:
            yield self._outside(label, time)
        else:
            self._held.setdefault(label.key, {})[label.at] = label
            self._held_count += 1
            heapq.heappush(self._held_by_time, (label.time, label.at, label))

    def _offer(self, waiting: _Waiting, label: Label) -> Iterator[Effect]:
        time = waiting.sample.time
        if time - self._rules.early_s <= label.time <= time + self._rules.window_s:
            winner, loser = label, waiting.label
            if loser is not None and not self._beats(winner, loser):
                winner, loser = loser, winner
            waiting.label = winner
            if loser is not None and len(waiting.others) < MOST_LABELS:
                waiting.others.append(loser.at)   # settled with the sample, so that no crash comes in between
            elif loser is not None:
                yield Settled(loser.at, Fate.JOINED)
        else:
            yield self._outside(label, time)

    def _beats(self, label: Label, other: Label) -> bool:
        """Whether it counts instead of the other; equal ones by position, so that no order of arrival matters."""
        key, other_key = (label.time, label.at), (other.time, other.at)
        if self._rules.several == "max" and label.value != other.value:
            return label.value > other.value
        return key < other_key if self._rules.several == "first" else key > other_key

    def _outside(self, label: Label, time: float) -> Effect:
        return Late(label) if label.time >= time - self._rules.early_s else Settled(label.at, Fate.ORPHAN)

    def _squeeze(self, now: float) -> None:
        if self._waiting and self._marks["labels"].is_idle(now):
            oldest = heapq.nsmallest(len(self._by_time) // 20 + 1, self._by_time)[-1][0]
            self._marks["labels"].lift(oldest + self._rules.window_s + _STEP_S)

    def _advance(self, now: float) -> None:
        samples, labels = self._marks["samples"], self._marks["labels"]
        newest = max(samples.newest, labels.newest)
        heard_at = max(samples.heard_at, labels.heard_at)
        self.sample_mark = samples.at(now, newest=newest, heard_at=heard_at)
        self.label_mark = labels.at(now, newest=newest, heard_at=heard_at)

    def _released(self) -> Iterator[Effect]:
        """Samples in order of time; equal ones by position."""
        while self._by_time and self._by_time[0][0] < self.label_mark - self._rules.window_s:
            time, at, key = heapq.heappop(self._by_time)
            waiting = self._waiting.pop(key)
            self._remember(at, time, key)
            if waiting.label is not None:
                yield Joined(waiting.sample, waiting.label.value, Fate.LABELLED, (waiting.label.at, *waiting.others))
            elif self._rules.default_label is None:
                yield Settled(at, Fate.DROPPED)
            else:
                yield Joined(waiting.sample, self._rules.default_label, Fate.DEFAULTED)

    def _orphaned(self) -> Iterator[Effect]:
        """Labels whose sample can no more come."""
        while self._held_by_time and self._held_by_time[0][0] + self._rules.early_s < self.sample_mark:
            _, at, label = heapq.heappop(self._held_by_time)
            held = self._held.get(label.key, {})
            if held.pop(at, None) is None:
                continue                          # its sample came
            self._held_count -= 1
            if not held:
                del self._held[label.key]
            yield Settled(at, Fate.ORPHAN)

    def _remember(self, at: Position, time: float, key: str) -> None:
        if key not in self._gone:
            self._gone[key] = time
            heapq.heappush(self._gone_by_time, (time, at, key))

    def _forgotten(self) -> Iterator[Effect]:
        """A window after it went out nothing of a sample is known any more, or sooner where too many are."""
        while self._gone_by_time and (
            self._gone_by_time[0][0] < self.label_mark - 2 * self._rules.window_s
            or len(self._gone) > self._rules.remembered
        ):
            _, at, key = heapq.heappop(self._gone_by_time)
            del self._gone[key]
            yield Forgotten(at)
