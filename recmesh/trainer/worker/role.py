"""The worker's process: its session opens and reads ahead while the model's framework is still loading."""

import logging
import threading

from recmesh.data import TaskReader
from recmesh.formats.inhand import InHand
from recmesh.runtime.errors import FailedPrecondition
from recmesh.spec.dataset import DatasetSpec
from recmesh.spec.fingerprint import job_fingerprint
from recmesh.trainer.exits import UserMistake
from recmesh.trainer.ports import Beat, BeatReply, RunRecord
from recmesh.trainer.role import Heart
from recmesh.trainer.session import Job
from recmesh.trainer.start import Context
from recmesh.trainer.usercode import fetch, resolve, seed_everything
from recmesh.trainer.wire import RemoteExecutor
from recmesh.trainer.worker.life import Life
from recmesh.trainer.worker.meter import Meter
from recmesh.trainer.worker.reading import FromExecutors, InProcess, Reader
from recmesh.trainer.worker.session import WorkerSession
from recmesh.trainer.worker.terms import Declaration, Terms
from recmesh.trainer.worker.without import fleet_without

_log = logging.getLogger(__name__)


def run(context: Context) -> None:
    """Trains until the job is done or this process shall stop; errors pass to the caller."""
    spec, identity = context.spec, context.identity
    if spec.data is None:
        raise FailedPrecondition("the assignment holds no resolved dataset")
    data = spec.data
    meter = Meter()
    terms = Terms.of(
        spec.training, worker=identity.worker, fleet=fleet_without(context.broken), kinds=data.kinds
    )
    reader = _reader(context, data)
    shards = context.shards()

    def begin(record: RunRecord, declaration: Declaration) -> Life:
        return Life(
            record,
            terms=terms,
            connect=context.server,
            shards=shards,
            runs=context.runs,
            reader=reader,
            declaration=declaration,
            meter=meter,
        )

    session = WorkerSession(spec, runs=context.runs, begin=begin, meter=meter, in_hand=InHand.at(identity.in_hand))
    context.on_stop.append(session.stop)
    if context.stopped.is_set():
        return

    def beat() -> Beat:
        return meter.beat(session.gen, draining=session.stopping, bad_records=reader.bad_records)

    def heard(reply: BeatReply) -> None:
        reader.use(reply.executors)
        session.heard(reply)

    heart = Heart(
        context.runs,
        every_s=context.assignment.heartbeat_s,
        beat=beat,
        heard=heard,
        hurry=lambda: session.drained,
    )
    opening = threading.Thread(target=session.open, name="open", daemon=True)
    opening.start()
    heart.start()
    try:
        _train(context, session)
    finally:
        context.stepped = meter.samples > 0
        session.close()
        heart.stop()
        if not context.in_user_code:
            heart.once()   # the last samples count
        reader.close()


def _reader(context: Context, data: DatasetSpec) -> Reader:
    """From executors where the job may have any."""
    spec = context.spec

    def local() -> TaskReader:
        return TaskReader(data, code=spec.model.code)

    if not spec.roles.data.max and not spec.roles.data.shared:
        return InProcess(local())
    fingerprint = job_fingerprint(spec, job_id=context.identity.job_id)
    reader = FromExecutors(
        connect=lambda address: RemoteExecutor(
            context.identity.to_role(address), fingerprint=fingerprint),
        local=local, batch_size=spec.training.batch_size,
    )
    reader.use(context.assignment.executors)
    return reader


def _train(context: Context, session: WorkerSession) -> None:
    fetch(context.spec.model, storage_uri=context.assignment.storage_uri, work_dir=context.identity.work_dir)
    main = resolve(context.spec.model)
    seed_everything(context.spec.training.seed)
    context.in_user_code = True
    main(Job(context.spec, session, mode="train", id=context.identity.job_id))
    context.in_user_code = False
    if not session.finished and not session.stopping:
        raise UserMistake("the model's main returned before the data was trained: it must take all steps")
