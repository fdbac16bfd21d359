"""The evaluator's process: every `evaluation.every_s` a pull-only pass over the evaluation rows.

The servers go on training meanwhile, so the figure is of a model that moves by a few batches.
"""

import logging
import threading
from collections.abc import Mapping
from time import monotonic

import numpy as np
import psutil

from recmesh.runtime.errors import FailedPrecondition
from recmesh.trainer.build import Built, build
from recmesh.trainer.evaluation import evaluate, evaluation_batches
from recmesh.trainer.layout import Placement, Prepared, arenas
from recmesh.trainer.patience import NoLongerWanted, patiently
from recmesh.trainer.ports import Beat, BeatReply, Pulled, RunRecord
from recmesh.trainer.role import Heart
from recmesh.trainer.session import Floats
from recmesh.trainer.start import Context
from recmesh.trainer.usercode import fetch
from recmesh.trainer.worker.fleet import Fleet, StaleGeneration, WrongMap
from recmesh.trainer.worker.pulling import fill, pull_from

_log = logging.getLogger(__name__)
_ENDED = ("finishing", "closed")


class LiveRows:
    """Rows and dense blocks of one generation's servers; ids never trained read as zero."""

    def __init__(self, context: Context, built: Built, record: RunRecord, gone: threading.Event) -> None:
        self._built, self._layout, self._gone = built, built.layout, gone
        self._fleet = Fleet(context.server, record)

    @property
    def placement(self) -> Placement:
        """Of the run record."""
        return self._fleet.placement

    def fetch(self, prepared: Prepared) -> tuple[Mapping[str, Floats], Mapping[str, Floats]]:
        """See evaluation.Fetch."""
        declared, placement = self._built.declared, prepared.placement
        pulled: dict[int, Pulled] = self._fleet.each(
            lambda ps, server: pull_from(ps, server, prepared, declared, placement, absent_as_zero=True),
            placement=placement,
            what="pull",
            gone=self._gone,
        )
        _, rows = arenas(declared, prepared)
        flat = np.empty(self._layout.size, np.float32)
        for k, ps in enumerate(placement.servers):
            fill(k, pulled[ps], prepared, declared, rows)
            self._layout.put(flat, pulled[ps].dense)
        return rows, self._layout.views(flat)

    def close(self) -> None:
        """Ends the calling threads."""
        self._fleet.close()


def run(context: Context) -> None:
    """Evaluates until the job ends or this process shall stop."""
    spec = context.spec
    if spec.evaluation is None or spec.evaluation.every_s is None:
        raise FailedPrecondition("the job asks for no evaluation while training (evaluation.every_s)")
    gone = context.stopped
    gen = 0
    samples = 0

    def heard(reply: BeatReply) -> None:
        if reply.directive != "continue" or reply.phase in _ENDED:
            gone.set()

    def beat() -> Beat:
        process = psutil.Process()
        cpu = process.cpu_times()
        return Beat(
            gen=gen,
            samples=samples,
            memory_bytes=process.memory_info().rss,
            cpu_s=cpu.user + cpu.system,
            draining=gone.is_set(),
        )

    heart = Heart(context.runs, every_s=context.assignment.heartbeat_s, beat=beat, heard=heard)
    heart.start()
    try:
        fetch(spec.model, storage_uri=context.assignment.storage_uri, work_dir=context.identity.work_dir)
        context.in_user_code = True
        built = build(spec, job_id=context.identity.job_id)
        due = monotonic() + spec.evaluation.every_s
        while not gone.wait(max(0.0, due - monotonic())):
            due = monotonic() + spec.evaluation.every_s
            record = patiently(context.runs.record, what="run record", gone=gone)
            if record.phase != "open":
                continue
            gen = record.gen
            metrics = _evaluate(context, built, record, gone)
            if metrics and not gone.is_set():
                samples += int(metrics.get("eval_rows", 0))
                patiently(lambda: context.runs.report(metrics), what="report", gone=gone)  # noqa: B023  # at once
                _log.info("evaluation: %s", metrics)
    except NoLongerWanted:
        pass
    except Exception as error:
        if not gone.is_set():
            raise
        # Its servers end when it is asked to: what an evaluation in its middle makes of that is no failure.
        _log.info("the evaluation under way is left: %s", error)
    finally:
        heart.stop()


def _evaluate(
    context: Context, built: Built, record: RunRecord, gone: threading.Event
) -> dict[str, float]:
    """Empty when a rollback or a move of slots came in between: the next time will do."""
    live = LiveRows(context, built, record, gone)
    try:
        return evaluate(
            built.model,
            evaluation_batches(context.spec),
            built.declared,
            live.fetch,
            labels=built.job.labels,
            placement=lambda: live.placement,
            stop=gone.is_set,
        )
    except (StaleGeneration, WrongMap):
        return {}
    finally:
        live.close()
