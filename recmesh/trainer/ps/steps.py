"""Synchronous steps: parts wait for the rest of their step, and are applied as one mean.

A step is a range of positions, G batches wide, whatever batches it is cut into: parts that were cut again, voided
batches and the short last step of a line need no rule of their own. A kept part is in no ledger.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from recmesh.formats import Ledger
from recmesh.formats.intervals import Triple
from recmesh.runtime.errors import InvalidArgument, ResourceExhausted, Violation
from recmesh.store import dedup, scatter_add
from recmesh.trainer.ps.ledger import Batch
from recmesh.trainer.ps.messages import DenseValues, Part, RowGrads
from recmesh.trainer.ps.refusals import Overlap


@dataclass
class _Waiting:
    batches: int
    size_bytes: int = 0
    parts: dict[Batch, Part] = field(default_factory=dict)
    positions: Ledger = field(default_factory=Ledger)


class StepBuffer:
    """Parts by step, of one version of this server's slots. The caller holds the ledger's lock.

    `since` in every call is the map version at which the slots here last changed: what was kept under another is
    gone, as it lacks rows of slots that came, or has rows of slots that left.
    """

    def __init__(self, *, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._since = 0
        self._steps: dict[Triple, _Waiting] = {}

    def keep(self, part: Part, *, step: Triple, since: int) -> bool:
        """Whether it is kept now; False when all its positions were before: the first part wins.

        Overlap names what is kept of it; InvalidArgument when the step can never be whole here; ResourceExhausted
        when other steps must be applied first.
        """
        waiting = self._at(since).get(step)
        _check_step(part, step, others=self._steps)
        if waiting is None:
            waiting = _Waiting(part.step_batches)
        elif waiting.batches != part.step_batches:
            raise InvalidArgument("a step has one number of batches", violations=[
                Violation("step_batches", f"is {part.step_batches}, and was {waiting.batches} before")])
        if all(waiting.positions.covers(*piece) for piece in part.batch):
            return False
        if not all(waiting.positions.disjoint(*piece) for piece in part.batch):
            raise Overlap([(line, a, b) for line, lo, hi in part.batch
                           for a, b in waiting.positions.within(line, lo, hi)])
        self._check_room(waiting, part.size_bytes, kept_bytes=self.size_bytes(since=since))
        self._steps[step] = waiting
        waiting.parts[part.batch] = part
        waiting.size_bytes += part.size_bytes
        for piece in part.batch:
            waiting.positions.add(*piece)
        return True

    def parts(self, step: Triple, *, since: int) -> list[Part]:
        """Those that wait, in the order of their positions."""
        waiting = self._at(since).get(step)
        return [part for _, part in sorted(waiting.parts.items())] if waiting else []

    def steps(self, *, since: int) -> list[Triple]:
        """Those of which something waits, ascending."""
        return sorted(self._at(since))

    def holds(self, piece: Triple, *, since: int) -> bool:
        """Whether parts of all its positions wait here."""
        return any(waiting.positions.covers(*piece) for waiting in self._at(since).values())

    def drop(self, step: Triple, batches: Iterable[Batch]) -> None:
        """Parts that are applied, or fit the ledgers no more."""
        waiting = self._steps[step]
        for batch in batches:
            waiting.size_bytes -= waiting.parts.pop(batch).size_bytes
            for piece in batch:
                waiting.positions.remove(*piece)
        if not waiting.parts:
            del self._steps[step]

    def clear(self) -> None:
        """Another generation begins."""
        self._steps.clear()

    def size_bytes(self, *, since: int) -> int:
        """Held now."""
        return sum(waiting.size_bytes for waiting in self._at(since).values())

    def _at(self, since: int) -> Mapping[Triple, _Waiting]:
        if since != self._since:
            self._since, self._steps = since, {}
        return self._steps

    def _check_room(self, waiting: _Waiting, size_bytes: int, *, kept_bytes: int) -> None:
        if waiting.size_bytes + size_bytes > self._limit_bytes:
            raise InvalidArgument("a synchronous step is too large", reason="STEP_TOO_LARGE", violations=[Violation(
                "training.sync.batches_per_step",
                f"is {waiting.batches}, whose gradients take more than the {self._limit_bytes} bytes that a "
                "parameter server keeps: use fewer or smaller batches, or more servers")])
        if kept_bytes + size_bytes > self._limit_bytes:
            raise ResourceExhausted("parts of other steps fill the buffer", reason="STEPS_FULL")


def _check_step(part: Part, step: Triple, *, others: Iterable[Triple]) -> None:
    line, lo, hi = step
    found = [Violation(f"batch[{i}]", f"{piece} is not inside the step {step}")
             for i, piece in enumerate(part.batch) if piece[0] != line or piece[1] < lo or piece[2] > hi]
    found += [Violation("step", f"{step} overlaps the step {other}, of which parts wait")
              for other in others if other != step and other[0] == line and other[1] < hi and lo < other[2]]
    if part.step_batches < 1:
        found.append(Violation("step_batches", "must be at least 1"))
    if found:
        raise InvalidArgument("the part fits no step", violations=found)


def parts_within(parts: Sequence[Part], lacking: Batch) -> list[Part] | None:
    """Those that together are exactly these positions; None when some are missing."""
    wanted = Ledger(lacking)
    chosen = [part for part in parts if all(wanted.covers(*piece) for piece in part.batch)]
    found = sum(hi - lo for part in chosen for _, lo, hi in part.batch)
    return chosen if found == wanted.size else None


def mean(parts: Sequence[Part], *, dims: Sequence[int]) -> Part:
    """One part: gradients summed in the order given and divided by the step's batches, counts summed.

    `dims` are the tables'. Each batch's gradients are those of (sum of its samples' losses) / batch size, so this is
    the gradient of one batch of G times the size, also where a step has fewer samples or was cut otherwise. So it is
    for running statistics: the mean of the parts' deltas is what the large batch would have changed.
    """
    first = parts[0]
    if len(parts) == 1 and first.step_batches == 1:
        return first
    scale = np.float32(1.0 / first.step_batches)
    by_table: dict[int, list[RowGrads]] = {}
    by_chunk: dict[tuple[int, int], NDArray[np.float32]] = {}
    for part in parts:
        for grads in part.tables:
            by_table.setdefault(grads.table, []).append(grads)
        for block, chunk, values in part.dense:
            if (block, chunk) in by_chunk:
                by_chunk[block, chunk] += values
            else:
                by_chunk[block, chunk] = np.array(values, np.float32)
    dense: list[DenseValues] = [(block, chunk, values * scale) for (block, chunk), values in by_chunk.items()]
    return Part(first.gen, first.map_version, tuple(piece for part in parts for piece in part.batch), first.epoch,
                [_mean_rows(table, entries, dim=dims[table], scale=scale) for table, entries in by_table.items()],
                dense)


def _mean_rows(table: int, entries: Sequence[RowGrads], *, dim: int, scale: np.float32) -> RowGrads:
    ids = dedup(np.concatenate([entry.ids for entry in entries]))
    grads = np.concatenate([entry.grads.reshape(-1, dim) for entry in entries])
    counts = np.concatenate([np.ones(len(entry.ids), np.uint32) if entry.counts is None else entry.counts
                             for entry in entries])
    summed = np.zeros(len(ids.ids), np.uint32)
    np.add.at(summed, ids.inverse, counts)
    return RowGrads(table, ids.ids, scatter_add(grads, ids.inverse, rows=len(ids.ids)) * scale, summed)
