"""Calls to all servers of a map: what becomes of them when one has left it."""

import threading
from typing import Any

import pytest

from recmesh.formats import SlotMap
from recmesh.runtime.errors import Unavailable
from recmesh.trainer.ports import Member
from recmesh.trainer.worker.fleet import Fleet, WrongMap
from tests.unit.trainer.fakes import record_of


class Server:
    """Answers, or is not there any more."""

    def __init__(self, member: Member) -> None:
        self.ps = member.ps

    def answer(self) -> int:
        if self.ps == 1:
            raise Unavailable("nobody is there")
        return self.ps

    def close(self) -> None:
        """Nothing is held."""


def call(fleet: Fleet, gone: threading.Event) -> Any:
    return fleet.each(lambda _, server: server.answer(), placement=fleet.placement, what="ask", gone=gone)  # type: ignore[attr-defined]


def test_a_call_to_a_server_that_has_left_ends_when_a_newer_map_is_heard_of() -> None:
    fleet = Fleet(Server, record_of(SlotMap.even(4, 2), 2))  # type: ignore[arg-type]
    timer = threading.Timer(0.2, lambda: fleet.heard(9))
    timer.start()
    with pytest.raises(WrongMap) as refused:
        call(fleet, threading.Event())
    assert refused.value.since == 9
    timer.join()
    fleet.close()


def test_an_older_map_that_is_heard_of_late_ends_no_call() -> None:
    fleet = Fleet(Server, record_of(SlotMap.even(4, 1), 1))  # type: ignore[arg-type]
    fleet.heard(3)
    assert call(fleet, threading.Event()) == {0: 0}
    fleet.close()


def test_a_call_under_a_map_of_which_a_server_has_left_asks_nobody() -> None:
    fleet = Fleet(Server, record_of(SlotMap.even(4, 2), 2))  # type: ignore[arg-type]
    old = fleet.placement
    fleet.use(record_of(SlotMap.even(7, 1), 1))
    asked: list[int] = []
    with pytest.raises(WrongMap) as refused:
        fleet.each(lambda ps, _: asked.append(ps), placement=old, what="ask", gone=threading.Event())
    assert refused.value.since == 7 and asked == []
    assert call(fleet, threading.Event()) == {0: 0}
    fleet.close()
