"""Parameter servers as jobmaster knows them: slots with their ledgers, which move, are saved and are restored.

The rules that a real server keeps are kept here too: a push under a map older than `since` has no effect, slots leave
their source before the target has them, a target that has promised never to install never does. What must never
happen is collected in `FakeServers.violations`.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from recmesh.runtime.errors import DataLoss, DeadlineExceeded, FailedPrecondition, Unavailable
from services.jobmaster.domain.ledgers import Interval, Ledger, normal
from services.jobmaster.domain.placement import SLOTS, bitmap, slots_of
from services.jobmaster.domain.record import Member, RunRecord
from services.jobmaster.domain.snapshot import Cut, GroupCut
from services.jobmaster.peers import Copied, Frozen, JoinOrder, MoveOrder, RestoreOrder, TakenOver

Slots = NDArray[np.bool_]
Pushed = Literal["applied", "wrong_map", "stale", "away"]


def positions(ledger: Sequence[Interval]) -> set[int]:
    return {position for _, lo, hi in ledger for position in range(lo, hi)}


def ledger_of(applied: set[int]) -> Ledger:
    return normal((0, position, position + 1) for position in applied)


def mask(slots: Sequence[int]) -> Slots:
    result = np.zeros(SLOTS, dtype=np.bool_)
    result[list(slots)] = True
    return result


@dataclass
class Group:
    """Slots with one ledger; `value` counts, per slot, the positions that were added to it."""

    slots: Slots
    applied: set[int]
    value: NDArray[np.int64]

    def part(self, slots: Slots) -> "Group":
        return Group(self.slots & slots, set(self.applied), np.where(slots, self.value, 0))


@dataclass
class Sending:
    slots: Slots
    target: str
    incarnation: str
    ready_at: float
    frozen: list[Group] | None = None
    version: int = 0
    is_installed: bool = False
    """The target has said so."""


@dataclass
class FakeServer:
    """One parameter server."""

    incarnation: str
    gen: int = 0
    term: int = 0
    since: int = 0
    groups: list[Group] = field(default_factory=list)
    alive: bool = True
    fresh: bool = False
    work: int = 0
    """What all pushes so far asked of its slots: what a server of normal speed has to do."""
    sending: dict[int, Sending] = field(default_factory=dict)
    installed: set[int] = field(default_factory=set)
    never: set[int] = field(default_factory=set)
    void: set[int] = field(default_factory=set)
    """Moves that were taken back: a freeze that comes late has no effect."""

    @property
    def slots(self) -> Slots:
        owned = np.zeros(SLOTS, dtype=np.bool_)
        for group in self.groups:
            owned |= group.slots
        return owned

    @property
    def applied(self) -> set[int]:
        return set.intersection(*(group.applied for group in self.groups)) if self.groups else set()

    def take_out(self, slots: Slots) -> list[Group]:
        gone = [group.part(slots) for group in self.groups]
        self.groups = [group.part(~slots) for group in self.groups]
        self.groups = [group for group in self.groups if group.slots.any()]
        return [group for group in gone if group.slots.any()]


class FakeServers:
    """Parameter servers by address; marks are remembered so that a restore can return to them."""

    def __init__(self) -> None:
        self.by_address: dict[str, FakeServer] = {}
        self.cuts: dict[tuple[str, int, int], list[Group]] = {}
        self.bases: dict[tuple[str, int], tuple[int, bytes]] = {}
        """By address and snapshot: generation and slots of the cut."""
        self.damaged: set[int] = set()
        self.popular: NDArray[np.uint32] = np.ones(SLOTS, np.uint32)
        """What every push asks of each slot."""
        self.restore_s, self.copy_s = 0.1, 0.2
        self.orders: list[RestoreOrder] = []
        self.voided: list[Interval] = []
        self.slow_restores = 0
        """Calls of restore that run out of time, though the server goes on."""
        self.aborted_marks: list[int] = []
        self.calls: list[str] = []
        """Of moves, in order."""
        self.lost: dict[str, int] = {}
        """By call: so many answers are lost, though the call had its effect."""
        self.undelivered: dict[str, int] = {}
        """By call: so many requests never arrive."""
        self.most_slots = SLOTS
        """Of a handoff: for more, targets are too slow to install in time."""
        self.held_installs: list[Callable[[], bool]] | None = None
        """A list: installs are held in it, and freezes answered as not installed."""
        self.gate: Callable[[str], Awaitable[None]] = _open
        """Passed before and after each call of a move."""
        self.violations: list[str] = []

    def _at(self, address: str) -> FakeServer:
        server = self.by_address.get(address)
        if server is None or not server.alive:
            raise Unavailable(f"nobody at {address}")
        return server

    def _check(self, server: FakeServer, gen: int, term: int) -> None:
        if gen != server.gen or term < server.term:
            raise FailedPrecondition("stale")
        server.term = term

    # -- what workers do ---------------------------------------------------------------------------------

    def push(self, record: RunRecord, chunk: Sequence[int]) -> Pushed:
        """One batch to every server of the map, as a worker that has this record sends it."""
        owners = record.owner_of
        answers: list[Pushed] = []
        for member in record.owning:
            server = self.by_address[member.address]
            if not server.alive or server.incarnation != member.incarnation:
                answers.append("away")
            elif server.gen != record.gen:
                answers.append("stale")
            elif record.map_version < server.since:
                answers.append("wrong_map")
            else:
                if not np.array_equal(server.slots, owners == member.ps):
                    self.violations.append(f"PS {member.ps}: the map {record.map_version} has other slots")
                for group in server.groups:
                    group.value[group.slots] += len(set(chunk) - group.applied)
                    group.applied |= set(chunk)
                server.work += int(self.popular[server.slots].sum())
                answers.append("applied")
        by_gravity: tuple[Pushed, ...] = ("stale", "away", "wrong_map")
        return next((answer for answer in by_gravity if answer in answers), "applied")

    def check_truth(self, record: RunRecord) -> None:
        """Each slot has one owner, the one of the map; and every position in its ledger was added once."""
        assert self.violations == []
        count = np.zeros(SLOTS, dtype=np.int64)
        for member in record.owning:
            server = self._at(member.address)
            assert np.array_equal(server.slots, record.owner_of == member.ps)
            for group in server.groups:
                count += group.slots
                voids = len(positions(record.voids))
                assert set(group.value[group.slots].tolist()) == {len(group.applied) - voids}
        assert (count == 1).all()

    # -- generations and snapshots -----------------------------------------------------------------------

    async def restore(self, address: str, order: RestoreOrder, *, timeout_s: float) -> int:
        await asyncio.sleep(self.restore_s)
        server = self._at(address)
        if self.slow_restores:
            self.slow_restores -= 1
            raise DeadlineExceeded("still loading")
        if order.incarnation != server.incarnation or order.gen <= server.gen:
            raise FailedPrecondition("another incarnation, or an old generation")
        self.orders.append(order)
        if order.snapshot in self.damaged:
            raise DataLoss(f"snapshot {order.snapshot} is damaged")
        mine = np.frombuffer(order.owners, dtype="<u2") == order.ps
        saved = [] if order.fresh_ledger else [
            group.part(mine) for (job, number, _), groups in self.cuts.items() for group in groups
            if (job, number) == (order.job_id, order.snapshot)
        ]
        if not order.snapshot or order.fresh_ledger:
            saved = [Group(mine, set(), np.zeros(SLOTS, dtype=np.int64))]
        for group in saved:
            group.applied |= positions(order.voids)
        self.by_address[address] = FakeServer(
            server.incarnation, order.gen, order.term, order.map_version,
            [group for group in saved if group.slots.any()], fresh=order.fresh_ledger,
        )
        return len(self.by_address[address].applied)

    async def takeover(self, address: str, *, job_id: str, gen: int, term: int) -> TakenOver:
        await asyncio.sleep(0)
        server = self._at(address)
        server.term = max(term, server.term)
        frozen = tuple(move for move, sending in server.sending.items() if sending.frozen is not None)
        return TakenOver(server.gen, server.term, 0, sending=tuple(server.sending), frozen=frozen)

    async def mark(
        self, address: str, *, ps: int, job_id: str, gen: int, term: int, snapshot: int, base: int
    ) -> Cut:
        await asyncio.sleep(0.001)
        server = self._at(address)
        self._check(server, gen, term)
        everything = np.ones(SLOTS, dtype=np.bool_)
        self.cuts[job_id, snapshot, ps] = [group.part(everything) for group in server.groups]
        groups = tuple(
            GroupCut(ledger_of(group.applied), len(group.applied), _bits(group.slots)) for group in server.groups
        )
        # A delta needs this process's own cut of the base, of the same slots.
        known = self.bases.get((address, base)) == (gen, server.slots.tobytes())
        self.bases[address, snapshot] = gen, server.slots.tobytes()
        return Cut(ps, _bits(server.slots), groups, 0.1, 5, 500, base if known else 0)

    async def abort_mark(self, address: str, *, job_id: str, gen: int, term: int, snapshot: int) -> None:
        await asyncio.sleep(0)
        self._check(self._at(address), gen, term)
        self.aborted_marks.append(snapshot)

    async def void(
        self, address: str, *, job_id: str, gen: int, term: int, batches: Sequence[Interval]
    ) -> tuple[Interval, ...]:
        await asyncio.sleep(0)
        server = self._at(address)
        self._check(server, gen, term)
        for group in server.groups:
            group.applied |= positions(batches)
        self.voided += batches
        return ()

    async def ledgers(self, address: str, *, job_id: str, gen: int) -> tuple[Ledger, int]:
        await asyncio.sleep(0)
        return ledger_of(self._at(address).applied), 7

    def forget(self, address: str) -> None:
        pass

    # -- moves -------------------------------------------------------------------------------------------

    async def _arrives(self, call: str, address: str, order: MoveOrder) -> FakeServer:
        await self.gate(f"before {call}")
        await asyncio.sleep(0.001)
        if self.undelivered.get(call, 0):
            self.undelivered[call] -= 1
            raise Unavailable(f"{call} did not arrive")
        server = self._at(address)
        self._check(server, order.gen, order.term)
        self.calls.append(call)
        return server

    async def _answers(self, call: str) -> None:
        if self.lost.get(call, 0):
            self.lost[call] -= 1
            raise DeadlineExceeded(f"the answer to {call} was lost")
        await self.gate(f"after {call}")

    async def demand(self, address: str, *, job_id: str) -> NDArray[np.uint32]:
        server = self._at(address)
        return np.where(server.slots, self.popular, 0).astype(np.uint32)

    async def join(self, address: str, order: JoinOrder) -> None:
        await self.gate("before join")
        await asyncio.sleep(0.001)
        server = self._at(address)
        if order.member.incarnation != server.incarnation or server.gen not in (0, order.gen) or server.groups:
            raise FailedPrecondition("another incarnation, or it has a past")
        server.gen, server.term, server.since = order.gen, order.term, max(server.since, 0)
        self.calls.append("join")
        await self._answers("join")

    async def migrate(self, address: str, order: MoveOrder, *, slots: bytes, target: Member) -> Copied:
        server = await self._arrives("migrate", address, order)
        wanted = mask(slots_of(slots))
        now = asyncio.get_running_loop().time()
        if order.move not in server.sending:
            if server.sending:
                raise FailedPrecondition("another move is not decided", reason="MOVE_UNDER_WAY")
            if (wanted & ~server.slots).any():
                raise FailedPrecondition("it does not own these slots")
            server.sending[order.move] = Sending(wanted, target.address, target.incarnation, now + self.copy_s)
        sending = server.sending[order.move]
        there = self.by_address.get(sending.target)
        error = "" if there is not None and there.alive else "the target is gone"
        await self._answers("migrate")
        return Copied(now >= sending.ready_at, 10, 1000, 0, error)

    async def freeze(
        self, address: str, order: MoveOrder, *, map_version: int, timeout_s: float
    ) -> Frozen:
        source = await self._arrives("freeze", address, order)
        if order.move in source.sending and int(source.sending[order.move].slots.sum()) > self.most_slots:
            raise Unavailable("a stage is still under way", reason="BUSY")
        if order.move in source.void or order.move not in source.sending:
            raise FailedPrecondition("the move was taken back")
        sending = source.sending[order.move]
        if sending.frozen is None:
            sending.frozen, sending.version = source.take_out(sending.slots), map_version
            source.since = map_version
        move = order.move

        def install() -> bool:
            return self._install(move, order.gen, sending)

        if self.held_installs is not None:
            self.held_installs.append(install)
            installed = False
        else:
            installed = sending.is_installed = install()
        await self._answers("freeze")
        return Frozen(installed, 0.5, 2.0, 3, 300, 1000, 200)

    def _install(self, move: int, gen: int, sending: Sending) -> bool:
        target = self.by_address.get(sending.target)
        if target is None or not target.alive or (target.incarnation, target.gen) != (sending.incarnation, gen):
            return False
        if move in target.never:
            return False
        if move not in target.installed:
            target.installed.add(move)
            everything = np.ones(SLOTS, dtype=np.bool_)
            target.groups += [group.part(everything) for group in sending.frozen or []]
            target.since = sending.version
        return True

    async def abort_install(self, address: str, order: MoveOrder) -> bool:
        target = await self._arrives("abort_install", address, order)
        if order.move not in target.installed:
            target.never.add(order.move)
        await self._answers("abort_install")
        return order.move in target.installed

    async def resume(self, address: str, order: MoveOrder, *, map_version: int) -> None:
        source = await self._arrives("resume", address, order)
        source.void.add(order.move)
        if order.move in source.sending and source.sending[order.move].is_installed:
            raise FailedPrecondition("the move is installed", reason="MOVE_INSTALLED")
        sending = source.sending.pop(order.move, None)
        if sending is not None and sending.frozen is not None:
            if map_version <= sending.version:
                self.violations.append(f"move {order.move} is taken back under {map_version}")
            source.groups += sending.frozen
            source.since = map_version
        await self._answers("resume")

    async def free(self, address: str, order: MoveOrder) -> None:
        source = await self._arrives("free", address, order)
        source.sending.pop(order.move, None)
        await self._answers("free")


def _bits(slots: Slots) -> bytes:
    return bitmap(np.flatnonzero(slots).tolist())


async def _open(step: str) -> None:
    """Nothing stands in the way."""
