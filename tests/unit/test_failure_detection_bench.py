"""What `python -m bench failure_detection` kills."""

import subprocess
import sys
import time
from collections.abc import Iterator

import psutil
import pytest

from bench.failure_detection import _process_of
from recmesh.client.views import Role


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    yield process
    process.kill()
    process.wait(timeout=60)


def test_a_pid_that_is_another_process_by_now_is_not_killed(sleeper: subprocess.Popen[bytes]) -> None:
    of_before = Role(role="worker", handle=str(sleeper.pid), since=time.time() - 60.0)
    with pytest.raises(RuntimeError, match="another"):
        _process_of(of_before)
    found = _process_of(Role(role="worker", handle=str(sleeper.pid), since=time.time() + 1.0))
    found.kill()
    assert sleeper.wait(timeout=60) == -9
    with pytest.raises(psutil.NoSuchProcess):
        found.kill()
