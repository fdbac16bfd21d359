"""A hot server's slots leave it live, unless that costs more than to begin again without it.

A server that hardly gets any CPU cannot send its slots, either. How long the rest will take is told by what came so
far; where nothing comes, one waits as long as the rollback would take, so that one pays at most twice.
"""

from services.jobmaster.domain import placement
from services.jobmaster.domain.job import JobStatus, Relief
from services.jobmaster.domain.limits import Limits

RESTORE_BYTES_PER_S = 200e6
"""Of one server: read, verified and put into its store."""
LEAST_S = 2.0
"""What came in less time says nothing."""
MARKED_S = 5.0
"""While a snapshot is cut handoffs wait for it: so long that is no fault of the hot server's. One that takes longer to
cut its own part is as slow at that as at everything."""


def rollback_s(status: JobStatus, *, since: float, waiting: float, now: float, limits: Limits) -> float:
    """What a rollback would cost the job: to stop and start, to read the snapshot, to train again what came after.

    Of the time since the relief began (`since`) only what workers did not wait is to be trained again.
    """
    reading_s = status.snapshot_bytes / max(1, len(status.settled_ps)) / RESTORE_BYTES_PER_S
    cut_at = max(status.snapshot_at, status.trained_since)
    before_s = max(0.0, since - cut_at)
    meanwhile_s = max(0.0, now - max(since, cut_at)) * max(0.0, 1.0 - waiting)
    return limits.rollback_s + reading_s + before_s + meanwhile_s


def is_futile(
    relief: Relief, *, owned: int, copied: float, waiting: float, cost_s: float, now: float, marking: bool = False
) -> str:
    """Why a rollback costs less than what the live move still will; empty: it does not.

    owned: slots that the server has now. copied: the part of them (in slots) that the move under way has copied.
    waiting: the part of workers' time that is lost meanwhile. cost_s: what a rollback would cost now. marking: a
    snapshot is being cut.
    """
    spent_s, kept = now - relief.since, int((placement.decode(relief.goal) == relief.ps).sum())
    left = max(0.0, owned - kept - copied)
    if spent_s < (MARKED_S if marking else LEAST_S) or not left:
        return ""
    done, lost = relief.owned - kept - left, min(1.0, waiting)
    rest_s = spent_s * left / done if done > 0 else spent_s
    if lost * rest_s <= cost_s:
        return ""
    told = f"of {relief.owned - kept} slots {done:.0f} have left after {spent_s:.0f} s"
    return f"{told}; workers wait {100 * lost:.0f} % of the time, and a rollback costs about {cost_s:.0f} s"
