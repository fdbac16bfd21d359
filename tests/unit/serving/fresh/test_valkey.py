"""The tier between process and disk: its writer ends when it is told to, and no request waits for a name."""

import socket
import threading

import numpy as np
import pytest

from recmesh.serving.fresh.valkey import WRITES_WAITING, Valkey
from recmesh.serving.settings import ValkeySettings
from tests.support.waiting import until


def test_with_a_full_queue_and_a_silent_server_the_writer_ends_and_what_waits_is_dropped() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        settings = ValkeySettings(url=f"redis://127.0.0.1:{silent.getsockname()[1]}", deadline_ms=10)
        made = Valkey(settings, prefix="rm:j")
        made._up.set()                                           # as if it had been there
        ids, rows = np.array([1], np.int64), np.ones((1, 2), np.float32)
        made.offer("item", 1, ids, rows)
        until(lambda: made._writes.qsize() == 0)                 # the writer is at it
        for _ in range(WRITES_WAITING):
            made.offer("item", 1, ids, rows)
        made.close()
        assert made.dropped == WRITES_WAITING
        made._writer.join(60.0)
        assert not made._writer.is_alive()
        assert made.dropped == WRITES_WAITING + 1
        made._rest()                                             # a look-up that was under way fails now
        made._up.set()
        assert not made.is_up, "it is closed"
        made.offer("item", 1, ids, rows)
        assert made._writes.empty()


def test_no_look_up_waits_for_a_name(monkeypatch: pytest.MonkeyPatch) -> None:
    asking, hold = [], threading.Event()

    def slow(*_: object, **__: object) -> list[object]:
        asking.append(threading.current_thread().name)
        assert hold.wait(60.0)
        raise OSError("no such name")

    monkeypatch.setattr(socket, "getaddrinfo", slow)
    made = Valkey(ValkeySettings(url="redis://valkey.invalid:6379"), prefix="rm:j")
    ids, out = np.array([1], np.int64), np.zeros((1, 2), np.float32)
    until(lambda: bool(asking))
    assert not made.get("item", 1, ids, out).any() and not made.connected(0.0)
    made._up.set()                               # its connection ended since it was last looked at
    assert not made.get("item", 1, ids, out).any()
    assert (asking, made.is_up, made.errors) == (["valkey-connector"], False, 1)
    made.close()
    hold.set()
    made._connector.join(60.0)
    assert not made._connector.is_alive()
