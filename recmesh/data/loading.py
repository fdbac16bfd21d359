"""A dataset's batches outside the mesh: in the order of a seed, shared by several workers, from where a state says."""

import copy
import hashlib
import json
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice, pairwise
from typing import Any

from recmesh.data.faults import wrong
from recmesh.data.index import index_dataset
from recmesh.data.order import Plan, generate
from recmesh.data.reader import TaskReader
from recmesh.data.records import Batch, TaskRecord, concat, kind_borders
from recmesh.formats import IntervalSet
from recmesh.runtime.errors import FailedPrecondition
from recmesh.spec.dataset import DatasetSpec

VERSION = 2
"""Of the state."""
State = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Share:
    """Which of several workers this is."""

    rank: int = 0
    world: int = 1

    def __post_init__(self) -> None:
        if not 0 <= self.rank < self.world:
            raise wrong("rank", f"must be 0 to {self.world - 1} of {self.world} workers, not {self.rank}")


class Loader:
    """Iterates over the batches that are still to be trained; an iterator that was left goes on with the next one.

    Rows keep their order from run to run: it comes from the seed, as in a mesh. Of each epoch every worker gets as many
    batches as any other, or one less. A batch counts as consumed when it is handed out, and has samples of one kind.
    Not for several threads.
    """

    def __init__(
        self, spec: DatasetSpec, *, batch_size: int, epochs: int = 1, seed: int = 0, share: Share = Share(),
        cache_bytes: int = 96 << 20,
    ) -> None:
        """Resolves and counts the files: errors as of `index_dataset`."""
        if batch_size < 1 or epochs < 1:
            field = "batch_size" if batch_size < 1 else "epochs"
            raise wrong(field, "must be at least 1")
        self._batch_size, self._epochs, self._share = batch_size, epochs, share
        plan = Plan(index_dataset(spec, seed=seed).slices, epochs, seed, spec.shuffle, in_time=bool(spec.streams))
        self._tasks = [record for record in generate(plan) if not record.close]
        self._bases = [record.base for record in self._tasks]
        self._borders = kind_borders(self._tasks, spec.kinds)
        self._epoch_rows = plan.total // epochs
        self._print = _fingerprint(spec, plan)
        self._reader = TaskReader(spec, cache_bytes=cache_bytes)
        self._done = IntervalSet()              # by all workers, when they began with this split
        self._own = IntervalSet()               # by this one since then
        self._batches = self._to_do()

    def __len__(self) -> int:
        """Batches that this worker has left, or less: those without rows are not handed out."""
        return sum(len(self._cut(epoch)) for epoch in range(self._epochs)) - self._handed

    def __iter__(self) -> Iterator[Batch]:
        return self

    def __next__(self) -> Batch:
        while True:
            pieces = next(self._batches)
            batch = concat([self._reader.batch(self._tasks_of(lo, hi), lo, hi) for lo, hi in pieces])
            for lo, hi in pieces:
                self._own.add(lo, hi)
            self._handed += 1
            if batch.size:              # else all of its rows were left out, as `where` or `bad_records` says
                return batch

    def state_dict(self) -> State:
        """What was consumed; JSON can hold it. Of several workers it is one's own, for as many of them and batches of
        the same size; `merge` those of all to go on with others."""
        state = {"version": VERSION, "dataset": self._print, "done": _pairs(self._done), "own": _pairs(self._own)}
        split = {"rank": self._share.rank, "world": self._share.world, "batch_size": self._batch_size}
        return state | split | {"handed": self._handed}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from there: from what `merge` made, a single worker's state, or this worker's own.

        Raises:
            FailedPrecondition: it is of other data, another seed, or a newer recmesh; or of one of several workers, and
                not of this one (`UNMERGED`).
        """
        _check(state)
        if state["dataset"] != self._print:
            raise FailedPrecondition(
                "the state is of other data, another seed, number of epochs or shuffling", reason="OTHER_DATASET"
            )
        done, own = _set(state["done"]), _set(state["own"])
        split = (state["rank"], state["world"], state["batch_size"])
        if split == (self._share.rank, self._share.world, self._batch_size):
            self._done, self._own = done, own
            self._batches = self._to_do(after=state["handed"])
            return
        if state["world"] > 1:
            raise FailedPrecondition(
                f"the state is of worker {split[0]} of {split[1]} with batches of {split[2]}, and this is worker "
                f"{self._share.rank} of {self._share.world} with batches of {self._batch_size}: load "
                "Loader.merge(states of all workers) in each",
                reason="UNMERGED",
            )
        self._done, self._own = done.union(own), IntervalSet()
        self._batches = self._to_do()

    def fork(self) -> "Loader":
        """Another one that goes on from here by itself; files and their cache are shared."""
        twin = copy.copy(self)
        twin._own = IntervalSet(self._own.pairs())
        twin._batches = twin._to_do(after=self._handed)
        return twin

    @staticmethod
    def merge(states: Iterable[Mapping[str, Any]]) -> State:
        """What all workers together have consumed: load it in each, however many there are then.

        Raises:
            InvalidArgument: there is none, or a worker's is missing.
            FailedPrecondition: they are of different data, or of workers that did not begin together.
        """
        listed = list(states)
        if not listed:
            raise wrong("states", "there is none")
        for state in listed:
            _check(state)
        if len({state["dataset"] for state in listed}) > 1:
            raise FailedPrecondition("the states are of different data", reason="OTHER_DATASET")
        worlds = {state["world"] for state in listed}
        if len(worlds) > 1 or any(state["done"] != listed[0]["done"] for state in listed):
            raise FailedPrecondition("the states are of workers that did not begin together", reason="OTHER_SPLIT")
        missing = sorted(set(range(*worlds)) - {state["rank"] for state in listed})
        if missing:
            raise wrong("states", f"of {len(missing)} of {worlds.pop()} workers there is none: {missing[:10]}")
        done = IntervalSet((int(lo), int(hi)) for state in listed for lo, hi in (*state["done"], *state["own"]))
        merged = {"rank": 0, "world": 1, "batch_size": 0, "handed": 0}
        return {"version": VERSION, "dataset": listed[0]["dataset"], "done": _pairs(done), "own": []} | merged

    # ---- inside

    def _to_do(self, *, after: int = 0) -> "Iterator[list[tuple[int, int]]]":
        """This worker's batches; the first `after` were handed out."""
        self._handed = after
        return islice((pieces for epoch in range(self._epochs) for pieces in self._cut(epoch)), after, None)

    def _cut(self, epoch: int) -> "list[list[tuple[int, int]]]":
        """This worker's batches of an epoch: its part of the positions that were missing when the state was loaded."""
        begin, end = epoch * self._epoch_rows, (epoch + 1) * self._epoch_rows
        edges = [begin, *(border for border in self._borders if begin < border < end), end]
        batches = [
            pieces for lo, hi in pairwise(edges)
            for pieces in _batches(self._done.missing_within(lo, hi), self._batch_size)
        ]
        first, last = (len(batches) * rank // self._share.world for rank in (self._share.rank, self._share.rank + 1))
        return batches[first:last]

    def _tasks_of(self, lo: int, hi: int) -> list[TaskRecord]:
        return self._tasks[max(0, bisect_right(self._bases, lo) - 1) : bisect_right(self._bases, hi - 1)]


def _batches(intervals: Iterable[tuple[int, int]], size: int) -> list[list[tuple[int, int]]]:
    """Positions in order, `size` at a time; a batch goes on over a gap."""
    found: list[list[tuple[int, int]]] = []
    room = 0
    for lo, hi in intervals:
        while lo < hi:
            if not room:
                found.append([])
                room = size
            end = min(hi, lo + room)
            found[-1].append((lo, end))
            lo, room = end, room - (end - lo)
    return found


def _pairs(intervals: IntervalSet) -> list[list[int]]:
    return [list(pair) for pair in intervals.pairs()]


def _set(pairs: Iterable[Iterable[int]]) -> IntervalSet:
    return IntervalSet((int(lo), int(hi)) for lo, hi in pairs)


def _check(state: Mapping[str, Any]) -> None:
    lists, numbers = ("done", "own"), ("rank", "world", "batch_size", "handed")
    is_whole = all(isinstance(state.get(name), list) for name in lists) and "dataset" in state
    if state.get("version") != VERSION or not is_whole or not all(isinstance(state.get(n), int) for n in numbers):
        raise FailedPrecondition(f"this is no state of version {VERSION}", reason="BAD_STATE")


def _fingerprint(spec: DatasetSpec, plan: Plan) -> str:
    """Of what decides which row stands at which position; how rows become features may change."""
    pieces = [(piece.uri, piece.size_bytes, piece.etag, piece.first_row, piece.rows) for piece in plan.slices]
    text = json.dumps([pieces, plan.epochs, plan.seed, plan.shuffle])
    return hashlib.sha256(text.encode()).hexdigest()
