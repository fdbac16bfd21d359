"""A parameter server that is asked to go by a signal: jobmaster says when."""

import signal
import threading
import time
from collections.abc import Iterator

import pytest

from recmesh.runtime.errors import Unavailable
from recmesh.trainer.ps.notice import Notice


@pytest.fixture
def notice() -> Iterator[Notice]:
    before = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)
    made = Notice(patience_s=0.3)
    made.listen()
    yield made
    signal.signal(signal.SIGTERM, before[0])
    signal.signal(signal.SIGINT, before[1])


def test_a_signal_is_told_to_jobmaster_and_the_process_stays_until_it_says_so(notice: Notice) -> None:
    stopped, told = threading.Event(), []
    signal.raise_signal(signal.SIGTERM)
    assert notice.given
    timer = threading.Timer(0.05, stopped.set)
    timer.start()
    notice.wait(stopped, tell=lambda: told.append(time.monotonic()))
    assert stopped.is_set() and len(told) == 1


def test_a_process_whose_slots_do_not_go_in_time_goes_all_the_same(notice: Notice) -> None:
    signal.raise_signal(signal.SIGTERM)
    began, stopped = time.monotonic(), threading.Event()
    notice.wait(stopped, tell=lambda: None)
    assert time.monotonic() - began >= 0.3 and not stopped.is_set()


def test_without_an_answer_from_jobmaster_nothing_is_waited_for(notice: Notice) -> None:
    def tell() -> None:
        raise Unavailable("no jobmaster")

    signal.raise_signal(signal.SIGTERM)
    began = time.monotonic()
    notice.wait(threading.Event(), tell=tell)
    assert time.monotonic() - began < 0.25


def test_without_a_signal_the_process_ends_when_it_is_told_to_and_tells_nobody(notice: Notice) -> None:
    stopped, told = threading.Event(), []
    stopped.set()
    notice.wait(stopped, tell=lambda: told.append(1))
    assert not told
