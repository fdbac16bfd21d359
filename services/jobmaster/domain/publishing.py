"""A model that is served while it trains: exported once, after the first snapshot; then snapshots are its versions."""

from services.jobmaster.domain.phase import Phase
from services.jobmaster.domain.situation import Action, Launch, Operate, Situation
from services.jobmaster.domain.staffing import is_due


def publish(at: Situation) -> list[Action]:
    """The next step towards it; none when there is only waiting left, or nothing to publish."""
    intent, made = at.job.intent, at.status.publication
    if at.spec.freshness is None or intent.winds_down or intent.finish or at.record.phase != "open":
        return []
    if not at.record.last_committed or at.status.phase not in (Phase.RUNNING, Phase.SCALING):
        return []
    is_free = not at.seen.publishing and at.now >= at.seen.publishing_retry_at
    if made is None:
        return [Operate("publish", "the first snapshot is committed")] if is_free else []
    if not made.by:
        return [Launch(("finisher", 0))] if is_due(at, "finisher", 0) else []
    if not made.registered:
        return [Operate("announce", "the model is written")] if is_free else []
    return []
