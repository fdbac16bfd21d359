"""What of the input is settled, and from where it must be read again. Pure."""

import zlib
from collections import Counter, OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

import orjson

from recmesh.formats import IntervalSet
from recmesh.join.domain import Fate, Forgotten, Joined, Late, Position, Settled, Side
from recmesh.runtime.errors import DataLoss

_VERSION = 1


@dataclass
class _Partition:
    low: int = 1
    """All before it is settled, and needed no more."""
    done: IntervalSet = field(default_factory=IntervalSet)
    """Settled, from `low` on."""
    needed: "OrderedDict[int, None]" = field(default_factory=OrderedDict)
    """Read since the process started, and needed again by one that starts anew: not settled, or remembered."""
    forgotten: set[int] = field(default_factory=set)
    """Needed only until they are settled: what was sent is not stored yet."""
    read_to: int = 1
    """One past the last that was read."""

    def begin(self) -> int:
        """From where a new process must read."""
        return next(iter(self.needed)) if self.needed else max(self.read_to, self.low)


class Positions:
    """Of all partitions of the input; and how many messages had which fate."""

    def __init__(self, *, samples: int, labels: int) -> None:
        self._sides: dict[Side, list[_Partition]] = {
            "samples": [_Partition() for _ in range(samples)], "labels": [_Partition() for _ in range(labels)],
        }
        self.counts: Counter[str] = Counter()

    def low(self, side: Side, partition: int) -> int:
        """The sequence to begin to read at."""
        return self._sides[side][partition].low

    def is_settled(self, at: Position) -> bool:
        """Whether a message that is read again needs nothing else."""
        return at.sequence in self._sides[at.side][at.partition].done

    def read(self, at: Position) -> None:
        """A message goes to the join."""
        partition = self._sides[at.side][at.partition]
        partition.read_to = at.sequence + 1
        if at.side == "samples" or at.sequence not in partition.done:
            partition.needed[at.sequence] = None

    def joined(self, effect: Joined) -> None:
        """A sample and its labels are stored; the sample is remembered until `forgotten`."""
        self.settle(effect.sample.at, effect.fate, keep=True)
        for at in effect.labels:
            self.settle(at, Fate.JOINED)

    def note(self, effect: Late | Settled | Forgotten) -> None:
        """What needs no output, or has it."""
        match effect:
            case Late(label):
                self.settle(label.at, Fate.LATE)
            case Settled(at, fate):
                self.settle(at, fate, keep=fate is Fate.DROPPED)
            case Forgotten(at):
                partition = self._sides[at.side][at.partition]
                if at.sequence in partition.done:
                    partition.needed.pop(at.sequence, None)
                else:
                    partition.forgotten.add(at.sequence)

    def settle(self, at: Position, fate: Fate, *, keep: bool = False) -> None:
        """Once for each message. `keep`: it is read again as long as it is not forgotten."""
        partition = self._sides[at.side][at.partition]
        if at.sequence in partition.done:
            return
        partition.done.add(at.sequence, at.sequence + 1)
        self.counts[str(fate)] += 1
        if not keep or at.sequence in partition.forgotten:
            partition.forgotten.discard(at.sequence)
            partition.needed.pop(at.sequence, None)

    def encode(self, more: Mapping[str, Any]) -> bytes:
        """The record of these positions, and of `more`."""
        sides: dict[str, Any] = {}
        for side, partitions in self._sides.items():
            sides[side] = []
            for partition in partitions:
                begin = partition.begin()
                partition.done.remove(0, begin)
                sides[side].append([begin, _gaps(partition.done, begin)])
        values = {"version": _VERSION, "counts": dict(sorted(self.counts.items())), **sides, **more}
        return zlib.compress(orjson.dumps(values), 3)

    @classmethod
    def decode(cls, record: bytes, *, samples: int, labels: int) -> tuple[Self, dict[str, Any]]:
        """What `encode` was given. DataLoss: it is damaged, or of topics with more partitions than there are."""
        try:
            values = orjson.loads(zlib.decompress(record))
            if values["version"] != _VERSION:
                raise DataLoss(f"the join's positions are of version {values['version']}, not {_VERSION}")
            made = cls(samples=samples, labels=labels)
            made.counts.update(values["counts"])
            for side, partitions in made._sides.items():
                for number, (begin, gaps) in enumerate(values.pop(side)):
                    partition = partitions[number]
                    partition.low = partition.read_to = begin
                    partition.done = _filled(gaps, begin)
        except (zlib.error, orjson.JSONDecodeError, KeyError, IndexError, TypeError) as error:
            raise DataLoss(f"the join's positions cannot be read: {error!r}") from error
        return made, values


def _gaps(done: IntervalSet, begin: int) -> list[int]:
    """Lengths, in turn of what is not in and of what is."""
    found, at = [], begin
    for lo, hi in done:
        found += [lo - at, hi - lo]
        at = hi
    return found


def _filled(gaps: list[int], begin: int) -> IntervalSet:
    made, at = IntervalSet(), begin
    for absent, present in zip(gaps[::2], gaps[1::2], strict=True):
        made.add(at + absent, at + absent + present)
        at += absent + present
    return made
