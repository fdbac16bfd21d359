"""What jobmaster commands of moves. One command at a time; the caller checked the term."""

from collections.abc import Callable

from recmesh.formats import SlotMask
from recmesh.runtime.errors import FailedPrecondition, InvalidArgument, Unavailable, Violation
from recmesh.runtime.gates import gate
from recmesh.trainer.ps.moves.cargo import StageOrder, Target
from recmesh.trainer.ps.moves.home import NO_SLOTS, Home
from recmesh.trainer.ps.moves.receiving import Receiver
from recmesh.trainer.ps.moves.sending import FreezeResult, MoveOrder, MoveProgress, Sending

Reach = Callable[[str], Target]
"""A connection to the server at this address."""


class Moves:
    """Slots that leave this server, one move at a time; `receiver` has those that come."""

    def __init__(self, home: Home, *, reach: Reach) -> None:
        self._home, self._reach = home, reach
        self.receiver = Receiver(home, departures=self)
        self._sending: Sending | None = None
        self._voided: set[int] = set()
        """Numbers that are never used here (again); they are of the job's life, whatever the generation."""

    def migrate(self, order: MoveOrder, *, source: int) -> MoveProgress:
        """Begin the copy; or how far it is."""
        home, sending = self._home, self._sending
        home.books.check_generation(order.gen)
        self._check_valid(order.move)
        if sending is not None and sending.order.move == order.move:
            return sending.progress
        if sending is not None:
            self._supersede(sending, order.move)
        if (order.slots & ~home.books.owned).any() or not order.slots.any():
            raise FailedPrecondition("not all of these slots are owned here", reason="SLOTS_NOT_OWNED")
        if not home.model.declared:
            raise Unavailable("no worker has declared the model yet", reason="NOT_DECLARED")
        share = float(order.slots.sum() / home.books.owned.sum())
        sending = Sending(order, source=source, model=home.model, target=self._reach(order.address),
                          precedence=home.precedence,
                          expected_rows=round(share * home.model.store.rows))
        with home.latch.exclusive():
            home.model.changes = sending.changes           # before the first row is copied
        self._sending = sending
        sending.start()
        return sending.progress

    def freeze(self, gen: int, move: int, *, map_version: int) -> FreezeResult:
        """The slots leave, and go to the target. Afterwards only `free` and `resume` end the move."""
        home, sending = self._home, self._of(gen, move)
        if sending.is_frozen:
            return sending.install()
        if map_version <= home.books.since:
            raise InvalidArgument("a freeze needs a newer map version", violations=[
                Violation("map_version", f"{map_version}; slots here changed with {home.books.since}")])
        sending.hold()
        with home.latch.exclusive() as held:
            cuts = home.books.leave(sending.order.slots, since=map_version)
            home.model.changes = None
            latch_ms = held.milliseconds
        sending.let_go(cuts, map_version=map_version, latch_ms=latch_ms)
        self.receiver.share_budgets()
        gate("ps.freeze", f"move {move}")
        return sending.install()

    def resume(self, gen: int, move: int, *, map_version: int) -> bool:
        """The target never installs: own the slots again (True), or forget the copy. A late freeze is void."""
        home, sending = self._home, self._sending
        home.books.check_generation(gen)
        self._voided.add(move)
        if sending is None or sending.order.move != move:
            return False
        if sending.is_installed:
            raise FailedPrecondition(f"move {move} is installed", reason="MOVE_INSTALLED")
        if sending.is_frozen and map_version <= home.books.since:
            raise InvalidArgument("slots come back under a newer map version", violations=[
                Violation("map_version", f"{map_version}; slots here changed with {home.books.since}")])
        sending.stop()
        with home.latch.exclusive():
            home.model.changes = None
            if sending.is_frozen:
                home.books.join(sending.cuts, since=map_version)
        self._sending = None
        return sending.is_frozen

    def free(self, gen: int, move: int) -> None:
        """The run record names the target: remove the rows here, in the background."""
        self._home.books.check_generation(gen)
        sending = self._sending
        if sending is None or sending.order.move != move:
            return
        if not sending.is_frozen:
            raise FailedPrecondition(f"move {move} was never frozen here", reason="NOT_FROZEN")
        self._end(sending)

    @property
    def sending(self) -> list[int]:
        """Moves that are not decided here."""
        sending = self._sending
        return [sending.order.move] if sending else []

    @property
    def frozen(self) -> list[int]:
        """Of these, those whose slots have left."""
        sending = self._sending
        return [sending.order.move] if sending and sending.is_frozen else []

    @property
    def departed(self) -> SlotMask:
        """See receiving.Departures."""
        sending = self._sending
        return sending.order.slots if sending and sending.is_frozen else NO_SLOTS

    def stop(self) -> None:
        """The generation ends, and the model is about to be dropped."""
        sending, self._sending = self._sending, None
        if sending:
            sending.stop()
        self.receiver.stop()

    def _supersede(self, sending: Sending, move: int) -> None:
        """jobmaster begins a move when the last is decided: one that was frozen and not taken back is done."""
        if sending.order.move > move:
            raise FailedPrecondition(f"move {sending.order.move} came after {move}", reason="MOVE_VOID")
        if sending.is_frozen:
            self.free(sending.order.gen, sending.order.move)
        else:
            self.resume(sending.order.gen, sending.order.move, map_version=0)

    def make_way(self, order: StageOrder) -> None:
        """Slots come back, so the move with which they left is done; the word of it may never have come, or be late.

        The receiver waits until the rows of their first stay are gone.
        """
        sending = self._sending
        if sending is None or not sending.is_frozen or sending.order.move > order.move:
            return
        if order.slots is not None and (sending.order.slots & order.slots).any():
            self._end(sending)

    def _end(self, sending: Sending) -> None:
        """The slots are another server's for good. A command and a stage may both come to say so."""
        with self.receiver.lock:
            if self._sending is not sending:
                return
            self._sending = None
            self._voided.add(sending.order.move)
            self.receiver.clear(sending.model, sending.order.slots)
        sending.stop()

    def _check_valid(self, move: int) -> None:
        if move in self._voided:
            raise FailedPrecondition(f"move {move} is over", reason="MOVE_VOID")

    def _of(self, gen: int, move: int) -> Sending:
        self._home.books.check_generation(gen)
        self._check_valid(move)
        sending = self._sending
        if sending is None or sending.order.move != move:
            raise FailedPrecondition(f"move {move} was never begun here", reason="NO_MOVE")
        return sending
