"""What the peers of the dispatch benchmark have in common: some threads ask one server as often as it answers."""

import socket
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import psutil

PATIENCE_S = 120.0


def measured(asks: Sequence[Callable[[], float]], *, server: int, window_s: float) -> dict[str, Any]:
    """Each ask is one client's, called again and again: it gets one lease and tells the seconds until it was there.

    Leases, wall seconds, the latencies' quantiles in ms, CPU seconds of the server's process and of this one.
    """
    latency_s: list[float] = []
    failed: list[Exception] = []
    watched = {"server": psutil.Process(server), "clients": psutil.Process()}
    before = {name: sum(process.cpu_times()[:2]) for name, process in watched.items()}
    began = time.perf_counter()

    def go_on(ask: Callable[[], float]) -> None:
        try:
            while time.perf_counter() < began + window_s:
                latency_s.append(ask())
        except Exception as error:
            failed.append(error)

    threads = [threading.Thread(target=go_on, args=(ask,)) for ask in asks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    wall_s = time.perf_counter() - began
    if failed:
        raise failed[0]
    latency_s.sort()
    return {
        "clients": len(asks), "leases": len(latency_s), "wall_s": wall_s,
        "p50_ms": latency_s[len(latency_s) // 2] * 1e3, "p99_ms": latency_s[len(latency_s) * 99 // 100] * 1e3,
        "cpu_s": {name: sum(process.cpu_times()[:2]) - before[name] for name, process in watched.items()},
    }


def free_port() -> int:
    """One that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait_for(server: "subprocess.Popen[bytes]", port: int) -> None:
    """Returns once the server listens; RuntimeError when it ended, TimeoutError when it takes too long."""
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        if server.poll() is not None:
            raise RuntimeError(f"the peer's server ended with {server.returncode}")
        with socket.socket() as probe:
            probe.settimeout(1.0)
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.1)
    raise TimeoutError(f"the peer's server does not listen after {PATIENCE_S:g} s")
