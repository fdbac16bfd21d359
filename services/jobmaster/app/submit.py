"""A specification becomes a job, or is refused with every wrong field; then nothing is created."""

import hashlib
from dataclasses import dataclass

import orjson

from recmesh.runtime.errors import (
    AlreadyExists,
    CallerError,
    FailedPrecondition,
    InvalidArgument,
    MeshFault,
    NotFound,
    Violation,
)
from recmesh.runtime.telemetry import get_logger
from recmesh.serving.settings import ServingSettings, check_stored
from recmesh.spec.dataset import DatasetSpec
from recmesh.spec.job import InitFrom, TrainingJob
from recmesh.spec.namespaces import unfit
from services.jobmaster.app.context import Context
from services.jobmaster.domain import snapshot as snapshots
from services.jobmaster.domain.datasets import name_in_mesh
from services.jobmaster.domain.job import AcceptedJob, Intent, ObjectRef
from services.jobmaster.domain.models import evaluation_violations, model_violations
from services.jobmaster.domain.record import RunRecord
from services.jobmaster.domain.serving import unservable
from services.jobmaster.domain.shards import bucket_of

logger = get_logger(__name__)

SUFFIX_LETTERS = "bcdfghjklmnpqrstvwxz23456789"
"""No vowels, so that no word comes out; nothing that looks like something else."""
MAX_NAME = 63
NO_DATASET = "NO_DATASET"
"""Reason of an error: the registered dataset that the job names is not there (yet)."""


@dataclass(frozen=True, slots=True)
class Checked:
    """A specification that may run."""

    spec: TrainingJob
    data_rows: int
    data_bytes: int
    init_snapshot: int
    init_parts: tuple[str, ...]
    notes: tuple[str, ...]


async def check(context: Context, spec_json: str) -> Checked:
    """The specification with its dataset resolved; InvalidArgument names every wrong field."""
    try:
        value = orjson.loads(spec_json)
    except orjson.JSONDecodeError as error:
        raise InvalidArgument(
            "the TrainingJob is no JSON", violations=[Violation("(root)", f"is no JSON: {error}")]
        ) from None
    spec = TrainingJob.parse(value)
    _check_namespaces(context, spec)
    spec = await _with_data(context, spec)
    violations = model_violations(spec) + evaluation_violations(spec) + context.cluster.refusals(spec)
    violations += context.untracked(spec)
    if spec.deadline is not None and spec.deadline <= context.clock.now():
        violations.append(Violation("deadline", "is over: it is in Unix seconds, and now it is "
                                    f"{context.clock.now():.0f}"))
    rows = size_bytes = 0
    if spec.data is not None:
        try:
            inspection = await context.peers.shards.inspect(spec.data.model_dump_json())
            rows, size_bytes = inspection.rows, inspection.size_bytes
            if not rows and not spec.data.streams:
                violations.append(Violation("data.source", "has no rows"))
        except CallerError as error:
            violations += _under("data", error)
    if spec.evaluation is not None and spec.evaluation.data is not None:
        try:
            await context.peers.shards.inspect(spec.evaluation.data.model_dump_json())
        except CallerError as error:
            violations += _under("evaluation.data", error)
    if spec.is_foreign:
        reason = "is of objects of Kubernetes; whoever is named submits the job without it"
        violations.append(Violation("managed_by", reason))
    violations += await _scaling_violations(context, spec)
    violations += _serving_violations(spec)
    snapshot = 0
    parts: tuple[str, ...] = ()
    if spec.init_from is not None:
        try:
            snapshot, parts = await _init(context, spec.init_from)
        except (NotFound, FailedPrecondition) as error:
            violations.append(Violation("init_from", error.message))
    if violations:
        raise InvalidArgument(f"the TrainingJob has {len(violations)} wrong field(s)", violations=violations)
    return Checked(spec, rows, size_bytes, snapshot, parts, tuple(_notes(spec)))


def _check_namespaces(context: Context, spec: TrainingJob) -> None:
    """Before a dataset is looked for by a name that could be another namespace's."""
    said = [("namespace", spec.namespace if spec.namespace != context.namespace else None)]
    said += [("export.namespace", spec.export.namespace if spec.export is not None else None)]
    wrong = [Violation(path, reason) for path, namespace in said if namespace and (reason := unfit(namespace))]
    if wrong:
        raise InvalidArgument(f"the TrainingJob has {len(wrong)} wrong field(s)", violations=wrong)


async def _scaling_violations(context: Context, spec: TrainingJob) -> list[Violation]:
    if spec.scaling is None:
        return []
    if spec.data is not None and not spec.data.has_topics:      # a registered dataset is known here first
        return [Violation("scaling", "follows what comes in on topics, and the dataset has none")]
    try:
        known = await context.peers.brain.stream_planners()
    except MeshFault as fault:
        logger.warning("brain does not tell its planners now, the job's is taken as it is: %s", fault.message)
        return []
    if spec.scaling.planner in known:
        return []
    return [Violation("scaling.planner", f"brain has no {spec.scaling.planner!r}: {', '.join(known)}")]


def _serving_violations(spec: TrainingJob) -> list[Violation]:
    """What the gateway would refuse when the model is trained."""
    if spec.export is None:
        return []
    try:
        serving = ServingSettings.parse(spec.export.serving, path="export.serving")
        check_stored(serving, path="export.serving")
    except InvalidArgument as error:
        return list(error.violations)
    return unservable(spec, serving)


def _under(prefix: str, error: CallerError) -> list[Violation]:
    """shardsvc names fields of the dataset as `data.…`, or without a prefix."""
    if not error.violations:
        return [Violation(prefix, error.message)]
    relative = [(item.path.removeprefix("data").removeprefix("."), item.reason) for item in error.violations]
    return [Violation(f"{prefix}.{path}" if path else prefix, reason) for path, reason in relative]


async def _with_data(context: Context, spec: TrainingJob) -> TrainingJob:
    """The dataset's specification inline: a later revision of the registered one changes nothing here."""
    if spec.dataset is None:
        return spec
    own = context.namespace
    name = name_in_mesh(spec.dataset, namespace=spec.namespace or own, own=own)
    try:
        data = DatasetSpec.parse(orjson.loads(await context.peers.shards.dataset(name)))
    except NotFound:
        raise InvalidArgument(
            "the TrainingJob has 1 wrong field(s)", reason=NO_DATASET,
            violations=[Violation("dataset", f"there is no dataset {name}; register it first")],
        ) from None
    return spec.model_copy(update={"data": data.model_copy(update={"name": name}), "dataset": None})


async def _init(context: Context, init: InitFrom) -> tuple[int, tuple[str, ...]]:
    job_id, number = init.job, init.snapshot
    if init.model:
        versions = await context.peers.models.versions(init.model)
        if not versions:
            raise NotFound(f"there is no model {init.model}")
        newest = max(versions, key=lambda item: int(item.version) if item.version.isdecimal() else 0)
        job_id, number = newest.job_id, number or newest.snapshot
    record = await context.store.record(job_id)
    if record is not None and not number:
        number = record.last_committed
        if not number:
            raise FailedPrecondition(f"job {job_id} has no committed snapshot")
    document = await context.store.manifest(job_id, number) if number else None
    stored = await context.peers.checkpoints.get(job_id, number)
    if stored.parts:
        return stored.snapshot, stored.parts
    if document is None:
        document = snapshots.parse(stored.manifest_json)
    return stored.snapshot, tuple(document["parts"])


def _notes(spec: TrainingJob) -> list[str]:
    """What is allowed, and probably not meant."""
    notes = []
    evaluation, data = spec.evaluation, spec.data
    if evaluation is not None and evaluation.rows is not None and data is not None and data.source is not None:
        lo, hi = data.source.rows or (0.0, 1.0)
        if max(lo, evaluation.rows[0]) < min(hi, evaluation.rows[1]):
            notes.append(
                f"evaluation.rows {list(evaluation.rows)} are trained on, too: data.source.rows is {[lo, hi]}"
            )
    training, worker = spec.training, spec.roles.worker
    workers = max(1, worker.min) if worker.replicas is None else worker.replicas
    if training.staleness is not None and training.staleness < workers * training.in_flight:
        notes.append(
            f"training.staleness {training.staleness} is below workers * in_flight ({workers} * {training.in_flight}): "
            "batches will be computed in vain"
        )
    return notes


async def create(
    context: Context, checked: Checked, *, request_id: str, submitter: str, spec_digest: str | None = None,
    object: ObjectRef | None = None,
) -> tuple[AcceptedJob, RunRecord]:
    """Stores the job under a free id. The same request id gives the same job, whatever happened before."""
    spec_json = checked.spec.model_dump_json()
    wanted = checked.spec.name if object is None else object.name
    job_id = wanted
    if request_id:
        job_id = await context.store.claim_request(request_id, job_id)
    while True:
        job = AcceptedJob(
            job_id=job_id, spec_json=spec_json, request_id=request_id, submitter=submitter,
            created=context.clock.now(), data_rows=checked.data_rows, data_bytes=checked.data_bytes,
            init_snapshot=checked.init_snapshot, init_parts=checked.init_parts, spec_digest=spec_digest or "",
            object=object, intent=Intent(suspend=checked.spec.suspend, suspensions=int(checked.spec.suspend)),
        )
        try:
            job = await context.store.create_job(job)
            break
        except AlreadyExists:
            existing = await context.store.job(job_id)
            if existing is not None and _is_same(existing, job):
                _check_digest(existing, spec_digest)
                job = existing
                break
            taken, job_id = job_id, other_name(context, wanted)
            if request_id:
                job_id = await context.store.move_request(request_id, job_id, taken=taken)
    return job, first_record(job)


def _is_same(existing: AcceptedJob, job: AcceptedJob) -> bool:
    """An earlier try of the same request made it, or this one's answer from the store was lost."""
    if job.request_id:
        return existing.request_id == job.request_id
    return existing.created == job.created and existing.spec_json == job.spec_json


def digest(spec_json: str) -> str:
    """Of a specification as it was submitted, whatever the order of its fields; empty when it is no JSON."""
    try:
        text = orjson.dumps(orjson.loads(spec_json), option=orjson.OPT_SORT_KEYS)
    except ValueError:
        return ""
    return hashlib.sha256(text).hexdigest()


async def earlier(context: Context, request_id: str, spec_digest: str | None) -> AcceptedJob | None:
    """The job that this request made. AlreadyExists when it was made from another specification."""
    job_id = await context.store.request(request_id)
    job = await context.store.job(job_id) if job_id else None
    if job is None or job.request_id != request_id:
        return None
    _check_digest(job, spec_digest)
    return job


def _check_digest(job: AcceptedJob, spec_digest: str | None) -> None:
    # Jobs that were accepted before digests were kept have none.
    if job.spec_digest and spec_digest is not None and job.spec_digest != spec_digest:
        raise AlreadyExists(
            f"this request id made job {job.job_id} from another specification", reason="REQUEST_REUSED"
        )


def other_name(context: Context, name: str) -> str:
    """Where the name is taken: another one of the same bucket, so that one jobmaster has all that are called so."""
    while True:
        suffix = "".join(context.rng.choice(SUFFIX_LETTERS) for _ in range(5))
        found = f"{name[: MAX_NAME - 6].rstrip('-')}-{suffix}"
        if bucket_of(found) == bucket_of(name):
            return found


def first_record(job: AcceptedJob) -> RunRecord:
    """The run record before the first generation."""
    return RunRecord(job_id=job.job_id, init_snapshot=job.init_snapshot, init_parts=job.init_parts)


