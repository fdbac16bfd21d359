"""What a CN's thread does next: what has begun, then new requests, by priority and by turns of their models."""

import time

import pytest

from recmesh.runtime.errors import DeadlineExceeded, ResourceExhausted
from recmesh.serving.cn.line import Line, Turn

LONG_S = 3600.0


class Thread:
    """Takes what is next, and says how long it took: for each model as long as the test says."""

    def __init__(self, **seconds: float) -> None:
        self.line: Line[str] = Line()
        self.turns = {name: Turn[str]() for name in seconds}
        self._seconds = seconds
        self._sent = 0

    def send(self, name: str, count: int = 1, *, priority: int = 0, left_s: float = LONG_S) -> None:
        for _ in range(count):
            self._sent += 1
            deadline = time.monotonic() + left_s
            assert not self.line.put(self.turns[name], name, rows=1, priority=priority, deadline=deadline)

    def works(self, count: int) -> str:
        """Whose requests are begun, in this order."""
        done = []
        for _ in range(count):
            piece, late = self.line.next()
            assert piece is not None and piece.work is None and not late
            self.line.did(self.turns[piece.item], self._seconds[piece.item])
            done.append(piece.item)
        return "".join(done)


def test_a_model_with_much_to_do_stops_no_other() -> None:
    thread = Thread(a=1.0, b=0.1)
    thread.send("a", 5, left_s=1000.0)           # all of them due before b's
    thread.send("b")
    assert thread.works(2) == "ab"
    thread.send("b", 3)
    assert thread.works(7) == "bbbaaaa"


def test_models_that_always_have_something_to_do_have_equal_parts_of_the_time() -> None:
    thread = Thread(a=1.0, b=0.25)
    thread.send("a", 20)
    thread.send("b", 40)
    done = thread.works(40)
    assert abs(done.count("a") * 1.0 - done.count("b") * 0.25) <= 1.0


def test_who_did_not_ask_for_a_while_has_no_claim_to_the_time_that_others_had() -> None:
    thread = Thread(a=1.0, b=1.0)
    thread.send("a", 12)
    assert thread.works(9) == "a" * 9
    thread.send("b", 3)
    assert thread.works(6) == "bababa"


def test_a_higher_priority_goes_before_turns() -> None:
    thread = Thread(a=1.0, b=0.1)
    thread.send("b", 2)
    thread.send("a", 2, priority=1)
    assert thread.works(4) == "aabb"


def test_who_comes_anew_is_not_behind_equals_by_what_a_higher_priority_had() -> None:
    thread = Thread(a=1.0, b=1.0, c=1.0)
    thread.send("b", 20)
    thread.send("a", 10, priority=1)
    assert thread.works(10) == "a" * 10
    thread.send("c", 3)
    assert thread.works(6).count("c") == 3


def test_of_one_model_the_earliest_deadline_goes_first() -> None:
    line, turn = Line[str](), Turn[str]()
    for name, left_s in (("later", 200.0), ("sooner", 100.0)):
        line.put(turn, name, rows=1, priority=0, deadline=time.monotonic() + left_s)
    assert [piece.item for piece, _ in (line.next(), line.next()) if piece] == ["sooner", "later"]


def test_what_has_begun_is_finished_first() -> None:
    line, turn, done = Line[str](), Turn[str](), list[str]()
    line.put(turn, "new", rows=1, priority=1, deadline=time.monotonic() + 1.0)
    line.go_on("begun", lambda: done.append("begun"), priority=9, deadline=time.monotonic() + LONG_S)
    piece, _ = line.next()
    assert piece is not None and piece.item == "begun" and piece.work is not None
    assert len(line) == 1


def test_a_full_line_of_one_model_is_none_of_another() -> None:
    line, full, free = Line[str](), Turn[str](2), Turn[str](2)
    for _ in range(2):
        line.put(full, "full", rows=1, priority=0, deadline=time.monotonic() + LONG_S)
    with pytest.raises(ResourceExhausted) as caught:
        line.put(full, "full", rows=1, priority=0, deadline=time.monotonic() + LONG_S)
    assert caught.value.reason == "QUEUE_FULL"
    line.put(free, "free", rows=1, priority=0, deadline=time.monotonic() + LONG_S)
    assert len(line) == 3


def test_who_cannot_be_in_time_behind_those_of_its_model_is_refused_at_once() -> None:
    line, turn, other = Line[str](), Turn[str](), Turn[str]()
    for _ in range(3):
        line.did(turn, 100.0, begun_rows=1)
    line.put(turn, "a", rows=1, priority=0, deadline=time.monotonic() + 150.0)
    with pytest.raises(ResourceExhausted) as caught:
        line.put(turn, "b", rows=1, priority=0, deadline=time.monotonic() + 160.0)
    assert caught.value.reason == "DEADLINE_BEHIND_QUEUE"
    with pytest.raises(DeadlineExceeded) as alone:
        line.put(turn, "c", rows=1, priority=0, deadline=time.monotonic() + 50.0)
    assert alone.value.reason == "DEADLINE_TOO_SHORT"
    line.put(other, "d", rows=1, priority=0, deadline=time.monotonic() + 50.0)   # of which nothing is known


def test_who_cannot_be_in_time_any_more_is_told_when_its_model_is_next() -> None:
    line, turn = Line[str](), Turn[str]()
    line.put(turn, "a", rows=1, priority=0, deadline=time.monotonic() + 50.0)
    for _ in range(3):
        line.did(turn, 100.0, begun_rows=1)
    piece, [(item, why)] = line.next()
    assert piece is None and item == "a" and why.reason == "DEADLINE_BEHIND_QUEUE" and not len(line)


def test_what_was_taken_back_is_not_begun() -> None:
    line, turn = Line[str](), Turn[str]()
    names = ["first", "second"]
    for name in names:
        line.put(turn, name, rows=1, priority=0, deadline=time.monotonic() + LONG_S)
    line.remove(turn, names[0])
    piece, _ = line.next()
    assert piece is not None and piece.item == "second" and not len(line)
    line.remove(turn, names[0])
