"""Moments that were written down under another clock: of a machine, or of a life before the clock was set."""

from services.jobmaster.domain.job import JobStatus


def none_ahead(status: JobStatus, *, now: float, longest_pause_s: float) -> JobStatus:
    """The status without moments that are still to come, but for pauses of no more than `longest_pause_s`.

    A jobmaster whose clock is behind that of the one before it would wait for them to pass: with the next start of
    a process, with the next snapshot, with taking a silent process for dead.
    """
    latest = now + longest_pause_s
    roles = tuple(
        role.model_copy(update={
            "since": min(role.since, now), "leaving_since": min(role.leaving_since, now),
            "left_at": min(role.left_at, now), "retry_at": min(role.retry_at, latest),
        })
        for role in status.roles
    )
    slow = tuple(
        worker.model_copy(update={"since": min(worker.since, now), "at": min(worker.at, now)}) for worker in status.slow
    )
    closing = status.closing and status.closing.model_copy(
        update={"reported_at": min(status.closing.reported_at, now)})
    trial = status.trial and status.trial.model_copy(update={
        name: min(float(getattr(status.trial, name)), now) for name in ("began", "settled", "taken_back_at")
    })
    moments = {name: min(float(getattr(status, name)), now)
               for name in ("started", "trained_since", "snapshot_at", "placed_at", "judged_at", "asked_plan_at")}
    return status.model_copy(update={**moments, "roles": roles, "slow": slow, "closing": closing, "trial": trial})
