"""submit, jobs, describe, events, stop, suspend, resume, scale, resize, delete."""

import json
import sys
from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from recmesh.cli import completion, narration, output, waiting
from recmesh.cli.connect import connect
from recmesh.cli.exit_codes import ExitCode
from recmesh.cli.options import (
    WAIT_S,
    FileArgument,
    HomeOption,
    JobArgument,
    RoleArgument,
    ShapeOption,
    TimeoutOption,
    WaitOption,
)
from recmesh.cli.output import Shape
from recmesh.runtime.errors import FailedPrecondition, InvalidArgument, Violation

if TYPE_CHECKING:
    from recmesh.client import Client, Job, Role
    from recmesh.client.views import Serving
    from recmesh.runtime.progress import Progress

JOB_COLUMNS = [
    "id",
    "name",
    "owner",
    "phase",
    "progress",
    "samples/s",
    "loss",
    "auc",
    "workers",
    "ps",
    "age",
]


def register(app: typer.Typer) -> None:
    """Adds the verbs of this module."""
    for verb in (submit, jobs, describe, events, stop, suspend, resume, scale, resize, delete):
        app.command()(verb)


def submit(
    file: FileArgument,
    set_: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            help="Change a field: training.epochs=2 (the value is JSON or text).",
            metavar="FIELD=VALUE",
        ),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Check the job, create nothing.")] = False,
    wait: Annotated[bool, typer.Option("--wait", "-w", help="Follow the job until it is over.")] = False,
    home: HomeOption = None,
    shape: ShapeOption = Shape.TABLE,
) -> None:
    """Submit a job; its code folder is packed and sent along."""
    from recmesh.client import load_job

    spec = load_job(file, overrides=dict(_assignment(text) for text in set_ or []))
    with connect(home) as mesh:
        job = mesh.submit(spec, dry_run=dry_run)
        if shape.is_document and not wait:
            output.print_document(job.model_dump(), shape)
        elif dry_run:
            print("The job is valid; nothing was created.")
        elif not shape.is_document:
            print(f"Submitted {job.name} as {job.job_id}.")
            print(f"Follow it with `recmesh events {job.job_id} -f` or `recmesh top`.")
        if wait and not dry_run:
            _wait(mesh, job.job_id, shape=shape)


def jobs(
    owner: Annotated[str, typer.Option(help="Only this owner's.")] = "",
    namespace: Annotated[str, typer.Option(help="Only of this namespace.")] = "",
    phase: Annotated[
        str, typer.Option(help="Only those in this phase.", autocompletion=completion.phases)
    ] = "",
    limit: Annotated[int, typer.Option(help="At most so many.", min=1)] = 50,
    home: HomeOption = None,
    shape: ShapeOption = Shape.TABLE,
) -> None:
    """List jobs, newest first."""
    with connect(home) as mesh:
        page = mesh.jobs(owner=owner, phase=phase, limit=limit, namespace=namespace)
    if shape.is_document:
        output.print_document(page.model_dump(), shape)
        return
    output.print_table(JOB_COLUMNS, [job_row(job) for job in page.jobs], empty="There are no jobs.")
    if page.next_page_token:
        print(f"There are more: --limit {limit * 2}")


def _lag(found: "Job") -> str:
    progress = found.progress
    if not progress.partitions or found.over:
        return ""
    behind = f"{progress.lag_messages:,} messages of {progress.partitions} partitions"
    return f"{behind}, the oldest {output.duration(progress.lag_s)} old" if progress.lag_messages else "none"


def describe(job: JobArgument, home: HomeOption = None, shape: ShapeOption = Shape.TABLE) -> None:
    """Show everything about a job."""
    with connect(home) as mesh:
        found = mesh.job(mesh.find_job(job))
    if shape.is_document:
        output.print_document(found.model_dump(), shape)
        return
    progress = found.progress
    output.print_fields({
        "Job": f"{found.name}  ({found.job_id})",
        "Owner": found.owner,
        "Labels": " ".join(f"{key}={value}" for key, value in found.labels.items()),
        "Phase": found.phase + (f": {found.reason}" if found.reason else ""),
        "Message": found.message,
        "Created": output.clock(found.created),
        "Started": output.clock(found.started),
        "Ended": output.clock(found.ended),
        "Progress": _progress(found),
        "Speed": f"{output.number(progress.samples_per_s)} samples/s" if progress.samples_per_s else "",
        "Left": output.duration(progress.eta_s) if progress.eta_s and not found.over else "",
        "Data": f"up to the window of {output.moment(progress.event_time)}" if progress.event_time else "",
        "Lag": _lag(found),
        "Waits for": progress.waits_for,
        "Requeues": str(progress.requeues or ""),
        "Quarantined": str(progress.quarantined or ""),
        "Skipped": f"{progress.skipped_nan} batches that were not finite" if progress.skipped_nan else "",
        "Left out": f"{progress.bad_records} records that could not be read" if progress.bad_records else "",
        "Metrics": "  ".join(f"{name} {output.number(value)}" for name, value in found.metrics.items()),
        "Checkpoint": str(found.snapshot or ""),
        "Generation": str(found.gen or ""),
        "Model": f"{found.model_name} version {found.model_version}" if found.model_version else "",
        "Model files": found.model_uri,
    })  # fmt: skip
    if found.roles:
        print()
        columns = [
            "role",
            "state",
            "process",
            "samples/s",
            "data",
            "pull",
            "compute",
            "push",
            "cores",
            "memory",
            "restarts",
            "note",
        ]
        output.print_table(columns, [role_row(role) for role in found.roles])
    if found.transitions:
        print()
        rows = [[output.clock(t.at), t.from_phase, t.to_phase, t.reason] for t in found.transitions]
        output.print_table(["at", "from", "to", "reason"], rows)
    for note in found.notes:
        print(f"\nNote: {note}")


def events(
    job: JobArgument,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until the job is over.")] = False,
    everything: Annotated[
        bool, typer.Option("--all", help="Also what is measured every few seconds: lag, progress, AUC by the minute.")
    ] = False,
    type_: Annotated[
        list[str] | None,
        typer.Option(
            "--type", help="Only these: job.decided, topic.observed, 'job.*'.", metavar="TYPE",
            autocompletion=completion.event_types,
        ),
    ] = None,
    home: HomeOption = None,
    shape: ShapeOption = Shape.TABLE,
) -> None:
    """Show what has happened to a job; what is only measured now and then is hidden unless it is asked for."""
    wanted = type_ or []
    narration.check_types(wanted)
    hidden: Counter[str] = Counter()
    with connect(home) as mesh:
        for event in mesh.follow(mesh.find_job(job)) if follow else mesh.events(mesh.find_job(job)):
            if not narration.is_wanted(event.type, wanted, everything=everything or shape.is_document):
                hidden[event.type] += not wanted
                continue
            print(output.line(event.model_dump(), shape) if shape.is_document else narration.line(event), flush=follow)
    if told := ", ".join(f"{count:,} {name}" for name, count in sorted(hidden.items()) if count):
        print(f"hidden: {told} (--all or --type shows them)", file=sys.stderr)


def stop(
    job: JobArgument,
    finish: Annotated[bool, typer.Option("--finish", help="Succeed at the next checkpoint instead.")] = False,
    reason: Annotated[str, typer.Option(help="Why; kept with the job.")] = "",
    wait: WaitOption = False,
    timeout: TimeoutOption = WAIT_S,
    home: HomeOption = None,
    shape: ShapeOption = Shape.TABLE,
) -> None:
    """Stop a job."""
    with connect(home) as mesh:
        found = mesh.stop(mesh.find_job(job), reason=reason, finish=finish)
        if wait:
            found = waiting.until(mesh, found.job_id, waiting.is_over, within_s=timeout, quiet=shape.is_document)
    _told(found, shape, stopped_line(found, finish=finish))


def stopped_line(job: "Job", *, finish: bool) -> str:
    """What comes of the wish: the job's phase is mostly still that of before."""
    name = job.name if job.name == job.job_id else f"{job.name} ({job.job_id})"
    if job.over:
        return f"{name} is {job.phase}."
    return f"{name} will succeed at its next checkpoint." if finish else f"{name} is being stopped."


def suspend(
    job: JobArgument,
    reason: Annotated[str, typer.Option(help="Why; kept with the job.")] = "",
    wait: WaitOption = False,
    timeout: TimeoutOption = WAIT_S,
    home: HomeOption = None,
    shape: ShapeOption = Shape.TABLE,
) -> None:
    """Set a job aside: it saves a checkpoint, and its processes go, until it is resumed."""
    with connect(home) as mesh:
        found = mesh.suspend_job(mesh.find_job(job), reason=reason)
        if wait:
            found = waiting.until(mesh, found.job_id, waiting.is_suspended, within_s=timeout, quiet=shape.is_document)
    again = f"`recmesh resume {found.job_id}` goes on with it"
    does = "is suspended" if found.phase == "Suspended" else "saves a checkpoint and goes"
    _told(found, shape, f"{found.name} {does}; {again}.")


def resume(
    job: JobArgument,
    wait: WaitOption = False,
    timeout: TimeoutOption = WAIT_S,
    home: HomeOption = None,
    shape: ShapeOption = Shape.TABLE,
) -> None:
    """Go on with a suspended job, from what it saved."""
    with connect(home) as mesh:
        found = mesh.resume_job(mesh.find_job(job))
        if wait:
            found = waiting.until(mesh, found.job_id, waiting.is_training, within_s=timeout, quiet=shape.is_document)
    _told(found, shape, f"{found.name} goes on{f' from checkpoint {found.snapshot}' if found.snapshot else ''}.")


def scale(
    job: JobArgument,
    roles: Annotated[
        list[str],
        typer.Argument(
            help="worker=3, ps=2; worker=auto leaves it to brain.", metavar="ROLE=COUNT...",
            autocompletion=completion.counts,
        ),
    ],
    wait: WaitOption = False,
    timeout: TimeoutOption = WAIT_S,
    home: HomeOption = None,
    shape: ShapeOption = Shape.TABLE,
) -> None:
    """Pin how many processes a role has, while training goes on."""
    wanted = [_count(text) for text in roles]
    with connect(home) as mesh:
        found = mesh.job(mesh.find_job(job))
        for role, replicas in wanted:
            found = mesh.scale(found.job_id, role, replicas)
            if not shape.is_document:
                will = "is left to brain" if replicas is None else f"will be {replicas}"
                print(f"{found.name}: {role} {will}.")
        if wait:
            counts = {role: replicas for role, replicas in wanted if replicas is not None}
            goal = waiting.has_counts(counts)
            found = waiting.until(mesh, found.job_id, goal, within_s=timeout, quiet=shape.is_document)
    if shape.is_document:
        output.print_document(found.model_dump(), shape)


def resize(
    job: JobArgument,
    role: RoleArgument,
    cpu: Annotated[str | None, typer.Option(help="Cores of each process: 2, 500m.")] = None,
    memory: Annotated[str | None, typer.Option(help="Memory of each process: 4Gi.")] = None,
    wait: WaitOption = False,
    timeout: TimeoutOption = WAIT_S,
    home: HomeOption = None,
    shape: ShapeOption = Shape.TABLE,
) -> None:
    """Give a role's processes another size, while training goes on."""
    with connect(home) as mesh:
        found = mesh.resize(mesh.find_job(job), role, cpu=cpu, memory=memory)
        if wait:
            goal = waiting.has_size(role, cpu=cpu, memory=memory)
            found = waiting.until(mesh, found.job_id, goal, within_s=timeout, quiet=shape.is_document)
    how = "where that cannot be while they run they are replaced, one by one"
    told = f"{role} have another size." if wait else f"{role} get another size; {how}."
    _told(found, shape, f"{found.name}: {told}")


def delete(
    job: JobArgument,
    force: Annotated[bool, typer.Option("--force", help="Stop it first, if it has not ended.")] = False,
    home: HomeOption = None,
    shape: ShapeOption = Shape.TABLE,
) -> None:
    """Delete an ended job's record and checkpoints; its model stays."""
    with connect(home) as mesh:
        try:
            mesh.delete(mesh.find_job(job), force=force)
        except FailedPrecondition as error:
            if error.reason != "JOB_LIVE":
                raise
            message = f"job {job} has not ended: stop it first, or delete it with --force"
            raise FailedPrecondition(message, reason=error.reason) from error
    output.print_done({"deleted": job}, shape, f"{job} is deleted.")


def _told(found: "Job", shape: Shape, sentence: str) -> None:
    """The job as it is now, or what will come of it."""
    output.print_done(found.model_dump(), shape, sentence)


def job_row(job: "Job") -> list[str]:
    """Under JOB_COLUMNS."""
    running = [role.role for role in job.roles if role.state == "running"]
    return [
        job.job_id, job.name, job.owner, job.phase, _progress(job),
        output.number(job.progress.samples_per_s) if job.progress.samples_per_s else "",
        _metric(job, "loss"), _metric(job, "eval_auc") or _metric(job, "auc"),
        str(running.count("worker")), str(running.count("ps")), output.ago(job.created),
    ]  # fmt: skip


def role_row(role: "Role") -> list[str]:
    """Of `describe`."""
    step = role.step
    times = [step.data_s, step.pull_s, step.compute_s, step.push_s] if step and step.total_s else []
    return [
        f"{role.role}-{role.index}", role.state, role.handle,
        output.number(role.samples_per_s) if role.samples_per_s else "",
        *([f"{seconds * 1000:.1f} ms" for seconds in times] or [""] * 4),
        f"of {role.cpu_limit:g}" if role.cpu_limit else "", _memory(role), str(role.restarts),
        role.exit_reason if role.state == "exited" or not role.serving else _serving(role.serving),
    ]  # fmt: skip


def _serving(serving: "Serving") -> str:
    """A data executor's buffer and queue, in words."""
    held = f"{output.size(serving.held_bytes)} of {output.size(serving.limit_bytes)} held"
    passed = f", {serving.forwarded} passed on, {serving.taken} taken" if serving.forwarded or serving.taken else ""
    return f"{serving.decoded} tasks read, {serving.queued} wait, {held}{passed}"


def _memory(role: "Role") -> str:
    used = output.size(role.memory_bytes) if role.memory_bytes else ""
    return f"{used} of {output.size(role.memory_limit_bytes)}".strip() if role.memory_limit_bytes else used


def _progress(job: "Job") -> str:
    done, total = job.progress.samples, job.progress.total
    return (
        f"{job.progress.share:.0%} of {output.number(total)}"
        if total
        else (output.number(done) if done else "")
    )


def _metric(job: "Job", name: str) -> str:
    value = job.metrics.get(name)
    return "" if value is None else f"{value:.4f}"


def _wait(mesh: "Client", job_id: str, *, shape: Shape) -> None:
    from recmesh.runtime.progress import Progress

    job = mesh.job(job_id)
    with Progress(job.name, unit="samples", quiet=shape.is_document) as progress:
        for event in mesh.follow(job_id):
            if event.type == "job.progressed":
                _advance(progress, event.data)
            elif event.type == "job.transitioned":
                progress.update(note=str(event.data.get("to_phase", "")))
            if not shape.is_document and narration.is_wanted(event.type, (), everything=False):
                print(narration.line(event), flush=True)
    job = mesh.job(job_id)
    if shape.is_document:
        output.print_document(job.model_dump(), shape)
    else:
        print(
            f"{job.name} {job.phase}{f': {job.message or job.reason}' if job.message or job.reason else ''}"
        )
    if job.phase != "Succeeded":
        raise typer.Exit(ExitCode.JOB_FAILED)


def _advance(progress: "Progress", data: Mapping[str, Any]) -> None:
    """As a `job.progressed` tells it; its rate is jobmaster's own measurement."""
    measured = [f"{name} {data[name]:.4f}" for name in ("loss", "auc") if data.get(name) is not None]
    progress.update(
        data.get("samples"), total=data.get("total") or None, rate=data.get("samples_per_s") or None,
        note=", ".join(["Running", *measured]),
    )


def _assignment(text: str) -> tuple[str, Any]:
    field, found, value = text.partition("=")
    if not found or not field:
        raise InvalidArgument("--set cannot be read", violations=[Violation(text, "must be FIELD=VALUE")])
    try:
        return field, json.loads(value)
    except ValueError:
        return field, value


def _count(text: str) -> tuple[str, int | None]:
    role, _, count = text.partition("=")
    if count == "auto":
        return role, None
    if not role or not count.isdigit():
        raise InvalidArgument(
            "the scale cannot be read", violations=[Violation(text, "must be ROLE=COUNT or ROLE=auto")]
        )
    return role, int(count)
