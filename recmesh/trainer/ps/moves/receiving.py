"""The target's half of a move: rows out of sight until they are installed, once or never."""

import threading
from dataclasses import dataclass
from typing import Protocol

from recmesh.formats import SlotMask
from recmesh.runtime.errors import FailedPrecondition, InvalidArgument, Unavailable, Violation
from recmesh.runtime.gates import gate
from recmesh.trainer.ps.model import Model
from recmesh.trainer.ps.moves.cargo import InstallOrder, StageOrder
from recmesh.trainer.ps.moves.home import Clearing, Home, take_in
from recmesh.trainer.ps.refusals import WrongIncarnation


@dataclass
class _Staging:
    gen: int
    move: int
    slots: SlotMask
    model: Model
    sequence: int = 0
    """The next one."""


class Departures(Protocol):
    """The source's half, as the target's half sees it."""

    @property
    def departed(self) -> SlotMask:
        """Slots that have left, whose rows are still here."""

    def make_way(self, order: StageOrder) -> None:
        """Slots are about to come: if they had left from here, that move is over."""


class Receiver:
    """Moves to this server. One stands at a time: jobmaster begins none before the last is decided."""

    def __init__(self, home: Home, *, departures: Departures) -> None:
        self._home, self._departures = home, departures
        self.lock = threading.RLock()           # before the latch
        self._sharing = threading.Lock()        # after all others
        self._gen = 0
        self._staging: _Staging | None = None
        self._aborted: set[int] = set()
        self._installed: set[int] = set()
        self._clearing: Clearing | None = None

    def stage(self, order: StageOrder) -> None:
        """Keep rows and chunks. A sequence that came before has no effect; a gap is FailedPrecondition."""
        with self.lock:
            self._check(order.gen, order.incarnation)
            self._check_alive(order.move)
            if order.sequence == 0 and (self._staging is None or self._staging.move != order.move):
                self._begin(order)
            staging = self._of(order.move)
            if order.sequence > staging.sequence:
                raise FailedPrecondition(
                    f"stage {order.sequence} came, {staging.sequence} is next", reason="STAGE_GAP")
            if order.sequence < staging.sequence:
                return
            with self._home.latch.shared():
                self._home.books.check_generation(order.gen)
                take_in(staging.model, order.cargo, slots=staging.slots)
            staging.sequence += 1

    def install(self, order: InstallOrder) -> bool:
        """The slots are owned here from now on, or were since an earlier message; False: aborted, for ever."""
        gate("ps.arrive", f"move {order.move}")
        with self.lock:
            self._check(order.gen, order.incarnation)
            if self.has_installed(order.move):
                return True
            if order.move in self._aborted:
                return False
            staging = self._of(order.move)
            if order.sequence != staging.sequence:
                raise FailedPrecondition(
                    f"{order.sequence} stages were sent, {staging.sequence} came", reason="STAGE_GAP")
            home = self._home
            with home.latch.shared():
                home.books.check_generation(order.gen)
                take_in(staging.model, order.cargo, slots=staging.slots)
            with home.latch.exclusive():
                home.books.check_generation(order.gen)
                home.books.join(order.cuts, since=order.map_version)
                home.model.store.add_evicted(order.evicted)
                self._installed.add(order.move)
                self._staging = None
                self.share_budgets()
            gate("ps.install", f"move {order.move}")
            return True

    def abort(self, gen: int, move: int) -> bool:
        """Whether the move is installed; if not, it never will be."""
        with self.lock:
            self._home.books.check_generation(gen)
            self._renew(gen)
            if self.has_installed(move):
                return True
            self._aborted.add(move)
            if self._staging and self._staging.move == move:
                self._drop()
            return False

    def has_installed(self, move: int) -> bool:
        """Whether slots came with this move, in this generation."""
        return self._gen == self._home.books.gen and move in self._installed

    def check_free(self, slots: SlotMask) -> None:
        """Unavailable while rows of an earlier move of these slots are still being removed."""
        if self._clearing and self._clearing.is_alive() and (self._clearing.left & slots).any():
            raise Unavailable("rows of these slots are still being freed", reason="BUSY")

    def clear(self, model: Model, slots: SlotMask) -> None:
        """Remove the rows of these slots but of those that are owned here, in the background."""
        with self.lock:
            if self._clearing:
                self._clearing.join()           # one after the other: each is some seconds at most
            self._clearing = Clearing(model, slots & ~self._home.books.owned, done=self.share_budgets)
            self.share_budgets()
            self._clearing.start()

    def stop(self) -> None:
        """The model is about to be dropped."""
        with self.lock:
            if self._clearing:
                self._clearing.stop()
            self._clearing = self._staging = None

    def share_budgets(self) -> None:
        """Tables have room for as much of their budget as there are slots with rows of theirs here.

        Rows that come are here before their slots are, and those of slots that left are here for a while.
        """
        with self._sharing:
            staging, clearing = self._staging, self._clearing
            here = self._home.books.owned | self._departures.departed
            if staging is not None and staging.model is self._home.model:
                here = here | staging.slots
            if clearing is not None:
                here = here | clearing.left
            self._home.model.store.share = float(here.mean())

    def _check(self, gen: int, incarnation: str) -> None:
        if incarnation != self._home.books.incarnation:
            raise WrongIncarnation
        self._home.books.check_generation(gen)
        self._renew(gen)

    def _renew(self, gen: int) -> None:
        """What is remembered is of one generation; its rows went with the model."""
        if gen != self._gen:
            self._gen, self._staging, self._aborted, self._installed = gen, None, set(), set()

    def _check_alive(self, move: int) -> None:
        if move in self._aborted:
            raise FailedPrecondition(f"move {move} was aborted", reason="MOVE_ABORTED")
        if self.has_installed(move):
            raise FailedPrecondition(f"move {move} is installed", reason="MOVE_INSTALLED")

    def _begin(self, order: StageOrder) -> None:
        if order.slots is None or order.content is None:
            raise InvalidArgument("the first stage of a move says what moves", violations=[
                Violation("slots" if order.slots is None else "tables", "are missing")])
        home = self._home
        if self._staging:
            if self._staging.move > order.move:
                raise FailedPrecondition(f"move {self._staging.move} came after {order.move}", reason="MOVE_ABORTED")
            self._aborted.add(self._staging.move)
            self._drop()
        if (home.books.owned & order.slots).any():
            raise FailedPrecondition("some of these slots are owned here", reason="SLOTS_OWNED")
        self._departures.make_way(order)
        self.check_free(order.slots)
        home.prepare(order.gen, order.content)
        self._staging = _Staging(order.gen, order.move, order.slots, home.model)
        self.share_budgets()

    def _of(self, move: int) -> _Staging:
        if self._staging is None or self._staging.move != move:
            raise FailedPrecondition(f"nothing of move {move} is here", reason="STAGE_GAP")
        return self._staging

    def _drop(self) -> None:
        staging, self._staging = self._staging, None
        if staging:
            self.clear(staging.model, staging.slots)
