"""What a parameter server makes of the answers to its heartbeats."""

import threading
from dataclasses import replace

from recmesh.formats import SlotMap
from recmesh.runtime.errors import Unavailable
from recmesh.trainer.ports import Beat, BeatReply, RunRecord
from recmesh.trainer.ps.role import Hearing, Membership
from recmesh.trainer.role import Heart
from tests.unit.trainer.fakes import FakeRuns, record_of


def test_the_record_is_read_when_it_changed_and_read_again_after_a_failure() -> None:
    runs, stopped, asked = FakeRuns(record_of(SlotMap.even(1, 1), 1)), threading.Event(), []
    failing = [True]

    def record() -> RunRecord:
        asked.append(runs.now.gen)
        if failing:
            failing.pop()
            raise Unavailable("away")
        return runs.now

    hearing = Hearing(Membership(0, "1-0"), record, stopped)
    heart = Heart(runs, every_s=9.0, beat=lambda: Beat(1), heard=hearing.heard)
    for _ in range(4):
        heart.once()
    assert asked == [1, 1] and not stopped.is_set()
    runs.now = record_of(SlotMap.even(2, 1), 1, gen=2)
    heart.once()
    assert asked == [1, 1, 2] and stopped.is_set()


def test_a_directive_ends_the_process_without_a_look_at_the_record() -> None:
    stopped = threading.Event()
    Hearing(Membership(0, "1-0"), FakeRuns(record_of(SlotMap.even(1, 1), 1)).record, stopped).heard(
        BeatReply("drain", 1, 1, "open"))
    assert stopped.is_set()


def test_a_server_that_has_left_its_generation_stays_until_the_next_one_or_until_it_is_told_to_go() -> None:
    member = Membership(0, "1-0")
    assert not member.ended(record_of(SlotMap.even(1, 1), 1))
    others = RunRecord(gen=1, phase="open", map_version=2, owners=SlotMap.even(2, 1).owners, members=())
    assert not member.ended(others)
    assert member.ended(replace(others, gen=2))
    assert member.ended(replace(others, phase="closed"))
