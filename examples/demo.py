"""`make demo`: a mesh on this machine trains a model on real data, survives a failure, and serves the result.

KEEP=1 leaves the mesh up. The mesh lives in .recmesh/demo, apart from that of `recmesh up`.
"""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from examples.flights.logistic import train as train_logistic
from recmesh.client.jobfile import load_job
from recmesh.client.rest import Client
from recmesh.client.rows import predictions, request_for
from recmesh.client.views import Event, Job
from recmesh.spec.dataset import DatasetSpec

ROOT = Path(__file__).resolve().parent.parent
JOB_FILE = ROOT / "examples" / "flights" / "job.yaml"
HOME = ROOT / ".recmesh" / "demo"
GROW_AT, SCALE_AT, KILL_AT = 0.10, 0.25, 0.50
POLL_S, PATIENCE_S = 0.5, 240.0
SHOWN = {
    "job.role_started", "job.role_exited", "job.scaled", "job.slots_moved", "job.snapshot_committed",
    "job.rolled_back",
}


def say(text: str = "") -> None:
    """One line, at once."""
    print(text, flush=True)


def title(text: str) -> None:
    """A heading of the story."""
    say(f"\n\033[1m{text}\033[0m" if sys.stdout.isatty() else f"\n== {text}")


@contextlib.contextmanager
def mesh(*, keep: bool) -> Iterator[Client]:
    """A mesh that is up; taken down at the end unless kept, and always when the demo fails."""
    command = [sys.executable, "-m", "recmesh.cli.main"]
    environment = {**os.environ, "RECMESH_HOME": str(HOME)}
    subprocess.run([*command, "up"], env=environment, cwd=ROOT, check=True)
    done = False
    try:
        with Client.find(home=HOME) as client:
            yield client
        done = True
    finally:
        if not (keep and done):
            say()
            subprocess.run([*command, "down"], env=environment, cwd=ROOT, check=False)


def progress_line(job: Job) -> str:
    """Where the job is: a bar, speed, loss, and the share of a step that each part takes."""
    done = job.progress.share
    bar = ("█" * round(20 * done)).ljust(20, "·")
    loss, auc = (job.metrics.get(name) for name in ("loss", "auc"))
    metrics = "".join(f"  {name} {value:.4f}" for name, value in (("loss", loss), ("auc", auc)) if value)
    workers = sum(role.role == "worker" and role.state == "running" for role in job.roles)
    speed = f"{job.progress.samples_per_s:>7,.0f} samples/s"
    return f"  {bar} {done:>4.0%}  {speed}{metrics}  workers {workers}  {job.phase}"


def event_line(event: Event) -> str:
    """What happened, in a few words."""
    data = event.data
    who = f"{data['role']}-{data['index']}" if "index" in data else str(data.get("role", ""))
    samples = f"{data.get('samples', 0):,} samples"
    details = {
        "job.role_started": f"{who} started (process {data.get('handle', '')})",
        "job.role_exited": f"{who} ended: {data.get('reason', '')}",
        "job.scaled": f"{who}: {data.get('from_replicas')} → {data.get('to_replicas')} replicas",
        "job.slots_moved": f"{data.get('slots', 0):,} slots with {data.get('rows', 0):,} rows moved from "
        f"ps-{data.get('source')} to ps-{data.get('target')}; they paused for {data.get('pause_ms') or 0:.0f} ms",
        "job.snapshot_committed": f"snapshot {data.get('snapshot')} committed, {samples} in it",
        "job.rolled_back": f"rolled back to snapshot {data.get('snapshot')}",
    }
    return f"    · {details.get(event.type, event.type)}"


class Story:
    """Follows the job, prints what is new, and interferes once at each mark."""

    def __init__(self, client: Client, job_id: str) -> None:
        self.client = client
        self.job_id = job_id
        self.grown = self.scaled = self.killed = False
        self._seen: set[str] = set()
        self._last_line, self._said_at = "", 0.0

    def follow(self) -> Job:
        """Until the job is over; TimeoutError when it takes unreasonably long."""
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            job = self.client.job(self.job_id)
            self._tell(job)
            if job.over:
                return job
            if job.progress.share >= GROW_AT and not self.grown:
                self._grow()
            if job.progress.share >= SCALE_AT and not self.scaled:
                self._scale()
            if job.progress.share >= KILL_AT and not self.killed:
                self._kill(job)
            time.sleep(POLL_S)
        raise TimeoutError(f"the job is not over after {PATIENCE_S:.0f} s")

    def _tell(self, job: Job) -> None:
        fresh = [event for event in self.client.events(self.job_id) if event.id not in self._seen]
        self._seen.update(event.id for event in fresh)
        for event in fresh:
            if event.type in SHOWN:
                say(event_line(event))
        requeued = [int(event.data.get("positions", 0)) for event in fresh if event.type == "lease.requeued"]
        if requeued:
            say(f"    · {sum(requeued):,} samples in {len(requeued)} lease(s) queued again")
        line = progress_line(job)
        if line != self._last_line and time.monotonic() - self._said_at >= 2.0:
            self._last_line, self._said_at = line, time.monotonic()
            say(line)

    def _grow(self) -> None:
        say("  → a third parameter server: recmesh scale late-flights ps=3")
        self.client.scale(self.job_id, "ps", 3)
        self.grown = True

    def _scale(self) -> None:
        say("  → a third worker: recmesh scale late-flights worker=3")
        self.client.scale(self.job_id, "worker", 3)
        self.scaled = True

    def _kill(self, job: Job) -> None:
        victims = [r for r in job.roles if r.role == "worker" and r.state == "running" and r.handle.isdigit()]
        if victims:
            say(f"  → kill -9 {victims[0].handle} (worker-{victims[0].index}), in the middle of its batch")
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(victims[0].handle), signal.SIGKILL)
            self.killed = True


def flights(count: int) -> list[dict[str, Any]]:
    """The last flights of the table: none of them was trained on."""
    table = pq.read_table(ROOT / "examples" / "flights" / "flights.parquet")
    rows: list[dict[str, Any]] = table.slice(table.num_rows - count * 1000).to_pylist()[::1000]
    return rows


def serve(client: Client, job: Job, spec: dict[str, Any]) -> None:
    """A few predictions through the Open Inference Protocol."""
    title(f"Predictions of {job.model_name} version {job.model_version}")
    rows = flights(4)
    data = DatasetSpec.parse(spec["data"])
    names = {column for feature in data.features for column in feature.source_columns}
    examples = [{name: value for name, value in row.items() if name in names} for row in rows]
    request = request_for(client.model_metadata(job.model_name), examples, data=data)
    answer = client.infer(job.model_name, request)
    for row, prediction in zip(rows, predictions(answer), strict=True):
        truth = "late" if row["late"] else "on time"
        flight = f"{row['date']:%d %b %H:%M}  {row['origin']} → {row['destination']}"
        say(f"  {flight}   P(late) {prediction}   was {truth}")


def main() -> int:
    """The whole story; 0 when all of it happened."""
    keep = os.environ.get("KEEP", "") not in ("", "0")
    began = time.monotonic()
    title("The mesh")
    with mesh(keep=keep) as client:
        title("Training DCN-v2 on 480,000 flights: 2 parameter servers, 2 workers")
        spec = load_job(JOB_FILE)
        story = Story(client, client.submit(spec).job_id)
        job = story.follow()
        if job.phase != "Succeeded":
            say(f"\nThe job ended as {job.phase}: {job.reason} {job.message}")
            return 1
        total = job.progress.total
        requeues = job.progress.requeues
        say(f"  trained {job.progress.samples:,} of {total:,} samples; {requeues} lease(s) queued again")

        title("Evaluation on the 120,000 flights that came after")
        logistic = train_logistic(JOB_FILE)
        say(f"  {'':<22} AUC     log loss")
        say(f"  {'DCN-v2':<22} {job.metrics['eval_auc']:.4f}  {job.metrics['eval_loss']:.4f}")
        say(f"  {'logistic regression':<22} {logistic.auc:.4f}  {logistic.logloss:.4f}")
        serve(client, job, spec)
        title("Dashboards")
        pages = {service["service"]: service["dashboard"] for service in client.mesh()["services"]}
        for name, page in sorted((pages | {"gateway": client.url}).items()):
            say(f"  {name:<11} {page}")
        say(f"\nAll of it took {time.monotonic() - began:.0f} s." + (" The mesh stays up." if keep else ""))
    return 0 if story.scaled and story.killed and job.progress.samples == total else 1


if __name__ == "__main__":
    sys.exit(main())
