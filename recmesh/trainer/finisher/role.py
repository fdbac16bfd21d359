"""The finisher's process: build, load the snapshot, evaluate, export, report."""

import logging
import tempfile
import threading
from collections.abc import Mapping
from pathlib import Path
from time import perf_counter

import fsspec
import psutil

from recmesh.formats import tables as files
from recmesh.formats.snapshot import open_part
from recmesh.runtime.errors import FailedPrecondition, InvalidArgument
from recmesh.trainer.build import Built, build
from recmesh.trainer.evaluation import evaluate, evaluation_batches, fetch_from
from recmesh.trainer.finisher.saved import load_saved
from recmesh.trainer.patience import NoLongerWanted, patiently
from recmesh.trainer.ports import Beat, BeatReply
from recmesh.trainer.role import Heart
from recmesh.trainer.session import Floats, FollowableModel, TableRows
from recmesh.trainer.start import Context
from recmesh.trainer.usercode import fetch

PUBLISH = "publish"
"""The task of one that exports the model of a job that goes on; else it finishes the job."""

_log = logging.getLogger(__name__)


def run(context: Context) -> None:
    """Finishes the job once; errors pass to the caller."""
    spec, assignment = context.spec, context.assignment
    if not assignment.parts:
        raise FailedPrecondition("the assignment names no snapshot to finish from")
    gone = threading.Event()
    if context.stopped.is_set():
        return
    context.on_stop.append(gone.set)
    heart = _beating(context, gone)
    try:
        fetch(spec.model, storage_uri=assignment.storage_uri, work_dir=context.identity.work_dir)
        context.in_user_code = True
        built = build(spec, job_id=context.identity.job_id)
        start = perf_counter()
        tables, dense = load_saved(assignment.parts, built.declared)
        rows = sum(len(table.ids) for table in tables.values())
        _log.info("loaded %d rows in %.1f s", rows, perf_counter() - start)
        metrics: dict[str, float] = {}
        if assignment.task == PUBLISH:
            _publish(context, built, tables, dense)
            _report(context, metrics, built.model.framework, gone)
            return
        if spec.evaluation is not None:
            source = fetch_from(tables, dense, built.declared)
            batches = evaluation_batches(spec)
            metrics = evaluate(
                built.model, batches, built.declared, source, labels=built.job.labels, stop=gone.is_set
            )
            _log.info("evaluation: %s", metrics)
        if gone.is_set():
            raise NoLongerWanted("finisher")
        if assignment.export_uri:
            with tempfile.TemporaryDirectory(dir=_scratch(context), prefix="export-") as scratch:
                built.model.export(Path(scratch), tables=tables, dense=dense, metrics=metrics)
                publish(Path(scratch), assignment.export_uri)
            _log.info("exported to %s", assignment.export_uri)
        _report(context, metrics, built.model.framework, gone)
    finally:
        heart.stop()


def _publish(
    context: Context, built: Built, tables: Mapping[str, TableRows], dense: Mapping[str, Floats]
) -> None:
    """The model of a job that goes on: its tables beside it, and where the snapshots are that follow."""
    assignment, job_id, model = context.assignment, context.identity.job_id, built.model
    if not isinstance(model, FollowableModel):
        raise InvalidArgument(f"a model of {model.framework} by {type(model).__name__} can't be served while it trains")
    document = open_part(assignment.parts[0]).document
    with tempfile.TemporaryDirectory(dir=_scratch(context), prefix="export-") as scratch:
        model.export_apart(
            Path(scratch), job_id=job_id, checkpoints=f"{assignment.storage_uri.rstrip('/')}/checkpoints/{job_id}",
            tables=tables, dense=dense, metrics={},
        )
        files.write(
            Path(scratch) / "tables", job_id=job_id, gen=document.gen, snapshot=document.snapshot,
            tables={name: (rows.ids, rows.values) for name, rows in tables.items()}, dense=dense,
        )
        publish(Path(scratch), assignment.export_uri)
    _log.info("published to %s: it follows the job's snapshots from %d on", assignment.export_uri, document.snapshot)


def publish(folder: Path, uri: str) -> None:
    """Copies the exported folder to where models are served from; `model.json` last: it means complete."""
    fs, root = fsspec.core.url_to_fs(uri)
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    files.sort(key=lambda path: path.name == "model.json")
    for path in files:
        target = f"{root.rstrip('/')}/{path.relative_to(folder).as_posix()}"
        fs.makedirs(target.rsplit("/", 1)[0], exist_ok=True)
        fs.put_file(str(path), target)


def _report(context: Context, metrics: Mapping[str, float], framework: str, gone: threading.Event) -> None:
    patiently(
        lambda: context.runs.report(
            metrics,
            snapshot=context.assignment.snapshot,
            model_uri=context.assignment.export_uri,
            framework=framework,
            final=True,
        ),
        what="report",
        gone=gone,
    )


def _beating(context: Context, gone: threading.Event) -> Heart:
    process = psutil.Process()

    def beat() -> Beat:
        cpu = process.cpu_times()
        return Beat(
            gen=context.assignment.record.gen,
            memory_bytes=process.memory_info().rss,
            cpu_s=cpu.user + cpu.system,
            draining=gone.is_set(),
        )

    def heard(reply: BeatReply) -> None:
        if reply.directive == "exit":
            gone.set()

    heart = Heart(context.runs, every_s=context.assignment.heartbeat_s, beat=beat, heard=heard)
    heart.start()
    return heart


def _scratch(context: Context) -> Path:
    context.identity.work_dir.mkdir(parents=True, exist_ok=True)
    return context.identity.work_dir
