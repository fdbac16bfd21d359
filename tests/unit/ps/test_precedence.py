"""Who computes at a server: few training calls, one beside an order, and never none."""

import threading

from recmesh.trainer.ps.precedence import AT_ONCE, Precedence
from tests.support.waiting import until


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


def settles(precedence: Precedence, inside: list[threading.Event], *, at: int) -> bool:
    """So many have come in, and all the others wait for a turn: none can be on its way."""

    def settled() -> bool:
        waiting = len(precedence._condition._waiters)  # type: ignore[attr-defined]  # who waits is known nowhere else
        return sum(each.is_set() for each in inside) == at and at + waiting >= len(inside)

    until(settled, timeout_s=5.0)
    return True


def test_few_training_calls_compute_at_once_and_all_come_to_it() -> None:
    precedence = Precedence()
    inside, threads, ended = begun(precedence, 3 * AT_ONCE)
    assert settles(precedence, inside, at=AT_ONCE)
    ended.set()
    assert settles(precedence, inside, at=3 * AT_ONCE)
    for thread in threads:
        thread.join(5.0)


def test_beside_an_order_one_training_call_goes_on_and_the_others_wait_until_it_is_done() -> None:
    precedence = Precedence()
    with precedence.order():
        with precedence.order():              # orders do not wait for each other
            inside, threads, ended = begun(precedence, AT_ONCE)
            assert settles(precedence, inside, at=1)
        assert settles(precedence, inside, at=1), "the outer one is still under way"
    assert settles(precedence, inside, at=AT_ONCE)
    ended.set()
    for thread in threads:
        thread.join(5.0)


def test_calls_that_began_before_an_order_do_not_hold_it_up() -> None:
    precedence = Precedence()
    inside, threads, ended = begun(precedence, AT_ONCE)
    assert settles(precedence, inside, at=AT_ONCE)
    with precedence.order():
        ended.set()
        late, more, late_ended = begun(precedence, 3)
        assert settles(precedence, late, at=1)
        late_ended.set()
        assert settles(precedence, late, at=3), "one after the other"
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
