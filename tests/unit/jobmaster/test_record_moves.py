"""The run record while servers join and leave and slots move: what may follow what, and what never may."""

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from services.jobmaster.domain import moves
from services.jobmaster.domain import record as records
from services.jobmaster.domain.placement import SLOTS, counts_of, slots_of
from services.jobmaster.domain.record import Member, Refused, RunRecord


def member(ps: int, *, life: str = "a") -> Member:
    return Member(ps=ps, address=f"host:{ps}", incarnation=f"{life}{ps}")


def open_record(*servers: int) -> RunRecord:
    fleet = [member(ps) for ps in servers]
    record = records.next_generation(RunRecord(job_id="j", term=1), term=1, members=fleet)
    return records.opened(record, term=1, gen=1)


def frozen(record: RunRecord, *, slots: int = 100) -> RunRecord:
    """PS 0's first slots are on their way to PS 1, and nobody's."""
    record = moves.joined(record, term=1, gen=1, member=member(1))
    record = moves.begun(record, term=1, gen=1, source=0, target=1, slots=range(slots))
    return moves.freezing(record, term=1, gen=1, number=record.operations)


def test_a_member_joins_and_leaves_without_another_map() -> None:
    record = open_record(0)
    wider = moves.joined(record, term=1, gen=1, member=member(7))
    assert [item.ps for item in wider.members] == [0, 7]
    assert [item.ps for item in wider.owning] == [0]
    assert (wider.map_version, wider.owners) == (record.map_version, record.owners)
    assert moves.joined(wider, term=1, gen=1, member=member(7)) == wider
    with pytest.raises(Refused, match="another process"):
        moves.joined(wider, term=1, gen=1, member=member(7, life="b"))
    assert moves.left(wider, term=1, gen=1, ps=7) == record
    with pytest.raises(Refused, match="owns slots"):
        moves.left(wider, term=1, gen=1, ps=0)


def test_a_move_that_is_done_changes_the_owners_of_its_slots_and_no_others() -> None:
    record = frozen(open_record(0))
    assert record.pending == "move:1" and record.moving == 1
    done = moves.moved(record, term=1, gen=1, number=1)
    assert counts_of(done.owner_of) == {0: SLOTS - 100, 1: 100}
    assert done.map_version == record.reserved_version > record.map_version
    assert (done.pending, done.move) == ("", None)


def test_a_move_that_is_taken_back_leaves_the_map_under_a_version_above_its_freeze() -> None:
    record = frozen(open_record(0))
    with pytest.raises(Refused, match="nobody decided"):
        moves.taken_back(record, term=1, gen=1, number=1)
    back = moves.taking_back(record, term=1, gen=1, number=1)
    assert moves.taking_back(back, term=1, gen=1, number=1) == back
    with pytest.raises(Refused, match="go back"):
        moves.moved(back, term=1, gen=1, number=1)
    after = moves.taken_back(back, term=1, gen=1, number=1)
    assert after.owners == record.owners
    assert after.map_version == after.reserved_version == record.reserved_version + 1


def test_a_freeze_and_a_mark_exclude_each_other_and_a_copy_excludes_nothing() -> None:
    record = moves.joined(open_record(0), term=1, gen=1, member=member(1))
    copying = moves.begun(record, term=1, gen=1, source=0, target=1, slots=[5])
    marked = records.mark(copying, term=1, gen=1)
    with pytest.raises(Refused, match="mark:2 is pending"):
        moves.freezing(marked, term=1, gen=1, number=1)
    committed = records.commit(marked, term=1, gen=1, snapshot=2, full=False)
    moving = moves.freezing(committed, term=1, gen=1, number=1)
    with pytest.raises(Refused, match="move:1 is pending"):
        records.mark(moving, term=1, gen=1)
    with pytest.raises(Refused, match="move:1 is pending"):
        records.void(moving, term=1, gen=1, batches=[(0, 1, 2)])
    assert records.commit(marked, term=1, gen=1, snapshot=2, full=True).move is None


def test_a_copy_may_be_dropped_and_what_was_frozen_may_not() -> None:
    record = moves.joined(open_record(0), term=1, gen=1, member=member(1))
    copying = moves.begun(record, term=1, gen=1, source=0, target=1, slots=[5])
    assert moves.dropped(copying, term=1, gen=1, number=1).move is None
    moving = moves.freezing(copying, term=1, gen=1, number=1)
    with pytest.raises(Refused, match="may have been frozen"):
        moves.dropped(moving, term=1, gen=1, number=1)
    with pytest.raises(Refused, match="takes part in move 1"):
        moves.left(copying, term=1, gen=1, ps=1)


@pytest.mark.parametrize(
    ("source", "target", "slots"), [(0, 0, [1]), (0, 5, [1]), (5, 0, [1]), (1, 0, [1]), (0, 1, [])]
)
def test_only_slots_of_one_member_go_to_another(source: int, target: int, slots: list[int]) -> None:
    record = moves.joined(open_record(0), term=1, gen=1, member=member(1))
    with pytest.raises(Refused):
        moves.begun(record, term=1, gen=1, source=source, target=target, slots=slots)


def test_a_rollback_keeps_the_owners_where_the_same_servers_are_there_and_else_moves_the_least() -> None:
    uneven = moves.moved(frozen(open_record(0)), term=1, gen=1, number=1)
    again = records.next_generation(uneven, term=1, members=[member(0, life="b"), member(1)])
    assert again.owners == uneven.owners and again.move is None and again.map_version > uneven.map_version
    other = records.next_generation(uneven, term=1, members=[member(0), member(3)])
    assert counts_of(other.owner_of) == {0: 2048, 3: 2048}
    kept = (uneven.owner_of == 0) & (other.owner_of == 0)
    assert int(kept.sum()) == 2048
    idle = records.next_generation(uneven, term=1, members=[member(0), member(1), member(3)], weights={3: 0.0})
    assert idle.owners == uneven.owners


class Moving(RuleBasedStateMachine):
    """Any order of changes: the model knows which server has which slots, and the map must never contradict it."""

    def __init__(self) -> None:
        super().__init__()
        self.record = open_record(0, 1)
        self.held = self.record.owner_of
        """Who really has each slot, as the calls between the changes would make it."""
        self.limbo: set[int] = set()
        self.seen = [self.record]

    def _try(self, change: Callable[[], RunRecord]) -> bool:
        try:
            after = change()
        except Refused:
            return False
        self.seen.append(after)
        self.record = after
        return True

    def _number(self) -> int:
        return self.record.move.number if self.record.move is not None else self.record.operations

    @rule(ps=st.integers(0, 4))
    def join(self, ps: int) -> None:
        self._try(lambda: moves.joined(self.record, term=1, gen=self.record.gen, member=member(ps)))

    @rule(ps=st.integers(0, 4))
    def leave(self, ps: int) -> None:
        if self._try(lambda: moves.left(self.record, term=1, gen=self.record.gen, ps=ps)):
            assert ps not in self.held

    @rule(pair=st.tuples(st.integers(0, 4), st.integers(0, 4)), share=st.integers(1, 4))
    def begin(self, pair: tuple[int, int], share: int) -> None:
        source, target = pair
        owned = np.flatnonzero(self.record.owner_of == source).tolist()
        slots = owned[: len(owned) // share]
        self._try(
            lambda: moves.begun(
                self.record, term=1, gen=self.record.gen, source=source, target=target, slots=slots
            )
        )

    @rule()
    def drop(self) -> None:
        self._try(lambda: moves.dropped(self.record, term=1, gen=self.record.gen, number=self._number()))

    @rule()
    def freeze(self) -> None:
        if self._try(lambda: moves.freezing(self.record, term=1, gen=self.record.gen, number=self._number())):
            assert self.record.move is not None
            self.limbo = set(slots_of(self.record.move.slots_bytes))

    @precondition(lambda self: self.record.move is not None)
    @rule()
    def publish(self) -> None:
        move = self.record.move
        if self._try(lambda: moves.moved(self.record, term=1, gen=self.record.gen, number=self._number())):
            assert move is not None
            self.held[list(self.limbo)] = move.target
            self.limbo = set()

    @rule()
    def take_back(self) -> None:
        self._try(lambda: moves.taking_back(self.record, term=1, gen=self.record.gen, number=self._number()))

    @rule()
    def took_back(self) -> None:
        if self._try(lambda: moves.taken_back(self.record, term=1, gen=self.record.gen, number=self._number())):
            self.limbo = set()

    @rule()
    def mark(self) -> None:
        if self._try(lambda: records.mark(self.record, term=1, gen=self.record.gen)):
            assert not self.limbo, "a mark while slots are nobody's"

    @rule(commit=st.booleans())
    def end_mark(self, commit: bool) -> None:
        number, gen = self.record.marking, self.record.gen
        if commit:
            self._try(lambda: records.commit(self.record, term=1, gen=gen, snapshot=number, full=False))
        else:
            self._try(lambda: records.abort_mark(self.record, term=1, snapshot=number))

    @rule(servers=st.sets(st.integers(0, 4), min_size=1))
    def roll_back(self, servers: set[int]) -> None:
        fleet = [member(ps) for ps in sorted(servers)]
        if self._try(lambda: records.next_generation(self.record, term=1, members=fleet)):
            self.held, self.limbo = self.record.owner_of, set()

    @rule()
    def open(self) -> None:
        self._try(lambda: records.opened(self.record, term=1, gen=self.record.gen))

    @invariant()
    def the_map_is_the_truth(self) -> None:
        assert np.array_equal(self.held, self.record.owner_of)
        assert set(self.held.tolist()) <= {item.ps for item in self.record.members}

    @invariant()
    def slots_are_between_servers_only_while_that_is_pending(self) -> None:
        assert bool(self.limbo) == bool(self.record.moving)

    @invariant()
    def numbers_only_grow_and_each_map_has_its_version(self) -> None:
        before, after = ([*self.seen[-2:-1], self.record] if len(self.seen) > 1 else [self.record] * 2)
        assert after.operations >= before.operations
        assert after.reserved_version >= max(before.reserved_version, after.map_version)
        assert after.map_version > before.map_version or after.owners == before.owners


Moving.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestMoving = Moving.TestCase
