"""A whole run: a job is submitted, disturbed, awaited, and judged against the truth."""

import asyncio
import math
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from recmesh.chaos import counting, dataset, tasklog
from recmesh.chaos.harness import FAST_S, STEADY_S, Harness, Scene, Tell, patiently
from recmesh.chaos.report import Report
from recmesh.chaos.schedule import schedule
from recmesh.chaos.truth import Truth, first_rows
from recmesh.chaos.verify import Judgement, judge_folder
from recmesh.chaos.victims import Victims
from recmesh.client.rest import Client
from recmesh.client.views import Checkpoint, Job
from recmesh.runtime.errors import DeadlineExceeded, MeshError, NotFound

ROWS = 8_192
"""Of the data; the job goes through them in as many epochs as the kills need."""
EXPECTED_S = 3.0
"""Of training between two strikes; while the mesh recovers nothing is trained, and at last it goes more slowly."""
MOST_POSITIONS = 1 << 24
"""Above it float32 does not count any more."""
END_S = 900.0
_POLL_S = 0.2


@dataclass(frozen=True, slots=True)
class Mesh:
    """A running mesh whose processes may be harmed."""

    client: Client
    folder: Path
    """Of the run: data, pace, and the gates, which are armed in `folder / "gates"`."""
    run_dir: Path
    """Records of the mesh's processes."""
    ports: dict[str, int]
    nats_url: str
    nats_token: str
    is_ready: Callable[[str], bool]
    done_to_pushes: Counter[str]
    """By the proxy, until now."""

    @property
    def gates(self) -> Path:
        """Where gates are armed: the processes' RECMESH_CHAOS."""
        return self.folder / "gates"


def chaos_on_counts(mesh: Mesh, *, kills: int, seed: int, tell: Tell) -> Report:
    """The counting job, disturbed; every committed snapshot that is still there is judged."""
    began = time.monotonic()
    strikes = schedule(kills, seed=seed)
    files = dataset.write(mesh.folder / "rows", rows=ROWS, seed=seed)
    pace = mesh.folder / "pace"
    pace.write_text(str(STEADY_S if strikes else FAST_S))
    samples_per_s = 2 * 32 / STEADY_S
    epochs = max(3, math.ceil(EXPECTED_S * len(strikes) * samples_per_s / ROWS))
    epochs = min(epochs, MOST_POSITIONS // ROWS)
    name = f"counting-{seed}"
    spec = counting.job(dataset.specification(files), name=name, epochs=epochs, seed=seed, pace=pace)
    job_id = mesh.client.submit(spec).job_id
    tell(f"job {name} ({job_id}): {ROWS} rows, {epochs} epochs; {len(strikes)} strikes with seed {seed}")
    report = Report(name, seed)
    try:
        _disturb(mesh, job_id, report, kills=kills, seed=seed, pace=pace, tell=tell)
        job = _ended(mesh.client, job_id, tell)
        _note(report, job)
        if job.phase == "Succeeded":
            _judge(mesh, job, files, report, tell)
    except MeshError as error:
        report.problems.append(str(error))
        _note(report, patiently(lambda: mesh.client.job(job_id)))
    report.pushes = dict(mesh.done_to_pushes)
    report.seconds = time.monotonic() - began
    return report


def _disturb(
    mesh: Mesh, job_id: str, report: Report, *, kills: int, seed: int, pace: Path | None, tell: Tell
) -> None:
    mesh.gates.mkdir(exist_ok=True)
    victims = Victims(mesh.run_dir, job_id, gates=mesh.gates, ports=mesh.ports)
    scene = Scene(mesh.client, job_id, victims, pace, mesh.is_ready)
    Harness(scene, report, tell=tell).carry_out(schedule(kills, seed=seed))


def _ended(client: Client, job_id: str, tell: Tell) -> Job:
    deadline, told = time.monotonic() + END_S, 0.0
    while True:
        job = patiently(lambda: client.job(job_id))
        if job.over:
            return job
        now = time.monotonic()
        if now > deadline:
            raise DeadlineExceeded(f"not ended {END_S:g} s after the last strike: {job.phase} {job.message}")
        if now - told > 5.0:
            told = now
            tell(f"{job.phase}, {job.progress.share:.0%} trained, generation {job.gen}")
        time.sleep(_POLL_S)


def _note(report: Report, job: Job) -> None:
    report.phase, report.reason = job.phase, job.reason
    report.samples, report.total = job.progress.samples, job.progress.total
    report.rollbacks, report.requeues = max(0, job.gen - 1), job.progress.requeues
    report.quarantined = job.progress.quarantined
    if job.phase != "Succeeded":
        report.problems.append(f"the job ended as {job.phase or 'nothing'}: {job.reason} {job.message}".strip())
    elif job.progress.samples != job.progress.total:
        report.problems.append(f"the job says that it trained {job.progress.samples} of {job.progress.total} samples")


def _judge(mesh: Mesh, job: Job, files: list[Path], report: Report, tell: Tell) -> None:
    tasks = asyncio.run(tasklog.read(mesh.nats_url, mesh.nats_token, job.job_id))
    truth = Truth.of(files, tasklog.rows_by_position(tasks, first_rows=first_rows(files)))
    for checkpoint in _committed(mesh.client, job):
        closing = checkpoint.snapshot == job.snapshot
        found = judge_folder(Path(checkpoint.uri), truth, snapshot=checkpoint.snapshot, closing=closing)
        report.judgements.append(found)
        if not found.is_right:
            tell(f"snapshot {found.snapshot} is wrong: " + "; ".join(found.named))
    if not any(judgement.snapshot == job.snapshot for judgement in report.judgements):
        report.problems.append(f"the closing snapshot {job.snapshot} is not committed at ckptcache")


def _committed(client: Client, job: Job, *, within_s: float = 60.0) -> list[Checkpoint]:
    """Oldest first, once the closing one is among them: ckptcache may have to hear of it again."""
    deadline = time.monotonic() + within_s
    while True:
        found = [item for item in patiently(lambda: client.checkpoints(job.job_id)) if item.state == "committed"]
        if any(item.snapshot == job.snapshot for item in found) or time.monotonic() > deadline:
            if not found:
                raise NotFound(f"job {job.job_id} has no committed snapshot")
            return sorted(found, key=lambda item: item.snapshot)
        time.sleep(_POLL_S)


def worst(report: Report) -> Judgement | None:
    """The snapshot with the most differences, if any is wrong."""
    wrong = [judgement for judgement in report.judgements if not judgement.is_right]
    return max(wrong, key=lambda j: j.lost + j.doubled + j.faults, default=None)
