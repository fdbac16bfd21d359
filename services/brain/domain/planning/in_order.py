"""Selection of planners that do not weigh jobs against each other: whoever comes first."""

from collections.abc import Sequence

from recmesh.plugins.planning import Candidate, ClusterView, Decision, JobView, Proposal, Reason
from services.brain.domain.planning.room import Room
from services.brain.domain.planning.wording import change, shortage


def in_order(proposals: Sequence[Proposal], cluster: ClusterView, order: Sequence[int]) -> list[Decision]:
    """Each in turn gets the last of its candidates that fits; one decision per proposal, in their own order."""
    room = room_for(proposals, cluster)
    chosen: dict[int, Candidate] = {}
    for j in order:
        proposal = proposals[j]
        for each in reversed(proposal.candidates):
            need = room.need(proposal.job, each.allocation)
            if room.holds(proposal.job.owner, need):
                room.take(proposal.job.owner, need)
                chosen[j] = each
                break
    return [decided(proposal, chosen.get(j), room) for j, proposal in enumerate(proposals)]


def room_for(proposals: Sequence[Proposal], cluster: ClusterView) -> Room:
    """With a column for each kind of accelerator that any of them uses."""
    kinds = {each.allocation.gpu_kind for proposal in proposals for each in proposal.candidates}
    kinds |= {proposal.job.now.gpu_kind for proposal in proposals}
    return Room.of(cluster, sorted(kinds - {""}))


def decided(proposal: Proposal, chosen: Candidate | None, room: Room, note: str = "") -> Decision:
    """With the words for it; `room` as it is once all have theirs, `note` what else is to be said of a refusal."""
    job = proposal.job
    if chosen is not None:
        return Decision(job.job_id, chosen.allocation, chosen.reason, change(job, chosen), chosen)
    if not proposal.candidates:
        return Decision(job.job_id, job.now, _waiting(job, proposal.reason), proposal.why or "nothing is better")
    needs = [room.need(job, each.allocation) for each in proposal.candidates]
    least = min(range(len(needs)), key=lambda k: (needs[k], k))
    if room.holds(job.owner, needs[least]):
        return Decision(job.job_id, job.now, Reason.KEEP, "what it could have instead is no step up")
    why = shortage(job, proposal.candidates[least], needs[least], room)
    reason = _waiting(job, room.why_not(job.owner, needs[least]))
    return Decision(job.job_id, job.now, reason, f"{why}; {note}" if note else why)


def _waiting(job: JobView, reason: Reason) -> Reason:
    """A queued job without room waits; other reasons say more than that."""
    return Reason.QUEUED if job.queued and reason in (Reason.NO_ROOM, Reason.KEEP) else reason
