"""The benchmarks' own instruments: load at drawn times, and the node that `gpu_node` simulates."""

import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from bench.gpu_node import SLO_S, Service, served
from bench.offered_load import Offered, Target, offer

RATE, SECONDS = 100.0, 1.5
STALL_S = 0.5

Reply = Callable[[int], bytes | None]
"""By the number of the request; None: the connection is closed instead."""


def answer(status: str) -> bytes:
    body = b"{}"
    inference = b"Inference-Header-Content-Length: 999\r\n"       # not the size of the body
    return b"HTTP/1.1 " + status.encode() + b"\r\n" + inference + b"Content-Length: 2\r\n\r\n" + body


@contextmanager
def server(reply: Reply) -> Iterator[Target]:
    """Answers one request at a time, over all connections, as a server with one thread would."""
    listener = socket.create_server(("127.0.0.1", 0), backlog=512)
    turn, count = threading.Lock(), iter(range(10**9))

    def serve(connection: socket.socket) -> None:
        with connection:
            while connection.recv(1 << 16):
                with turn:
                    told = reply(next(count))
                if told is None:
                    return
                connection.sendall(told)

    def accept() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            threading.Thread(target=serve, args=(connection,), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    try:
        yield Target(f"127.0.0.1:{listener.getsockname()[1]}", "any")
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()


def asked(target: Target, folder: Path) -> Offered:
    return offer(target, folder, rate=RATE, seconds=SECONDS, rows=1, binary=True)


needs_cores = pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="the load takes a core of its own")


@needs_cores
def test_a_server_that_stalls_delays_all_that_was_due_meanwhile(tmp_path: Path) -> None:
    """A client that waits for each answer would have asked once in that time."""

    def reply(number: int) -> bytes:
        if number == 30:
            time.sleep(STALL_S)
        return answer("200 OK")

    with server(reply) as target:
        found = asked(target, tmp_path)
    assert (found.failed, len(found.due)) == (0, round(RATE * SECONDS))
    assert found.percentile_ms(100) >= 1e3 * STALL_S
    assert (found.latency_s > STALL_S / 5).sum() > RATE * STALL_S / 3


@needs_cores
def test_what_is_refused_or_lost_is_late_without_end(tmp_path: Path) -> None:
    with server(lambda number: (answer("503 Busy"), None, answer("200 OK"))[number % 3]) as target:
        found = asked(target, tmp_path)
    count = len(found.due)
    assert count / 2 < found.failed < count
    assert {0, 200, 503} == set(found.status.tolist())
    assert found.percentile_ms(99) == -1.0
    assert found.share_in_time(60.0) == pytest.approx(1 - found.failed / count)


def test_a_stage_serves_in_turn() -> None:
    arrivals = np.cumsum(np.random.default_rng(3).exponential(1.0, 500))
    free, expected = 0.0, []
    for arrival in arrivals:
        free = max(free, arrival) + 0.8
        expected.append(free)
    assert served(arrivals, 0.8) == pytest.approx(expected)


def test_a_service_is_no_faster_than_its_slowest_stage_nor_its_deadline() -> None:
    fast = Service(0.001, 0.002).rate(4_000)
    assert 0.5 * 500 < fast < 500
    assert Service(0.001, 0.002, 0.0001, transferred=True).rate(4_000) < fast
    assert Service(0.001, SLO_S * 1.1).rate(4_000) < 0.01
