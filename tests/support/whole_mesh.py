"""The composed mesh over a data folder of its own, as a person has it: the command line, the REST client, kill -9."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

import pyarrow.parquet as pq

from recmesh.cli.mesh import stop
from recmesh.cli.mesh.home import Home
from recmesh.client.rest import Client
from recmesh.client.views import Event, Job, Role
from recmesh.runtime.errors import DeadlineExceeded, Unavailable
from recmesh.runtime.process import ProcessHandle, find
from tests.support.terminal import Terminal
from tests.support.waiting import until

T = TypeVar("T")
ROOT = Path(__file__).resolve().parent.parent.parent
FLIGHTS = ROOT / "examples" / "flights" / "flights.parquet"
COMMAND = (sys.executable, "-m", "recmesh.cli.main")
START_S = 300.0
"""Six services on a busy machine."""
STEP_S = 300.0
"""Anything that a job does next, on a busy machine."""


class WholeMesh:
    """`up` and `down` are the command's; everything may be killed between them."""

    def __init__(self, folder: Path, **env: str) -> None:
        self.folder = folder
        self.home = Home(folder / "mesh")
        self.env = env
        """Given to every command."""
        self._client: Client | None = None

    # -- the command line --------------------------------------------------------------------------------

    def run(self, *arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
        """`recmesh ...` in the folder; nothing of the caller's settings reaches it."""
        return subprocess.run(
            [*COMMAND, *arguments], cwd=self.folder, capture_output=True, text=True, check=False,
            timeout=START_S + 60, env=self._environment() | env,
        )

    def _environment(self) -> dict[str, str]:
        clean = {name: value for name, value in os.environ.items() if not name.startswith("RECMESH_")}
        return clean | {"RECMESH_HOME": str(self.home.root)} | self.env

    @contextlib.contextmanager
    def terminal(self, *arguments: str) -> Iterator[Terminal]:
        """`recmesh ...` in a pseudo-terminal; ended with the block."""
        made = Terminal([*COMMAND, *arguments], cwd=self.folder, env=self._environment())
        try:
            yield made
        finally:
            made.close()

    def ok(self, *arguments: str, **env: str) -> str:
        """What it prints; AssertionError with its complaint when it fails."""
        result = self.run(*arguments, **env)
        assert result.returncode == 0, f"recmesh {' '.join(arguments)}: {result.stderr or result.stdout}"
        return result.stdout

    def up(self) -> dict[str, Any]:
        """Everything is ready when it returns."""
        found: dict[str, Any] = json.loads(self.ok("up", "--json", "--timeout", str(START_S)))
        return found

    def down(self) -> None:
        """Nothing of it runs any more, whatever state it was in."""
        if self._client is not None:
            self._client.close()
            self._client = None
        stop.down(self.home)

    def write(self, name: str, text: str) -> str:
        """A file in the folder; its name."""
        (self.folder / name).write_text(text)
        return name

    # -- its processes -----------------------------------------------------------------------------------

    def component(self, name: str) -> ProcessHandle:
        """The living process of a service or server."""
        return next(item for item in find(self.home.components) if item.name == name and item.alive())

    def kill(self, *names: str) -> None:
        """kill -9 of components, all at once; returns when the supervisor has started each again and all are ready."""
        before = {name: self.component(name) for name in names}
        for handle in before.values():
            os.kill(handle.pid, signal.SIGKILL)
        until(lambda: all(self._came_back(name, handle) for name, handle in before.items()), timeout_s=START_S)
        until(self.is_ready, timeout_s=START_S, poll_s=0.1)

    def _came_back(self, name: str, before: ProcessHandle) -> bool:
        return any(
            item.name == name and item.pid != before.pid and item.alive() for item in find(self.home.components)
        )

    def is_ready(self) -> bool:
        """As the supervisor has written it down."""
        try:
            mesh = json.loads(self.home.mesh_file.read_bytes())
        except (OSError, ValueError):
            return False
        alive = {item.name: item.pid for item in find(self.home.components) if item.alive()}
        return all(
            item["state"] == "ready" and item["pid"] == alive.get(name) for name, item in mesh["components"].items()
        )

    def is_empty(self) -> bool:
        """Nothing of it runs: no supervisor, no component, no role of a job."""
        return stop.supervisor(self.home) is None and not stop.living(self.home)

    def roles(self) -> list[ProcessHandle]:
        """Living processes of jobs."""
        return [item for item in stop.living(self.home) if item.run_dir != self.home.components]

    def kill_everything(self) -> None:
        """kill -9 of the supervisor, then of all services, servers, roles of jobs, and those who watch over them."""
        keeper = stop.supervisor(self.home)
        assert keeper is not None, "there is no supervisor"
        _kill([keeper])

        def is_empty() -> bool:
            _kill(stop.living(self.home))      # again: jobmaster may have started a role while others were killed
            return self.is_empty()

        until(is_empty, timeout_s=START_S)

    # -- its jobs ----------------------------------------------------------------------------------------

    @property
    def client(self) -> Client:
        """Of the mesh that was last started."""
        if self._client is None:
            self._client = Client.find(home=self.home.root, env=self.env)
        return self._client

    def asked(self, question: Callable[[Client], T]) -> T:
        """The answer, however often gateway dies before it is given."""
        deadline = time.monotonic() + STEP_S
        while True:
            try:
                return question(self.client)
            except (Unavailable, DeadlineExceeded):
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.1)

    def submit(self, spec: Mapping[str, Any]) -> str:
        """The id of a new job."""
        return self.asked(lambda client: client.submit(spec, request_id=str(spec["name"]))).job_id

    def job(self, job_id: str) -> Job:
        """The job as it is now."""
        return self.asked(lambda client: client.job(job_id))

    def events(self, job_id: str, kind: str) -> list[Event]:
        """Facts of one type about a job, oldest first."""
        return [event for event in self.asked(lambda client: client.events(job_id)) if event.type == kind]

    def trains(self, job_id: str, *, share: float, snapshots: int = 1) -> Job:
        """Waits until so much is trained and so many snapshots are committed; the job, which is not over yet."""
        found: list[Job] = []

        def so_far() -> bool:
            found[:] = [self.job(job_id)]
            job = found[0]
            assert not job.over, f"the job ended too early to be disturbed: {job.phase} {job.reason} {job.message}"
            return job.phase == "Running" and job.progress.share >= share and job.snapshot >= snapshots

        until(so_far, timeout_s=STEP_S, poll_s=0.1)
        return found[0]

    def is_training(self, job_id: str) -> bool:
        """Something of it is left to do: what is killed now is killed during training."""
        job = self.job(job_id)
        return job.phase in ("Running", "Recovering", "Scaling") and job.progress.share < 1

    def ended(self, job_id: str) -> Job:
        """Waits for the end."""
        found: list[Job] = []

        def over() -> bool:
            found[:] = [self.job(job_id)]
            return found[0].over

        until(over, timeout_s=STEP_S, poll_s=0.2)
        return found[0]


def role(job: Job, name: str, index: int) -> Role:
    """The running process of a job at this place."""
    return next(item for item in job.roles if (item.role, item.index, item.state) == (name, index, "running"))


def flights_job(name: str, folder: Path, *, rows: float = 0.1, epochs: int = 2, step_s: float = 0.05) -> dict[str, Any]:
    """DCN-v2 on the first share `rows` of the flights, on two parameter servers and two workers.

    A step takes at least `step_s`: on the fastest machine there is time to kill something while it trains.
    """
    code = folder / "paced"
    code.mkdir(exist_ok=True)
    (code / "paced.py").write_text(PACED)
    return {
        "name": name,
        "model": {
            "entrypoint": "paced:main", "code": str(code),
            "params": {"embedding_dim": 8, "cross_layers": 1, "hidden": [32]},
        },
        "data": {
            "source": {"format": "parquet", "files": [str(FLIGHTS)], "rows": [0.0, rows]},
            "label": "late",
            "features": [
                {"name": "origin"}, {"name": "destination"}, {"name": "route"}, {"name": "hour"},
                {"name": "distance", "kind": "dense", "transform": "log1p"},
            ],
            "task_rows": 4096,
        },
        "training": {
            "batch_size": 256, "epochs": epochs, "shard_batches": 8, "optimizer": {"kind": "adagrad", "lr": 0.01},
        },
        "roles": {
            "ps": {"replicas": 2}, "worker": {"replicas": 2, "env": {"STEP_S": str(step_s)}},
        },
        "checkpoint": {"every_s": 3, "keep": 3},
    }


PACED = '''"""DCN-v2 of the zoo, at a steady pace."""

import os
import time

from recmesh.zoo.torch.torch_dcn_v2 import main as train

STEP_S = float(os.environ.get("STEP_S", "0"))
HURRY = os.environ.get("HURRY", "")


class Paced:
    """The session, with time to breathe before each step until there is the file HURRY."""

    def __init__(self, session):
        self._session = session

    def __getattr__(self, name):
        return getattr(self._session, name)

    def steps(self):
        for step in self._session.steps():
            if not os.path.exists(HURRY):
                time.sleep(STEP_S)
            yield step


def main(job):
    """Trains it."""
    job.session = Paced(job.session)
    train(job)
'''


def flights_samples(spec: Mapping[str, Any]) -> int:
    """How many samples the job must have trained when it has succeeded."""
    low, high = spec["data"]["source"]["rows"]
    count = pq.ParquetFile(FLIGHTS).metadata.num_rows
    return (int(count * high) - int(count * low)) * int(spec["training"]["epochs"])


def _kill(handles: Iterable[ProcessHandle]) -> None:
    for handle in handles:
        for pid in (handle.start.shim_pid, handle.pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
