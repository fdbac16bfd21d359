"""A counting job whose slots move: what jobmaster and workers do, one step at a time, over real servers.

The wire between source and target is a list of messages that may be lost, come twice, or come much later.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from recmesh.formats import SLOTS, Ledger, SlotMap, SlotMask
from recmesh.formats.intervals import Triple
from recmesh.runtime.errors import FailedPrecondition, Unavailable
from recmesh.trainer.ps.messages import JoinOrder, Part, PushStatus
from recmesh.trainer.ps.moves import FreezeResult, InstallOrder, MoveOrder, StageOrder
from recmesh.trainer.ps.refusals import Overlap, StaleGeneration, WrongMap
from recmesh.trainer.ps.server import ParameterServer
from tests.unit.ps.support import Mesh, cut, initial_chunks, parts_of


@dataclass
class Wire:
    """Everything that sources ever sent, by the incarnation that it was meant for."""

    mesh: "ElasticMesh"
    address: str

    def stage(self, order: StageOrder) -> None:
        self.mesh.sent.append((self.address, order))
        self.mesh.at(self.address).moves.receiver.stage(order)

    def install(self, order: InstallOrder) -> bool:
        self.mesh.sent.append((self.address, order))
        fate = self.mesh.fate.pop() if self.mesh.fate else "answered"
        if fate == "lost":
            raise Unavailable("the request is lost")
        installed = self.mesh.at(self.address).moves.receiver.install(order)
        if fate == "unanswered":
            raise Unavailable("the answer is lost")
        return installed

    def close(self) -> None:
        pass


@dataclass
class Move:
    """As the run record has it."""

    number: int
    source: int
    target: int
    slots: SlotMask
    version: int = 0
    """Reserved; 0: not pending."""
    installed: bool = False


@dataclass
class Flight:
    """A batch of one worker under one map."""

    pieces: tuple[Triple, ...]
    slot_map: SlotMap
    gen: int
    acks: set[int] = field(default_factory=set)


class ElasticMesh(Mesh):
    """Members by index; the map is the record's."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.members: dict[int, ParameterServer] = {}
        self.everyone: dict[str, ParameterServer] = {}
        """By incarnation, also those of older generations: late messages reach them."""
        self.owners = np.zeros(SLOTS, np.uint16)
        self.reserved = 0
        self.numbers = 0
        self.move: Move | None = None
        self.sent: list[tuple[str, Any]] = []
        self.pushed: list[tuple[str, Part]] = []
        self.fate: list[str] = []
        self.todo: list[tuple[Triple, ...]] = []
        self.parts: dict[int, tuple[str, ...]] = {}

    @property
    def slot_map(self) -> SlotMap:
        return SlotMap(self.version, self.owners)

    def at(self, incarnation: str) -> ParameterServer:
        return self.everyone[incarnation]

    def server(self, incarnation: str) -> ParameterServer:
        made = ParameterServer(
            incarnation, shm_dir=self.folder, memory_bytes=64 << 20, deliver=self.deliver, fail=_raise,
            reach=lambda address: Wire(self, address))
        self.everyone[incarnation] = made
        return made

    def reserve(self) -> int:
        self.reserved += 1
        return self.reserved

    def part_uris_of(self, members: Sequence[int]) -> tuple[str, ...]:
        """Of the snapshot that was just cut."""
        return tuple(str(self.folder / f"{self.snapshot:08d}" / f"ps-{ps:03d}") for ps in members)

    def part_uris(self, snapshot: int, n_ps: int) -> tuple[str, ...]:
        return self.parts.get(snapshot) or super().part_uris(snapshot, n_ps)

    # ---- generations and members

    def start(self, n_ps: int) -> None:
        """R1 to R3: the committed snapshot on new processes."""
        for server in self.members.values():
            server.close()
        self.gen += 1
        self.version, self.n_ps, self.move = self.reserve(), n_ps, None
        self.owners = SlotMap.even(self.version, n_ps).owners
        self.members = {ps: self.server(f"inc-{self.gen}-{ps}") for ps in range(n_ps)}
        for ps, server in self.members.items():
            server.restore(self.order(ps))
            server.declare(self.gen, self.model, initial_chunks(self.slot_map, ps))
        self.todo.clear()

    def join(self) -> int:
        """A new member without slots."""
        ps = max(self.members) + 1
        incarnation = f"inc-{self.gen}-{ps}-{self.reserve()}"
        self.members[ps] = self.server(incarnation)
        order = JoinOrder(self.gen, 1, incarnation, ps, self.version, "job")
        self.members[ps].join(order)
        self.members[ps].join(order)                                     # repeated, as any command
        return ps

    def leave(self, ps: int) -> None:
        assert not (self.owners == ps).any()
        self.members.pop(ps).close()

    # ---- moves

    def begin_move(self, source: int, target: int, slots: SlotMask) -> None:
        self.numbers += 1
        self.move = Move(self.numbers, source, target, slots)
        order = MoveOrder(self.gen, self.numbers, slots, self.members[target].books.incarnation,
                          self.members[target].books.incarnation)
        deadline = time.monotonic() + 20.0
        while not (progress := self._migrate(order)) or not progress.caught_up:
            assert not progress or not progress.error, progress
            assert time.monotonic() < deadline
            time.sleep(0.002)

    def _migrate(self, order: MoveOrder) -> Any:
        assert self.move is not None
        try:
            return self.members[self.move.source].migrate(order, term=1)
        except Unavailable:                                              # rows of an earlier move are being freed
            return None

    def freeze(self, fate: str) -> FreezeResult:
        """M2, M3. Fates: lost | unanswered | answered."""
        move = self.move
        assert move is not None
        move.version = move.version or self.reserve()
        self.fate = [fate]
        result = self.members[move.source].freeze(self.gen, 1, move.number, map_version=move.version)
        move.installed = result.installed
        return result

    def decide(self) -> None:
        """M4, or the abort: whatever state the move is in."""
        move = self.move
        assert move is not None
        source, target = self.members[move.source], self.members[move.target]
        installed = move.installed or target.abort_install(self.gen, 1, move.number)
        if installed:
            self.owners = np.where(move.slots, move.target, self.owners).astype(np.uint16)
            self.version, self.move = move.version, None
            source.free(self.gen, 1, move.number)
            source.free(self.gen, 1, move.number)
            return
        version = self.reserve()
        if source.resume(self.gen, 1, move.number, map_version=version):
            assert not source.resume(self.gen, 1, move.number, map_version=version)
            self.version = version
        self.move = None

    def abort(self) -> None:
        assert self.move is not None
        self.decide()

    # ---- training

    def take_off(self, pieces: Sequence[Triple]) -> Flight:
        return Flight(tuple(pieces), self.slot_map, self.gen)

    def send(self, flight: Flight, ps: int) -> str:
        """One part of a flight to one server of its map; what came of it."""
        parts = parts_of(flight.pieces, flight.slot_map, gen=flight.gen, n_ps=flight.slot_map.n_ps)
        server = self.members.get(ps)
        if flight.gen != self.gen:
            return "gone"
        if server is None:                      # it has left: the worker finds it is no member and takes the new map
            flight.slot_map, flight.acks = self.slot_map, set()
            return "wrong_map"
        self.pushed.append((server.books.incarnation, parts[ps]))
        try:
            assert server.push(parts[ps]).status is PushStatus.APPLIED
        except WrongMap:
            flight.slot_map, flight.acks = self.slot_map, set()
            return "wrong_map"
        except Overlap as refusal:
            self.todo += [(piece,) for piece in cut(flight.pieces, refusal.cuts)]
            return "overlap"
        except StaleGeneration:
            return "gone"
        flight.acks.add(ps)
        return "landed" if flight.acks >= set(np.unique(flight.slot_map.owners).tolist()) else "acked"

    def replay(self, message: tuple[str, Any]) -> None:
        """A message that was sent before, once more; refusals are as good as silence."""
        incarnation, order = message
        server = self.at(incarnation)
        try:
            if isinstance(order, StageOrder):
                server.moves.receiver.stage(order)
            elif isinstance(order, InstallOrder):
                server.moves.receiver.install(order)
            else:
                server.push(order)
        except (FailedPrecondition, Unavailable):
            pass

    def train(self, pieces: Sequence[Triple]) -> None:
        """To the end, as a worker that meets no more faults."""
        flight = self.take_off(pieces)
        while True:
            waiting = sorted(set(np.unique(flight.slot_map.owners).tolist()) - flight.acks)
            if not waiting:
                return
            if self.send(flight, waiting[0]) == "overlap":
                todo, self.todo = self.todo, []
                for smaller in todo:
                    self.train(smaller)
                return

    def complete(self, total: int) -> None:
        """Reconcile until nothing is missing anywhere."""
        if self.move:
            self.decide()
        for ps in np.unique(self.owners).tolist():
            for lo, hi in self.members[ps].ledgers(self.gen).by_all.missing_within(0, 0, total):
                self.train([(0, lo, hi)])

    # ---- what there is

    def ledgers(self) -> list[Ledger]:
        return [self.members[ps].ledgers(self.gen).by_all for ps in np.unique(self.owners).tolist()]

    def owned_counts(self) -> tuple[dict[int, float], dict[int, float], list[float]]:
        """As `counts`, of owned slots."""
        found: list[dict[int, float]] = [{}, {}]
        dense: list[float] = []
        for server in self.members.values():
            owned = server.books.owned
            for number in range(2 if owned.any() else 0):
                for rows in server.model.scan_rows(number, owned):
                    assert (rows.frequency == rows.values[:, 0]).all()
                    for id_, value in zip(rows.ids.tolist(), rows.values[:, 0].tolist(), strict=True):
                        assert id_ not in found[number]
                        found[number][id_] = value
            for _, _, values in server.model.pull_dense(since=0, owned=owned)[0]:
                dense += np.unique(values).tolist()
        return found[0], found[1], dense

    def close(self) -> None:
        for server in self.everyone.values():
            server.close()
        self.everyone, self.members = {}, {}


def _raise(error: BaseException) -> Any:
    raise error
