"""A whole run: a job is submitted, disturbed, awaited, and judged against the truth."""

import asyncio
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from recmesh.chaos import counting, dataset, tasklog
from recmesh.chaos.course import setbacks, standing
from recmesh.chaos.harness import FAST_S, STEADY_S, Harness, Scene, Tell, patiently
from recmesh.chaos.proxy import Proxy
from recmesh.chaos.report import Report
from recmesh.chaos.rival import Rival
from recmesh.chaos.schedule import Strike
from recmesh.chaos.truth import Truth, first_rows
from recmesh.chaos.verify import judge_folder, judge_ledgers
from recmesh.chaos.victims import Victims
from recmesh.client.rest import Client
from recmesh.client.views import Checkpoint, Job
from recmesh.runtime.errors import DeadlineExceeded, FailedPrecondition, MeshError, NotFound

ROWS = 4_096
"""Of the data; the job goes through them in as many epochs as the kills need."""
EXPECTED_S = 1.5
"""Of training between two strikes; while the mesh recovers nothing is trained, and at last it goes more slowly."""
EXPECTED_RARE_S = 3.0
"""For a strike of several steps."""
MOST_POSITIONS = 1 << 24
"""Above it float32 does not count any more."""
END_S = 900.0
MOST_SD = 2.0
"""How far the loss of a disturbed run may be from undisturbed ones, in their standard deviations."""
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
    proxy: Proxy
    """Between workers and parameter servers."""
    rival: Rival
    valkey: Path
    """Valkey's data folder."""

    @property
    def gates(self) -> Path:
        """Where gates are armed: the processes' RECMESH_CHAOS."""
        return self.folder / "gates"


def chaos_on_counts(
    mesh: Mesh, strikes: Sequence[Strike], *, seed: int, tell: Tell, batches_per_step: int = 0
) -> Report:
    """The counting job, disturbed; every committed snapshot that is still there is judged.

    `batches_per_step`: of synchronous mode, a power of two; 0: batches are applied as they come.
    """
    began = time.monotonic()
    files = dataset.write(mesh.folder / "rows", rows=ROWS, seed=seed)
    pace = mesh.folder / "pace"
    pace.write_text(str(STEADY_S if strikes else FAST_S))
    samples_per_s = 2 * 32 / STEADY_S
    expected_s = sum(EXPECTED_RARE_S if strike.is_rare else EXPECTED_S for strike in strikes)
    epochs = max(3, math.ceil(expected_s * samples_per_s / ROWS))
    epochs = min(epochs, MOST_POSITIONS // ROWS)
    name = f"counting-{seed}"
    spec = counting.job(
        dataset.specification(files), name=name, epochs=epochs, seed=seed, pace=pace, batches_per_step=batches_per_step
    )
    job_id = mesh.client.submit(spec).job_id
    tell(f"job {name} ({job_id}): {ROWS} rows, {epochs} epochs; {len(strikes)} strikes with seed {seed}")
    report = Report(name, seed)
    try:
        _disturb(mesh, job_id, report, strikes, pace=pace, tell=tell)
        job = _ended(mesh.client, job_id, tell)
        _note(report, job)
        if job.phase == "Succeeded":
            _judge(mesh, job, files, report, tell)
    except MeshError as error:
        report.problems.append(str(error))
        _note(report, patiently(lambda: mesh.client.job(job_id)))
    report.pushes = dict(mesh.proxy.done)
    report.seconds = time.monotonic() - began
    return report


def chaos_on_job(
    mesh: Mesh, spec: Mapping[str, Any], strikes: Sequence[Strike], *, seed: int, undisturbed: int, tell: Tell
) -> Report:
    """Any job, disturbed: its ledgers must end full, and its loss where those of undisturbed runs end.

    `undisturbed` runs with other seeds come first; without two, or without a loss, nothing is said of it.
    """
    began = time.monotonic()
    own_seed = int(spec.get("training", {}).get("seed", 0))
    report = Report(str(spec["name"]), seed)
    try:
        for k in range(undisturbed):
            job_id = mesh.client.submit(_variant(spec, f"calm-{k}", own_seed + k + 1)).job_id
            job = _ended(mesh.client, job_id, tell)
            if job.phase != "Succeeded":
                raise FailedPrecondition(f"undisturbed it ends as {job.phase}: {job.reason} {job.message}")
            report.undisturbed_losses.append(_loss(job))
            tell(f"undisturbed run {k + 1} of {undisturbed}: loss {report.undisturbed_losses[-1]:.6f}")
        job_id = mesh.client.submit(_variant(spec, "disturbed", own_seed)).job_id
        _disturb(mesh, job_id, report, strikes, pace=None, tell=tell)
        job = _ended(mesh.client, job_id, tell)
        _note(report, job)
        report.loss = _loss(job)
        if job.phase == "Succeeded":
            kept = _committed(mesh.client, job)
            for item in kept:
                closing, total = item.snapshot == job.snapshot, job.progress.total
                report.judgements.append(
                    judge_ledgers(Path(item.uri), total, snapshot=item.snapshot, closing=closing)
                )
            report.problems += _wrong_course(job, kept)
    except MeshError as error:
        report.problems.append(str(error))
    delta = report.loss_delta_sd
    if delta is not None and not delta <= MOST_SD:
        report.problems.append(f"the loss is {delta:.1f} standard deviations from undisturbed runs")
    report.pushes = dict(mesh.proxy.done)
    report.seconds = time.monotonic() - began
    return report


def _variant(spec: Mapping[str, Any], suffix: str, seed: int) -> dict[str, Any]:
    """Of another name and seed, not registered, and not given up for its deaths."""
    training = dict(spec.get("training", {})) | {"seed": seed}
    return dict(spec) | {
        "name": f"{spec['name']}-{suffix}"[:63], "training": training, "export": None, "backoff_limit": 100_000,
    }


def _loss(job: Job) -> float:
    return job.metrics.get("eval_loss", job.metrics.get("loss", math.nan))


def _disturb(
    mesh: Mesh, job_id: str, report: Report, strikes: Sequence[Strike], *, pace: Path | None, tell: Tell
) -> None:
    mesh.proxy.rouse()
    victims = Victims(mesh.run_dir, job_id, gates=mesh.gates, ports=mesh.ports)
    scene = Scene(mesh.client, job_id, victims, pace, mesh.is_ready, mesh.rival, mesh.valkey)
    try:
        Harness(scene, report, tell=tell).carry_out(strikes)
    finally:
        mesh.proxy.calm()


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
    kept = _committed(mesh.client, job)
    for checkpoint in kept:
        closing = checkpoint.snapshot == job.snapshot
        found = judge_folder(Path(checkpoint.uri), truth, snapshot=checkpoint.snapshot, closing=closing)
        report.judgements.append(found)
        if not found.is_right:
            tell(f"snapshot {found.snapshot} is wrong: " + "; ".join(found.named))
    report.problems += _wrong_course(job, kept)


def _wrong_course(job: Job, kept: Sequence[Checkpoint]) -> list[str]:
    """What is wrong with the snapshots one after the other; the closing one must be the last of them."""
    course = [standing(Path(item.uri)) for item in kept]
    wrong = setbacks([one for one in course if one is not None])
    if all(item.snapshot != job.snapshot for item in kept):
        wrong.append(f"the closing snapshot {job.snapshot} is not committed at ckptcache")
    return wrong


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
