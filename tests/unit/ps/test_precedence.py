"""Who computes at a server: few training calls, one beside an order, and never none."""

import threading
import time

from recmesh.trainer.ps.precedence import AT_ONCE, Precedence


def begun(precedence: Precedence, calls: int) -> tuple[list[threading.Event], list[threading.Thread], threading.Event]:
    """Training calls that stay inside until the event; which have come in."""
    inside, ended = [threading.Event() for _ in range(calls)], threading.Event()

    def call(mine: threading.Event) -> None:
        with precedence.training():
            mine.set()
            ended.wait(10.0)

    threads = [threading.Thread(target=call, args=(mine,)) for mine in inside]
    for thread in threads:
        thread.start()
    return inside, threads, ended


def count(inside: list[threading.Event], *, wanted: int) -> int:
    deadline = time.monotonic() + 5.0
    while sum(each.is_set() for each in inside) < wanted and time.monotonic() < deadline:
        time.sleep(0.005)
    time.sleep(0.05)                          # time for one too many
    return sum(each.is_set() for each in inside)


def test_few_training_calls_compute_at_once_and_all_come_to_it() -> None:
    precedence = Precedence()
    inside, threads, ended = begun(precedence, 3 * AT_ONCE)
    assert count(inside, wanted=AT_ONCE) == AT_ONCE
    ended.set()
    assert count(inside, wanted=3 * AT_ONCE) == 3 * AT_ONCE
    for thread in threads:
        thread.join(5.0)


def test_beside_an_order_one_training_call_goes_on_and_the_others_wait_until_it_is_done() -> None:
    precedence = Precedence()
    with precedence.order():
        with precedence.order():              # orders do not wait for each other
            inside, threads, ended = begun(precedence, AT_ONCE)
            assert count(inside, wanted=1) == 1
        assert count(inside, wanted=1) == 1, "the outer one is still under way"
    assert count(inside, wanted=AT_ONCE) == AT_ONCE
    ended.set()
    for thread in threads:
        thread.join(5.0)


def test_calls_that_began_before_an_order_do_not_hold_it_up() -> None:
    precedence = Precedence()
    inside, threads, ended = begun(precedence, AT_ONCE)
    assert count(inside, wanted=AT_ONCE) == AT_ONCE
    with precedence.order():
        ended.set()
        late, more, late_ended = begun(precedence, 3)
        assert count(late, wanted=1) == 1
        late_ended.set()
        assert count(late, wanted=3) == 3, "one after the other"
    for thread in [*threads, *more]:
        thread.join(5.0)


def test_an_error_inside_gives_the_turn_back() -> None:
    precedence = Precedence(at_once=1)
    for enter in (precedence.training, precedence.order):
        try:
            with enter():
                raise ValueError
        except ValueError:
            pass
    with precedence.training():
        pass
