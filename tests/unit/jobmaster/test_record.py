"""The run record: what may follow what, and what never may."""

from collections.abc import Callable

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from services.jobmaster.domain import record as records
from services.jobmaster.domain.record import Member, Refused, RunRecord


def members(count: int = 2, *, life: str = "a") -> list[Member]:
    return [Member(ps=i, address=f"host:{i}", incarnation=f"{life}{i}") for i in range(count)]


def open_record() -> RunRecord:
    record = records.next_generation(RunRecord(job_id="j", term=1), term=1, members=members())
    return records.opened(record, term=1, gen=1)


def test_a_generation_uses_a_map_version_that_was_never_reserved() -> None:
    record = open_record().model_copy(update={"reserved_version": 9})
    after = records.next_generation(record, term=1, members=members(life="b"))
    assert (after.gen, after.map_version, after.reserved_version) == (2, 10, 10)


def test_members_must_be_each_ps_once() -> None:
    with pytest.raises(Refused):
        records.next_generation(open_record(), term=1, members=members()[::-1])
    with pytest.raises(Refused):
        records.next_generation(open_record(), term=1, members=[members()[1]] * 2)
    with pytest.raises(Refused):
        records.next_generation(open_record(), term=1, members=[])


def test_a_snapshot_of_an_old_generation_is_never_committed() -> None:
    marked = records.mark(open_record(), term=1, gen=1)
    rolled = records.next_generation(marked, term=1, members=members(life="b"))
    with pytest.raises(Refused, match="generation 1 is over"):
        records.commit(rolled, term=1, gen=1, snapshot=marked.marking, full=False)


def test_an_aborted_number_is_never_used_again() -> None:
    marked = records.mark(open_record(), term=1, gen=1)
    again = records.mark(records.abort_mark(marked, term=1, snapshot=1), term=1, gen=1)
    assert (marked.marking, again.marking) == (1, 2)


def test_only_one_structural_operation_is_pending_at_a_time() -> None:
    marked = records.mark(open_record(), term=1, gen=1)
    with pytest.raises(Refused, match="mark:1 is pending"):
        records.mark(marked, term=1, gen=1)
    with pytest.raises(Refused, match="mark:1 is pending"):
        records.void(marked, term=1, gen=1, batches=[(0, 1, 2)])


def test_a_lower_term_changes_nothing() -> None:
    record = records.takeover(open_record())
    assert record.term == 2
    changes: list[Callable[[], RunRecord]] = [
        lambda: records.mark(record, term=1, gen=1),
        lambda: records.next_generation(record, term=1, members=members()),
        lambda: records.closed(record, term=1),
        lambda: records.finishing(record, term=1),
    ]
    for change in changes:
        with pytest.raises(Refused, match="term 1 is over"):
            change()


def test_a_quarantine_that_a_rollback_interrupts_is_applied_by_the_restore() -> None:
    voiding = records.void(open_record(), term=1, gen=1, batches=[(0, 5, 9)])
    rolled = records.next_generation(voiding, term=1, members=members(life="b"))
    assert rolled.voids == ((0, 5, 9),)
    assert rolled.pending_voids == ()


def test_a_damaged_snapshot_gives_way_to_the_one_before_it() -> None:
    record = open_record()
    for number in (1, 2):
        marked = records.mark(record, term=1, gen=1)
        record = records.commit(marked, term=1, gen=1, snapshot=number, full=False)
    assert records.damaged(record, term=1, snapshot=2).last_committed == 1
    assert records.damaged(records.damaged(record, term=1, snapshot=2), term=1, snapshot=1).last_committed == 0


def test_a_full_snapshot_or_a_finishing_job_is_closed_by_the_commit_itself() -> None:
    marked = records.mark(open_record(), term=1, gen=1)
    assert records.commit(marked, term=1, gen=1, snapshot=1, full=True).phase == "closed"
    finishing = records.finishing(open_record(), term=1)
    marked = records.mark(finishing, term=1, gen=1)
    assert records.commit(marked, term=1, gen=1, snapshot=1, full=False).phase == "closed"


class Record(RuleBasedStateMachine):
    """Any order of changes by the present term or an older one: numbers only grow, commits are of their own gen."""

    def __init__(self) -> None:
        super().__init__()
        self.record = RunRecord(job_id="j", term=1)
        self.seen: list[RunRecord] = [self.record]
        self.marks: dict[int, int] = {}
        self.lives = 0

    def _try(self, change: Callable[[], RunRecord]) -> None:
        try:
            after = change()
        except Refused:
            return
        self.record = after
        self.seen.append(after)
        if after.marking:
            assert self.marks.get(after.marking, after.gen) == after.gen, "a number was used in two generations"
            self.marks[after.marking] = after.gen

    def _term(self, stale: bool) -> int:
        return self.record.term - 1 if stale else self.record.term

    @rule(stale=st.booleans())
    def roll_back(self, stale: bool) -> None:
        self.lives += 1
        life = f"l{self.lives}-"
        self._try(
            lambda: records.next_generation(self.record, term=self._term(stale), members=members(life=life))
        )

    @rule(gen=st.integers(0, 5), stale=st.booleans())
    def open(self, gen: int, stale: bool) -> None:
        self._try(lambda: records.opened(self.record, term=self._term(stale), gen=gen))

    @rule(gen=st.integers(0, 5))
    def mark(self, gen: int) -> None:
        self._try(lambda: records.mark(self.record, term=self.record.term, gen=gen))

    @rule(gen=st.integers(0, 5), number=st.integers(1, 8), full=st.booleans())
    def commit(self, gen: int, number: int, full: bool) -> None:
        before = self.record
        self._try(
            lambda: records.commit(self.record, term=self.record.term, gen=gen, snapshot=number, full=full)
        )
        if self.record.last_committed != before.last_committed:
            assert self.marks[self.record.last_committed] == self.record.gen

    @rule(number=st.integers(1, 8))
    def abort(self, number: int) -> None:
        self._try(lambda: records.abort_mark(self.record, term=self.record.term, snapshot=number))

    @rule(gen=st.integers(0, 5), lo=st.integers(0, 9))
    def void(self, gen: int, lo: int) -> None:
        self._try(
            lambda: records.void(self.record, term=self.record.term, gen=gen, batches=[(0, lo, lo + 1)])
        )

    @rule(gen=st.integers(0, 5))
    def voided(self, gen: int) -> None:
        self._try(lambda: records.voided(self.record, term=self.record.term, gen=gen, partly_applied=[]))

    @precondition(lambda self: self.record.term < 4)
    @rule()
    def take_over(self) -> None:
        self._try(lambda: records.takeover(self.record))

    @rule(number=st.integers(1, 8))
    def damage(self, number: int) -> None:
        self._try(lambda: records.damaged(self.record, term=self.record.term, snapshot=number))

    @invariant()
    def numbers_only_grow(self) -> None:
        if len(self.seen) > 1:
            a, b = self.seen[-2:]
            assert b.gen >= a.gen
            assert b.term >= a.term
            assert b.map_version >= a.map_version
            assert b.operations >= a.operations
            assert set(a.voids) <= set(b.voids)
            assert b.map_version > a.map_version or b.gen == a.gen

    @invariant()
    def the_last_committed_is_the_newest_that_is_remembered(self) -> None:
        assert self.record.last_committed == (self.record.committed[-1] if self.record.committed else 0)
        assert list(self.record.committed) == sorted(set(self.record.committed))


Record.TestCase.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
TestRecord = Record.TestCase
