"""A synchronous job on real servers: steps of four batches, with an optimizer to which order and grouping matter."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from recmesh.formats import CHUNK, SlotMap
from recmesh.formats.intervals import Triple
from recmesh.store import DenseSchema, Init, Optimizer, TableSchema
from recmesh.trainer.ps.messages import Declaration, Part, PushStatus, RestoreOrder
from recmesh.trainer.ps.refusals import Overlap, StaleGeneration, WrongMap
from recmesh.trainer.ps.server import ParameterServer
from tests.unit.ps.elastic import ElasticMesh, Flight, _raise
from tests.unit.ps.support import cut, initial_chunks, parts_of

BATCH, BATCHES, TOTAL = 2, 4, 44
WIDTH = BATCH * BATCHES
RULE = Optimizer("adagrad", lr=0.5, schedule=((0, 1.0), (8, 0.25)))
LEARNING = Declaration(
    (TableSchema("item", 2, RULE, Init("uniform", 0.1, 7)), TableSchema("user", 1, RULE, Init("zeros"))),
    (DenseSchema("w", (CHUNK + 3,), RULE),))

Rows = dict[tuple[int, int], tuple[Any, ...]]
"""By (table, id): values, optimizer state, updates, frequency, last step."""


def step_of(position: int, *, total: int = TOTAL) -> Triple:
    lo = position // WIDTH * WIDTH
    return (0, lo, min(lo + WIDTH, total))


def in_step(part: Part, *, total: int = TOTAL) -> Part:
    return replace(part, step=step_of(part.batch[0][1], total=total), step_batches=BATCHES)


@dataclass
class StepFlight(Flight):
    """A batch of a synchronous step: kept is not acknowledged."""

    kept: set[int] = field(default_factory=set)


class StepMesh(ElasticMesh):
    """Workers keep to the rule that a step begins when all before it are applied everywhere."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.model = LEARNING

    def front(self) -> int:
        """Where the first step begins that some server lacks."""
        lacking = [lo for ledger in self.ledgers() for lo, _ in ledger.missing_within(0, 0, TOTAL)]
        return min(lacking) // WIDTH * WIDTH if lacking else TOTAL

    def take_off(self, pieces: Sequence[Triple]) -> StepFlight:
        return StepFlight(tuple(pieces), self.slot_map, self.gen)

    def send(self, flight: Flight, ps: int) -> str:
        assert isinstance(flight, StepFlight)
        if flight.gen != self.gen:
            return "gone"
        server = self.members.get(ps)
        if server is None:
            return self._remap(flight)
        part = in_step(parts_of(flight.pieces, flight.slot_map, gen=flight.gen, n_ps=flight.slot_map.n_ps)[ps])
        self.pushed.append((server.books.incarnation, part))
        try:
            status = server.push(part).status
        except WrongMap:
            return self._remap(flight)
        except Overlap as refusal:
            self.todo += [(piece,) for piece in cut(flight.pieces, refusal.cuts)]
            return "overlap"
        except StaleGeneration:
            return "gone"
        if status is PushStatus.KEPT:
            flight.kept.add(ps)
            return "kept"
        flight.acks.add(ps)
        return "landed" if flight.acks >= set(np.unique(flight.slot_map.owners).tolist()) else "acked"

    def settle(self, flight: StepFlight) -> str:
        """Asks every server that keeps a part of the flight."""
        for ps in sorted(flight.kept):
            if ps not in self.members:
                return self._remap(flight)
            try:
                result = self.members[ps].settled(flight.gen, flight.slot_map.version, flight.pieces)
            except WrongMap:
                return self._remap(flight)
            except StaleGeneration:
                return "gone"
            if result.applied or result.lost:
                flight.kept.discard(ps)
                flight.acks |= {ps} if result.applied else set()
        return "landed" if flight.acks >= set(np.unique(flight.slot_map.owners).tolist()) else "kept"

    def _remap(self, flight: StepFlight) -> str:
        flight.slot_map, flight.acks, flight.kept = self.slot_map, set(), set()
        return "wrong_map"

    def step(self, lo: int) -> None:
        """All batches of a step to all servers, by workers that meet no more faults."""
        _, lo, hi = step_of(lo)
        todo: list[tuple[Triple, ...]] = [((0, at, min(at + BATCH, hi)),) for at in range(lo, hi, BATCH)]
        while todo:
            flight = self.take_off(todo.pop())
            for ps in np.unique(flight.slot_map.owners).tolist():
                self.send(flight, ps)
            todo, self.todo = todo + self.todo, []

    def complete(self, total: int) -> None:
        assert total == TOTAL
        if self.move:
            self.decide()
        while (lo := self.front()) < TOTAL:
            self.step(lo)
            assert self.front() > lo

    def rows(self) -> tuple[Rows, dict[int, Any]]:
        return rows_of(self.members.values())


def rows_of(servers: Any) -> tuple[Rows, dict[int, Any]]:
    """Every owned row, and the dense block by chunk; each lives once."""
    rows: Rows = {}
    dense: dict[int, Any] = {}
    for server in servers:
        owned = server.books.owned
        for table in range(2 if owned.any() else 0):
            for block in server.model.scan_rows(table, owned):
                for i, id_ in enumerate(block.ids.tolist()):
                    assert (table, id_) not in rows
                    rows[table, id_] = (block.values[i].tolist(), block.state[i].tolist(), int(block.updates[i]),
                                        int(block.frequency[i]), int(block.last_step[i]))
        for _, chunk, values in server.model.pull_dense(since=0, owned=owned)[0] if owned.any() else ():
            assert chunk not in dense
            dense[chunk] = values.copy()
    return rows, dense


def one_process(folder: Path, total: int = TOTAL) -> tuple[Rows, dict[int, Any]]:
    """The same samples on one server in batches of G times the size, whose loss is divided by that size."""
    slot_map = SlotMap.even(1, 1)
    server = ParameterServer("alone", shm_dir=folder, memory_bytes=64 << 20, fail=_raise)
    server.restore(RestoreOrder(1, 1, "alone", 0, slot_map, "job"))
    server.declare(1, LEARNING, initial_chunks(slot_map, 0))
    for lo in range(0, total, WIDTH):
        part = parts_of([step_of(lo, total=total)], slot_map, gen=1, n_ps=1)[0]
        quarter = np.float32(1 / BATCHES)
        server.push(replace(
            part, tables=[replace(grads, grads=grads.grads * quarter) for grads in part.tables],
            dense=[(block, chunk, values * quarter) for block, chunk, values in part.dense]))
    try:
        return rows_of([server])
    finally:
        server.close()


def same(found: tuple[Rows, dict[int, Any]], wanted: tuple[Rows, dict[int, Any]]) -> None:
    """Bit for bit: values, optimizer state, update counts, frequencies, last steps, and the row set."""
    assert found[0] == wanted[0]
    assert sorted(found[1]) == sorted(wanted[1])
    for chunk, values in wanted[1].items():
        np.testing.assert_array_equal(found[1][chunk], values)
