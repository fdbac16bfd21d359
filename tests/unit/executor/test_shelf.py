"""What an executor holds."""

from hypothesis import given
from hypothesis import strategies as st

from recmesh.trainer.executor.priority import Priority
from recmesh.trainer.executor.shelf import IDLE_S, MOVED_S, Entry, Shelf
from tests.unit.executor.builders import ROW_BYTES, rows_of, task

TASK_BYTES = 10 * ROW_BYTES


def a_shelf(tasks_held: float = 2, **more: object) -> Shelf:
    return Shelf([1.0, 1.0], int(tasks_held * TASK_BYTES), **more)      # type: ignore[arg-type]  # as given


def decode(shelf: Shelf, *, now: float = 0.0) -> Entry | None:
    entry = shelf.next_to_decode(now=now)
    if entry is not None:
        shelf.finish(entry, rows_of(entry.task), None, now=now)
    return entry


def decoded(shelf: Shelf, *, now: float = 0.0) -> list[int]:
    found = []
    while (entry := decode(shelf, now=now)) is not None:
        found.append(entry.task.base // 10)
    return found


def test_tasks_are_read_ahead_in_order_until_the_buffer_is_full() -> None:
    shelf = a_shelf(2)
    assert shelf.announce([task(i) for i in range(5)], now=0) == 5
    assert decoded(shelf) == [0, 1]
    assert shelf.held_bytes == 2 * TASK_BYTES
    assert shelf.queued == 3


def test_rows_that_were_handed_out_make_way_for_the_next() -> None:
    shelf = a_shelf(2)
    shelf.announce([task(i) for i in range(3)], now=0)
    decoded(shelf)
    shelf.handed_out(shelf.ask(task(0), now=1, here=False), 9, now=1)
    assert decoded(shelf) == []
    shelf.handed_out(shelf.ask(task(0), now=1, here=False), 1, now=1)
    assert decoded(shelf) == [2]


def test_what_a_peer_passes_on_stays_though_it_was_here_or_had_gone_before() -> None:
    shelf = a_shelf()
    shelf.announce([task(i) for i in range(3)], now=0)
    on_its_way = shelf.to_pass_on(2)
    assert [entry.task.base for entry in on_its_way] == [20, 10]
    assert shelf.announce([task(2)], now=0, taken=True) == 1
    shelf.gone(on_its_way, "e1")
    assert shelf.ask(task(2), now=0, here=False).state == "queued"
    assert shelf.ask(task(1), now=0, here=False).moved_to == "e1"
    assert shelf.announce([task(1)], now=0, taken=True) == 1
    assert shelf.ask(task(1), now=0, here=False).state == "queued"
    assert [entry.task.base for entry in shelf.to_pass_on(3)] == [0]


def test_what_is_waited_for_is_read_first_and_may_push_others_out() -> None:
    shelf = a_shelf(2)
    shelf.announce([task(i) for i in range(4)], now=0)
    assert decoded(shelf) == [0, 1]
    shelf.ask(task(3), now=1, here=False).waiters += 1
    assert decoded(shelf, now=1) == [3]
    assert shelf.held_bytes <= 2 * TASK_BYTES


def test_rows_of_a_dead_worker_make_way_after_a_while() -> None:
    shelf = a_shelf(1)
    shelf.announce([task(0), task(1)], now=0)
    assert decoded(shelf) == [0]
    assert decoded(shelf, now=IDLE_S) == []
    assert decoded(shelf, now=IDLE_S + 1) == [1]


def test_a_task_that_is_larger_than_the_buffer_is_read_all_the_same() -> None:
    shelf = a_shelf(0.5)
    shelf.announce([task(0), task(1)], now=0)
    assert decoded(shelf) == [0]


def test_a_task_that_two_ask_for_is_read_once() -> None:
    shelf = a_shelf(4)
    shelf.announce([task(0)], now=0)
    shelf.announce([task(0)], now=0)
    shelf.ask(task(0), now=0, here=False)
    assert decoded(shelf) == [0]
    assert shelf.ask(task(0), now=1, here=False).state == "ready"


def test_the_same_rows_in_another_order_are_another_task() -> None:
    shelf = a_shelf(4)
    assert shelf.announce([task(0, seed=1), task(0, seed=2)], now=0) == 2
    assert decoded(shelf) == [0, 0]


def test_a_full_queue_takes_no_more() -> None:
    shelf = a_shelf(most_queued=3)
    assert shelf.announce([task(i) for i in range(5)], now=0) == 3
    assert shelf.announce([task(0), task(7)], now=0) == 1


def test_a_task_that_failed_is_read_again_when_it_is_asked_for_again() -> None:
    shelf = a_shelf()
    shelf.announce([task(0)], now=0)
    entry = shelf.next_to_decode(now=0)
    assert entry is not None
    shelf.finish(entry, None, OSError("gone"), now=0)
    assert entry.state == "failed"
    assert shelf.ask(task(0), now=0, here=False).state == "queued"


def test_a_task_that_went_to_a_peer_is_there_and_one_that_came_from_a_peer_stays() -> None:
    shelf = a_shelf()
    shelf.announce([task(0), task(1)], now=0)
    shelf.announce([task(2)], now=0, taken=True)
    passed = shelf.to_pass_on(9)
    assert [entry.task.base for entry in passed] == [10, 0]
    shelf.gone(passed[:1], "peer:1")
    assert shelf.ask(task(1), now=0, here=False).moved_to == "peer:1"
    assert shelf.announce([task(1)], now=0) == 1
    assert shelf.queued == 2


def test_one_who_says_here_gets_it_here_and_it_is_passed_on_no_more() -> None:
    shelf = a_shelf()
    shelf.announce([task(0)], now=0)
    shelf.gone(shelf.to_pass_on(1), "peer:1")
    assert shelf.ask(task(0), now=1, here=True).state == "queued"
    assert shelf.to_pass_on(9) == []


def test_where_a_task_went_is_forgotten_in_time() -> None:
    shelf = a_shelf()
    shelf.announce([task(0)], now=0)
    shelf.gone(shelf.to_pass_on(1), "peer:1")
    assert shelf.ask(task(0), now=MOVED_S + 1, here=False).state == "queued"


def test_sources_are_read_by_their_priority() -> None:
    shelf = Shelf([1.0, 1.5], 1 << 30, priority=Priority(scale=4.0, least_share=0.0))
    shelf.announce([task(i) for i in range(3)], now=0)
    shelf.announce([task(i, view=1) for i in range(3)], now=0)
    entry = decode(shelf)
    assert entry is not None
    assert entry.key[0].view == 1


@given(st.lists(st.tuples(st.sampled_from(["announce", "ask", "decode", "hand out", "pass on"]), st.integers(0, 9)),
                max_size=80))
def test_the_buffer_stays_bounded_and_its_account_right_whatever_happens(steps: list[tuple[str, int]]) -> None:
    shelf, now = a_shelf(3), 0.0
    for what, number in steps:
        now += 1.0
        if what == "announce":
            shelf.announce([task(number)], now=now)
        elif what == "ask":
            shelf.ask(task(number), now=now, here=False)
        elif what == "decode":
            decode(shelf, now=now)
        elif what == "hand out":
            entry = shelf.ask(task(number), now=now, here=False)
            if entry.state == "ready":
                shelf.handed_out(entry, 5, now=now)
        else:
            shelf.gone(shelf.to_pass_on(1), "peer:1")
        held = [entry for entry in shelf._entries.values() if entry.state == "ready"]
        assert shelf.held_bytes == sum(entry.size_bytes for entry in held) <= 3 * TASK_BYTES
        assert shelf.queued == sum(entry.state == "queued" for entry in shelf._entries.values())
