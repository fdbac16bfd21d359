"""A service as its own process, as the supervisor starts it."""

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Self

from tests.support.waiting import until

START_TIMEOUT_S = 90.0


class ServiceProcess:
    """`python -m services.<name>`; keeps its folder and environment over kills and restarts."""

    def __init__(self, name: str, folder: Path, *, env: Mapping[str, str], program: Sequence[str] = ()) -> None:
        """program: arguments of Python in place of the service's own module."""
        self.name, self.folder = name, folder
        self.program = tuple(program)
        self.log_path = folder / f"{name}.log"
        self._ready = folder / f"{name}.ready"
        self._env = dict(env)
        self._process: subprocess.Popen[bytes] | None = None

    def as_program(self, *program: str) -> "ServiceProcess":
        """Another program in its place, with its folder and environment; not started."""
        return ServiceProcess(self.name, self.folder, env=self._env, program=program)

    def start(self) -> Self:
        """Start, and return when it says that it is ready."""
        self._ready.unlink(missing_ok=True)
        env = {name: value for name, value in os.environ.items() if not name.startswith("RECMESH_")}
        env |= {
            "RECMESH_SERVICE": self.name, "RECMESH_DATA_DIR": str(self.folder),
            "RECMESH_READY_FILE": str(self._ready), "OMP_NUM_THREADS": "1", **self._env,
        }  # fmt: skip
        with self.log_path.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, *(self.program or ("-m", f"services.{self.name}"))], env=env, stdout=log, stderr=log,
                cwd=Path(__file__).parents[2], start_new_session=True,
            )  # fmt: skip
        until(lambda: self._ready.exists() or self.exit_code() is not None, timeout_s=START_TIMEOUT_S)
        if not self._ready.exists():
            raise RuntimeError(
                f"{self.name} ended with {self.exit_code()}:\n{self.log_path.read_text()[-4000:]}"
            )
        return self

    def address(self, component: str = "rpc") -> str:
        """Where a component listens."""
        found: str = json.loads(self._ready.read_text())["addresses"][component]
        return found

    def exit_code(self) -> int | None:
        """None while it runs."""
        return self._process.poll() if self._process else None

    @property
    def pid(self) -> int:
        """Of the running process."""
        assert self._process is not None
        return self._process.pid

    def kill(self) -> None:
        """kill -9, and wait until it is gone."""
        self._end(signal.SIGKILL)

    def stop(self) -> int | None:
        """SIGTERM; the exit code."""
        return self._end(signal.SIGTERM)

    def _end(self, signum: int) -> int | None:
        if self._process is None:
            return None
        process, self._process = self._process, None
        if process.poll() is None:
            process.send_signal(signum)
        try:
            return process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(30)
            raise


@contextlib.contextmanager
def service(name: str, folder: Path, *, env: Mapping[str, str]) -> Iterator[ServiceProcess]:
    """A running service; killed at the end of the block."""
    folder.mkdir(parents=True, exist_ok=True)
    process = ServiceProcess(name, folder, env=env)
    try:
        yield process.start()
    finally:
        process.kill()
