"""A thread steps back, and never forward."""

import os
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from recmesh.runtime.priority import step_back


def after(*steps: int) -> list[int]:
    """A thread's niceness after each of its steps back, above the one that it began with."""
    def thread() -> list[int]:
        own = threading.get_native_id()
        began, found = os.getpriority(os.PRIO_PROCESS, own), []
        for step in steps:
            step_back(began + step)
            found.append(os.getpriority(os.PRIO_PROCESS, own) - began)
        return found

    with ThreadPoolExecutor(1) as pool:
        return pool.submit(thread).result()


@pytest.mark.skipif(os.getpriority(os.PRIO_PROCESS, 0) > 15, reason="this process is nearly as nice as can be")
def test_a_thread_steps_back_and_stays_where_it_is_when_it_is_nicer_already() -> None:
    before = os.getpriority(os.PRIO_PROCESS, 0)
    assert after(2, 4, 3, 0) == [2, 4, 4, 4]
    assert os.getpriority(os.PRIO_PROCESS, 0) == before, "others of the process stay"


def test_one_that_may_not_come_back_is_not_asked_to(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*arguments: int) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "setpriority", refused)
    step_back(os.getpriority(os.PRIO_PROCESS, 0))
