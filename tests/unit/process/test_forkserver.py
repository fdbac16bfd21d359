"""A fork server that is killed and does not go."""

import subprocess
from pathlib import Path

from recmesh.runtime.process.forkserver import ForkServer


class Stuck:
    """In the kernel, which does not end it."""

    pid = 7

    def __init__(self) -> None:
        self.is_killed = self.is_gone = False
        self.polled = 0

    def kill(self) -> None:
        self.is_killed = True

    def wait(self, timeout: float) -> int:
        if not self.is_gone:
            raise subprocess.TimeoutExpired("forkserver", timeout)
        return -9

    def poll(self) -> int | None:
        self.polled += 1
        return -9 if self.is_gone else None


def test_who_starts_processes_does_not_wait_for_a_server_that_does_not_go_and_it_is_reaped_later(
    tmp_path: Path,
) -> None:
    server, stuck = ForkServer(["true"], tmp_path), Stuck()
    server._process = stuck     # type: ignore[assignment]  # what it needs
    server.close()
    assert stuck.is_killed and server.pid is None and len(server._ending) == 1
    assert not server.fits({})
    stuck.is_gone = True
    server.close()
    assert not server._ending
