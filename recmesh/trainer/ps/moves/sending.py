"""The source's half of a move: copy, keep the copy fresh, let go.

    copying ──► fresh ──freeze──► frozen ──► installed ──free──► gone
       └──────────┴──resume──► forgotten      └──resume──► owned again

The copy is of live rows, one whole row at a time; what a push changes behind the copy's back is in the change
log, and sent again. Only the changes of the last milliseconds are sent while nobody owns the slots.
"""

import logging
import math
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from recmesh.formats import SlotMask
from recmesh.runtime.errors import FailedPrecondition, MeshError, MeshFault, Unavailable
from recmesh.trainer.ps.changes import ChangeLog
from recmesh.trainer.ps.ledger import Cut
from recmesh.trainer.ps.model import Model
from recmesh.trainer.ps.moves.cargo import Cargo, InstallOrder, StageOrder, TableCargo, Target
from recmesh.trainer.ps.moves.home import joined, read_changes
from recmesh.trainer.ps.precedence import Precedence

log = logging.getLogger(__name__)

FRESH_S = 0.01
"""Between rounds of a copy that is kept fresh."""
SHORT_ROUND_S = 0.02
"""A round that took no longer says that a freeze would be short."""
SHORTER = 0.8
"""A round that takes more than this part of the shortest before it brings nothing: as much changes meanwhile."""
VAIN_ROUNDS = 2
"""After so many in a row that bring nothing the copy is as fresh as it will be beside this much training."""
LAST_ROUNDS = 3
"""At most, between the order to freeze and the freeze."""
PATIENCE_S = 30.0
"""For a target that does not answer."""


@dataclass(frozen=True, slots=True)
class MoveOrder:
    """These slots, to that server."""

    gen: int
    move: int
    slots: SlotMask
    address: str
    incarnation: str


@dataclass(frozen=True, slots=True)
class MoveProgress:
    """How far the copy is."""

    caught_up: bool
    rows: int
    base_bytes: int
    delta_bytes: int
    expected_rows: int
    """About how many there are to copy."""
    error: str = ""


@dataclass(frozen=True, slots=True)
class FreezeResult:
    """What the handoff cost."""

    installed: bool
    latch_ms: float
    frozen_ms: float
    last_rows: int
    last_bytes: int
    base_bytes: int
    delta_bytes: int


@dataclass(frozen=True, slots=True)
class _Left:
    """What is known of slots at the moment in which they leave."""

    cuts: Sequence[Cut]
    map_version: int
    evicted: Mapping[int, int]
    ids: dict[int, NDArray[np.int64]]
    chunks: list[tuple[int, int]]


class Sending(threading.Thread):
    """One move of this generation. The server calls `hold`, `let_go` and `install` in this order."""

    def __init__(
        self, order: MoveOrder, *, source: int, model: Model, target: Target, precedence: Precedence,
        expected_rows: int = 0,
    ) -> None:
        super().__init__(name=f"move-{order.move}", daemon=True)
        self.order, self.changes = order, ChangeLog(order.slots)
        self.model = model
        """That the rows leave."""
        self._source, self._target, self._precedence = source, target, precedence
        self._held = threading.Event()
        self._stopped = False
        self._expected_rows = expected_rows
        self._sequence = 0
        self._rows = self._base_bytes = self._delta_bytes = 0
        self._copied = self._fresh = False
        self._error = ""
        self._left: _Left | None = None
        self._install: InstallOrder | None = None
        self._latch_ms = 0.0
        self._frozen_at = 0.0
        self._result: FreezeResult | None = None

    # ---- in the background

    def run(self) -> None:
        """Copy, then keep fresh until held."""
        try:
            for cargo in self._base():
                self._stage(cargo)
                self._rows += cargo.rows
                self._base_bytes += cargo.size_bytes
                if self._held.is_set():
                    return
            self._copied = True
            self._keep_fresh()
        except MeshError as error:
            self._error = str(error)
            log.warning("move %d: the copy ends: %s", self.order.move, error)
        except Exception as error:
            self._error = f"{type(error).__name__}: {error}"
            if not self._stopped:                          # a closed channel takes no call
                log.exception("move %d: the copy ends", self.order.move)

    def _base(self) -> Iterator[Cargo]:
        model, slots = self.model, self.order.slots
        yield Cargo()                                      # says what moves, though there be nothing in it
        for table in range(len(model.content.tables)):
            for block in model.scan_rows(table, slots):
                yield Cargo([TableCargo(table, block)])
        for number in range(len(model.content.dense)):
            chunks = np.flatnonzero(slots[model.chunk_slots(number)])
            if chunks.size:
                yield Cargo(chunks=[model.read_chunk(number, int(chunk)) for chunk in chunks])

    def _keep_fresh(self) -> None:
        shortest, vain = math.inf, 0
        while not self._held.is_set():
            took = self._round()
            vain = vain + 1 if took > SHORTER * shortest else 0
            shortest = min(shortest, took)
            if took < SHORT_ROUND_S or vain >= VAIN_ROUNDS:
                self._fresh = True
            self._held.wait(FRESH_S)
        # What changed during a long round would be sent while nobody owns the slots: once more, while somebody does.
        for _ in range(LAST_ROUNDS):
            if self._stopped or (took := self._round()) < SHORT_ROUND_S or took > SHORTER * shortest:
                break
            shortest = took

    def _round(self) -> float:
        """Sends what has changed; the seconds that it took, in which as much may have changed again."""
        started = time.perf_counter()
        with self._precedence.order():
            for cargo in read_changes(self.model, *self.changes.drain()):
                self._stage(cargo)
                self._delta_bytes += cargo.size_bytes
        return time.perf_counter() - started

    def _stage(self, cargo: Cargo) -> None:
        order, first = self.order, self._sequence == 0
        stage = StageOrder(
            order.gen, order.move, self._source, order.incarnation, self._sequence, cargo,
            slots=order.slots if first else None, content=self.model.content if first else None)
        deadline = time.monotonic() + PATIENCE_S
        while True:
            try:
                self._target.stage(stage)
                break
            except MeshFault as fault:
                if self._held.is_set() or time.monotonic() > deadline:
                    raise
                log.info("move %d: the target does not answer: %s", order.move, fault)
                self._held.wait(0.1)
        self._sequence += 1

    # ---- called by the server

    @property
    def progress(self) -> MoveProgress:
        """Until now."""
        return MoveProgress(self._fresh and not self._error, self._rows, self._base_bytes, self._delta_bytes,
                            self._expected_rows, self._error)

    @property
    def is_frozen(self) -> bool:
        """The slots have left."""
        return self._left is not None

    @property
    def is_installed(self) -> bool:
        """The target owns the slots."""
        return self._result is not None

    @property
    def cuts(self) -> Sequence[Cut]:
        """The ledgers that left with the slots."""
        return self._left.cuts if self._left else ()

    def hold(self) -> None:
        """No stage is under way afterwards. FailedPrecondition when the copy is not whole, Unavailable when busy."""
        if self._error:
            raise FailedPrecondition(f"the copy has failed: {self._error}", reason="COPY_FAILED")
        if not self._copied:
            raise FailedPrecondition("the slots are not copied yet", reason="NOT_COPIED")
        self._held.set()
        self.join(timeout=PATIENCE_S)
        if self.is_alive():
            raise Unavailable("a stage is still under way", reason="BUSY")
        if self._error:
            raise FailedPrecondition(f"the copy has failed: {self._error}", reason="COPY_FAILED")

    def let_go(self, cuts: Sequence[Cut], *, map_version: int, latch_ms: float) -> None:
        """The slots have left this server with these ledgers; nothing changes their rows any more."""
        self._frozen_at, self._latch_ms = time.perf_counter(), latch_ms
        evicted = self.model.store.evicted_in(self.order.slots)
        self._left = _Left(cuts, map_version, evicted, *self.changes.drain())

    def install(self) -> FreezeResult:
        """Hand over. Not installed: the target has not answered, or was told never to; repeat, or resume."""
        if self._result:
            return self._result
        if self._left is None:
            raise AssertionError("a move is installed after its freeze")
        if self._install is None:
            left, order = self._left, self.order
            cargo = joined(read_changes(self.model, left.ids, left.chunks))
            self._install = InstallOrder(order.gen, order.move, self._source, order.incarnation, self._sequence,
                                         left.map_version, left.cuts, cargo, left.evicted)
        cargo, installed = self._install.cargo, False
        try:
            installed = self._target.install(self._install)
        except MeshError as error:
            log.warning("move %d: the target has not installed: %s", self.order.move, error)
        result = FreezeResult(
            installed, self._latch_ms, (time.perf_counter() - self._frozen_at) * 1e3, cargo.rows,
            cargo.size_bytes, self._base_bytes, self._delta_bytes)
        if installed:
            self._result = result
        return result

    def stop(self) -> None:
        """End the copy; what is on the target is its own to drop."""
        self._stopped = True
        self._held.set()
        self._target.close()                               # first: it ends a stage that waits for its answer
        self.join(timeout=PATIENCE_S)
        if self.is_alive():
            log.error("move %d: its copy does not end", self.order.move)
