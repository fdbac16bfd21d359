"""How a job ends: for which reasons, by which steps, and what is done with one that has ended."""

from recmesh.spec.job import TrainingJob
from services.jobmaster.domain.job import Ending
from services.jobmaster.domain.phase import Phase
from services.jobmaster.domain.situation import Action, End, Kill, Launch, Move, Situation, operate
from services.jobmaster.domain.staffing import is_due, silent, strangers


def afterwards(at: Situation) -> list[Action]:
    """Of a job that has ended: its history is kept elsewhere, and in time it is forgotten."""
    result = strangers(at)
    if result or at.seen.operation:
        return result
    if not at.status.recorded and not at.job.intent.delete:
        return operate(at, "record", reason="its history goes to brain")
    if at.spec.clean_pod_policy == "All" and at.seen.processes:
        return operate(at, "clean", reason="clean_pod_policy is All")
    ttl_s = at.spec.ttl_after_end_s
    if ttl_s is None and at.limits.keep_ended_s and at.job.object is None:
        ttl_s = at.limits.keep_ended_s
    if at.job.intent.delete:
        return operate(at, "purge", reason="deleted")
    if ttl_s is not None and at.now >= at.status.ended + ttl_s:
        return operate(at, "purge", reason=f"ended {ttl_s:g} s ago")
    return []


def take_down(at: Situation, ending: Ending) -> list[Action]:
    """All processes go; then the job ends."""
    alive = leaving(at)
    if alive:
        return [Kill(name, ending.reason) for name in alive if name not in at.seen.killing]
    return operate(at, "end", reason=ending.reason)


def leaving(at: Situation) -> list[str]:
    """Processes of which all shall go, those first that use others: workers before parameter servers."""
    alive = [name for name, process in at.seen.processes.items() if process.exit is None]
    return [name for name in alive if not name.startswith("ps-")] or alive


def must_end(at: Situation) -> Ending | None:
    """A wish or a limit that ends the job now."""
    intent, status, training = at.job.intent, at.status, at.spec.training
    if intent.delete:
        return Ending(phase=Phase.STOPPED, reason="Deleted", message=intent.reason)
    if status.closing is not None and status.closing.registered:
        return None
    if intent.stop:
        has_state = at.record.phase in ("open", "finishing") and status.phase is not Phase.PENDING
        if not has_state or status.stop_snapshot_tried:
            return Ending(phase=Phase.STOPPED, reason="Stopped", message=intent.reason)
    if status.mistakes and (status.mistakes > 1 or not _others_work(at)):
        return Ending(phase=Phase.FAILED, reason="UserError", message=status.mistake)
    if status.failures > at.spec.backoff_limit:
        last = next((role for role in reversed(status.roles) if role.exit_reason), None)
        why = f"; the last: {last.role} {last.index}, {last.exit_reason}" if last else ""
        return Ending(
            phase=Phase.FAILED, reason="BackoffLimitExceeded",
            message=f"{status.failures} processes failed, {at.spec.backoff_limit} are allowed{why}",
        )
    if status.quarantined > training.quarantine_limit:
        return Ending(
            phase=Phase.FAILED, reason="QuarantineLimitExceeded",
            message=f"{status.quarantined} batches killed workers, {training.quarantine_limit} are allowed",
        )
    skipped = status.skipped_nan + at.seen.skipped_nan
    if skipped and training.nan.action == "fail":
        return Ending(
            phase=Phase.FAILED, reason="NotFinite",
            message="the loss or its gradients are not finite (training.nan.action is fail)",
        )
    if skipped > training.nan.limit:
        return Ending(
            phase=Phase.FAILED, reason="NotFinite",
            message=f"{skipped} batches had no finite loss or gradients, {training.nan.limit} are allowed",
        )
    bad, allowed = status.bad_records + at.seen.bad_records, at.spec.data.bad_records if at.spec.data else None
    if allowed is not None and bad > allowed.limit:
        return Ending(
            phase=Phase.FAILED, reason="BadRecords",
            message=f"{bad} records could not be read, {allowed.limit} are allowed (data.bad_records.limit)",
        )
    limit_s = at.spec.active_deadline_s
    is_active = status.started and status.phase is not Phase.SUSPENDED      # resumed, its time begins anew
    if limit_s is not None and is_active and at.now >= status.started + limit_s:
        return Ending(
            phase=Phase.FAILED, reason="DeadlineExceeded", message=f"active for more than {limit_s:g} s"
        )
    return None


def _others_work(at: Situation) -> bool:
    """Some worker runs in spite of the mistake: it may be one machine's."""
    return any(role.stage == "running" for role in at.status.live("worker"))


def finish(at: Situation) -> list[Action]:
    """From the closing snapshot to success."""
    closing = at.status.closing
    if closing is None:
        return operate(at, "close", reason="the closing snapshot is committed")
    alive = [name for name in leaving(at) if not name.startswith("finisher-")]
    if alive:
        return [Kill(name, "the job is trained") for name in alive if name not in at.seen.killing]
    late = silent(at)
    if late:
        return late
    if at.status.phase is not Phase.RUNNING:
        return [Move(Phase.RUNNING, "Trained")]
    if not closing.reported and not needs_finisher(at.spec):
        return operate(at, "register", reason="nothing to export or evaluate")
    if not closing.reported:
        return [Launch(("finisher", 0))] if is_due(at, "finisher", 0) else []
    if not closing.registered:
        return operate(at, "register", reason="the model is written")
    if at.now < closing.reported_at + at.limits.finisher_exit_s and _finisher_goes(at):
        return []
    if closing.early:
        return [End(Ending(phase=Phase.SUCCEEDED, reason="Finished", message=at.job.intent.reason))]
    return [End(Ending(phase=Phase.SUCCEEDED, reason="Completed"))]


def _finisher_goes(at: Situation) -> bool:
    """It has reported, and ends by itself within moments."""
    processes = (at.seen.processes.get(role.name) for role in at.status.live("finisher"))
    return any(process is not None and process.exit is None for process in processes)


def needs_finisher(spec: TrainingJob) -> bool:
    """There is something to export or to evaluate."""
    return spec.export is not None or spec.evaluation is not None
