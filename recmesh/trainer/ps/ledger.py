"""The rules of exactly-once at one parameter server: generation, map, claims, ledgers. No threads, no rows.

One rule per line where it is checked; docs/adr/0002-exactly-once.md has the argument. The caller holds the
latch (see `latch`): `claim`, `commit` and questions in shared mode under one lock, all else exclusively.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from recmesh.formats import SLOTS, Ledger, SlotMask
from recmesh.formats.intervals import Triple
from recmesh.runtime.errors import InvalidArgument, Violation
from recmesh.trainer.ps.epochs import NewestEpochs
from recmesh.trainer.ps.refusals import (
    NoGeneration,
    OldLease,
    Overlap,
    Stale,
    StaleGeneration,
    StaleTerm,
    WrongIncarnation,
    WrongMap,
)

Batch = tuple[Triple, ...]
"""Pieces (line, lo, hi), claimed all or none."""


def check_batch(batch: Batch) -> None:
    """InvalidArgument unless there are pieces, none is empty, and none overlaps another."""
    seen = Ledger()
    for i, (line, lo, hi) in enumerate(batch):
        if not 0 <= lo < hi:
            raise InvalidArgument("a piece of the batch is empty",
                                  violations=[Violation(f"batch[{i}]", f"[{lo}, {hi})")])
        if not seen.disjoint(line, lo, hi):
            raise InvalidArgument("pieces of the batch overlap",
                                  violations=[Violation(f"batch[{i}]", f"[{lo}, {hi}) of line {line}")])
        seen.add(line, lo, hi)
    if not batch:
        raise InvalidArgument("a push names its batch", violations=[Violation("batch", "is empty")])


@dataclass(eq=False, slots=True)
class Group:
    """Slots with one common ledger."""

    slots: SlotMask
    applied: Ledger
    """Every batch in it has been applied to every slot, once."""
    step: int
    """Batches, or synchronous steps, applied: what schedules count."""
    taken: Ledger
    """applied, and what is claimed and being applied now."""

    @classmethod
    def of(cls, slots: SlotMask, ledger: Ledger, step: int) -> "Group":
        """A group in which nothing is under way."""
        return cls(slots, ledger.copy(), step, ledger.copy())


@dataclass(frozen=True, slots=True)
class Cut:
    """A group as a snapshot has it."""

    slots: SlotMask
    ledger: Ledger
    step: int


@dataclass(frozen=True, slots=True)
class Claim:
    """A batch that the holder must now apply to these groups, and commit."""

    batch: Batch
    groups: tuple[Group, ...]
    steps: tuple[int, ...]
    """Of each group, before this batch."""
    whole: bool
    """The one group there is: every row of the part is its."""


class Books:
    """The protocol state of one server."""

    def __init__(self, incarnation: str) -> None:
        self.incarnation = incarnation
        self.gen = 0                             # 0: none
        self.ordered = 0                         # the newest generation that a restore began to load
        self.term = 0
        self.since = 0                           # map version at which the slots here last changed
        self.owned: SlotMask = np.zeros(SLOTS, np.bool_)
        self.groups: list[Group] = []
        self.voids = Ledger()
        self.epochs = NewestEpochs()

    # ---- checks: each raises a Refusal

    def check_generation(self, gen: int) -> None:
        """Only messages of this server's own generation act on it."""
        if self.gen == 0:
            raise NoGeneration
        if gen != self.gen:
            raise StaleGeneration(self.gen, asked=gen)

    def check_map(self, version: int) -> None:
        """A split by an older map may lack slots that came here, or bring slots that left."""
        if version < self.since:
            raise WrongMap(self.since, asked=version)

    def check_epoch(self, batch: Batch, epoch: int) -> None:
        """Hygiene: stops the holder of an expired lease before it wastes more work."""
        newest = self.epochs.newest(batch)
        if epoch < newest:
            raise OldLease(newest)

    def accept_term(self, term: int) -> None:
        """Commands of an earlier jobmaster are refused from the first message of a later one on."""
        if term < self.term:
            raise StaleTerm(self.term, asked=term)
        self.term = term

    def check_restore(self, gen: int, *, incarnation: str) -> None:
        """A generation begins once per process, and only in the process that the run record names.

        A restore that failed may be repeated; one of an older generation may not.
        """
        if incarnation != self.incarnation:
            raise WrongIncarnation
        if gen <= self.gen or gen < self.ordered or gen < 1:
            raise StaleGeneration(max(self.gen, self.ordered), asked=gen)

    # ---- push

    def claim(self, batch: Batch, *, epoch: int, last_step: int | None = None) -> Claim:
        """Claim the batch for every group that lacks it: all or none; Overlap and Stale have no effect.

        Stale when a group that lacks it is past `last_step`.
        """
        lacking = self._lacking(batch)
        newest = max((group.step for group in lacking), default=0)
        if last_step is not None and newest > last_step:
            raise Stale(newest, last=last_step)
        claim = self._claim_of(batch, lacking)
        self.enter([claim])
        self.epochs.enter(batch, epoch)
        return claim

    def lacks(self, batch: Batch) -> bool:
        """Whether some group has nothing of the batch; Overlap when one has a part of it."""
        return bool(self._lacking(batch))

    def step_claims(self, step: Triple) -> list[Claim]:
        """What each group lacks of a synchronous step, as claims that are not entered yet."""
        by_pieces: dict[Batch, list[Group]] = {}
        for group in self.groups:
            if lacking := tuple((step[0], lo, hi) for lo, hi in group.taken.missing_within(*step)):
                by_pieces.setdefault(lacking, []).append(group)
        return [self._claim_of(batch, groups) for batch, groups in by_pieces.items()]

    def enter(self, claims: Iterable[Claim]) -> None:
        """Their holder applies them now."""
        for claim in claims:
            for group in claim.groups:
                for piece in claim.batch:
                    group.taken.add(*piece)

    def _lacking(self, batch: Batch) -> list[Group]:
        lacking = []
        for group in self.groups:
            if all(group.taken.covers(*piece) for piece in batch):
                continue                                                   # applied, or being applied
            if not all(group.taken.disjoint(*piece) for piece in batch):
                raise Overlap(self._cuts(batch))
            lacking.append(group)
        return lacking

    def _claim_of(self, batch: Batch, groups: Sequence[Group]) -> Claim:
        return Claim(batch, tuple(groups), tuple(group.step for group in groups), len(self.groups) == 1)

    def _cuts(self, batch: Batch) -> list[Triple]:
        """Where some group's taken positions begin and end: between these a batch fits every group."""
        return sorted({(line, a, b) for group in self.groups for line, lo, hi in batch
                       for a, b in group.taken.within(line, lo, hi)})

    def commit(self, claim: Claim) -> None:
        """The batch is applied: from now on it is acknowledged."""
        for group in claim.groups:
            for piece in claim.batch:
                group.applied.add(*piece)
            group.step += 1
        if claim.groups and len(self.groups) > 1:
            self._merge()

    @property
    def step(self) -> int:
        """Of the group that is furthest."""
        return max((group.step for group in self.groups), default=0)

    def applied(self, batch: Batch) -> bool:
        """Whether every group has applied the batch: an ack means this."""
        return all(group.applied.covers(*piece) for group in self.groups for piece in batch)

    # ---- structure: under the exclusive latch, so nothing is under way

    def begin(
        self, *, gen: int, since: int, owned: SlotMask, cuts: Sequence[Cut], voids: Iterable[Triple]
    ) -> None:
        """A generation begins: `cuts` partition the owned slots; void batches enter every ledger."""
        self.owned, self.since, self.voids = owned, since, Ledger()
        self.groups = [Group.of(cut.slots, cut.ledger, cut.step) for cut in cuts]
        self.epochs = NewestEpochs()
        self._enter_voids(voids)
        self._merge()
        self.gen = gen

    def end(self, *, ordered: int) -> None:
        """No generation: everything is refused until the ordered one begins."""
        self.gen, self.ordered, self.groups = 0, ordered, []

    def enlist(self, *, gen: int, since: int, voids: Iterable[Triple]) -> None:
        """Take part in a generation that is open already, without a slot: they come by `join`."""
        self.begin(gen=gen, since=since, owned=np.zeros(SLOTS, np.bool_), cuts=[], voids=voids)

    def leave(self, slots: SlotMask, *, since: int) -> list[Cut]:
        """These slots are another's from map version `since` on; what their ledgers are at this moment."""
        if (slots & ~self.owned).any():
            raise AssertionError("a slot shall leave that is not here")
        self._own(self.owned & ~slots, since)
        cuts = [Cut(group.slots & slots, group.applied.copy(), group.step) for group in self.groups]
        for group in self.groups:
            group.slots = group.slots & ~slots
        self.groups = [group for group in self.groups if group.slots.any()]
        return [cut for cut in cuts if cut.slots.any()]

    def join(self, cuts: Sequence[Cut], *, since: int) -> None:
        """Slots come, each with its ledger; they are owned here from map version `since` on."""
        owned = self.owned.copy()
        for cut in cuts:
            if (owned & cut.slots).any():
                raise AssertionError("a slot came that is here already")
            owned |= cut.slots
        self._own(owned, since)
        self.groups += [Group.of(cut.slots.copy(), cut.ledger, cut.step) for cut in cuts]
        self._merge()

    def _own(self, owned: SlotMask, since: int) -> None:
        if since <= self.since:
            raise AssertionError(f"map versions only grow: {since} after {self.since}")
        self.owned, self.since = owned, since

    def void(self, batches: Sequence[Triple]) -> list[Triple]:
        """Quarantine: enter the positions in every ledger; returns those that some group had applied."""
        partly = Ledger((line, a, b) for line, lo, hi in batches for group in self.groups
                        for a, b in group.applied.within(line, lo, hi) if not self.voids.covers(line, a, b))
        self._enter_voids(batches)
        self._merge()
        return partly.triples()

    def cut(self) -> list[Cut]:
        """The groups as they are."""
        return [Cut(group.slots.copy(), group.applied.copy(), group.step) for group in self.groups]

    def ledgers(self, within: Sequence[Triple]) -> tuple[Ledger, Ledger]:
        """(what every group has applied, what any has), of these pieces; of all when none are given."""
        if not self.groups:
            return Ledger(), Ledger()
        by_all = by_any = self.groups[0].applied
        for group in self.groups[1:]:
            by_all, by_any = by_all.intersect(group.applied), by_any.union(group.applied)
        if not within:
            return by_all.copy(), by_any.copy()
        asked = Ledger(within)
        return by_all.intersect(asked), by_any.intersect(asked)

    def _enter_voids(self, batches: Iterable[Triple]) -> None:
        for piece in batches:
            self.voids.add(*piece)
            for group in self.groups:
                group.applied.add(*piece)
                group.taken.add(*piece)

    def _merge(self) -> None:
        """Groups with equal ledgers are one; not while they differ in what is under way."""
        merged: list[Group] = []
        for group in self.groups:
            twin = next((g for g in merged if g.applied == group.applied and g.taken == group.taken), None)
            if twin is None or twin.applied != twin.taken:
                merged.append(group)
            else:
                twin.slots = twin.slots | group.slots
                twin.step = max(twin.step, group.step)
        self.groups = merged
