"""Decisions in words."""

from collections.abc import Sequence

from recmesh.plugins.planning import Allocation, Candidate, JobView, Reason
from services.brain.domain.planning.room import Room


def shape(allocation: Allocation) -> str:
    """Short: 4 × 2 CPU + 2 PS × 1 CPU."""
    return f"{allocation.workers} × {allocation.worker_cpu:g} CPU + {allocation.ps} PS × {allocation.ps_cpu:g} CPU"


def change(job: JobView, chosen: Candidate) -> str:
    """What a job gets, what that brings, and what it costs."""
    # A step to learn is taken because nobody knows; until then as fast as now is what is assumed.
    is_known = chosen.rate > 0.0 and chosen.reason is not Reason.EXPLORE
    expected = f"{chosen.rate:,.0f} samples/s expected" if is_known else "speed unknown"
    if job.queued:
        begun = "starts with what it asked for" if chosen.allocation == job.now else "starts with"
        return _with(f"{begun}: {shape(chosen.allocation)}, {expected}", chosen.why)
    faster = f" ({chosen.gain / job.rate:+.0%} after what the change costs)" if job.rate > 0.0 and is_known else ""
    cost = f"{abs(chosen.cost):.3g} {'more' if chosen.cost > 0.0 else 'less'} in cost"
    if chosen.reason is Reason.PINNED:
        return _with(f"{shape(job.now)} → {shape(chosen.allocation)}", chosen.why)
    return _with(f"{shape(job.now)} → {shape(chosen.allocation)}: {expected}{faster}, {cost}", chosen.why)


def shortage(job: JobView, least: Candidate, need: Sequence[float], room: Room) -> str:
    """Which kind is missing for the least of its candidates, after others came first."""
    quota = room.quotas.get(job.owner)
    rows = [(room.free, "free"), *([(quota, "left in its owner's quota")] if quota else [])]
    for row, where in rows:
        for k, (many, left) in enumerate(zip(need, row, strict=True)):
            if many > 0.0 and many > left:
                needed, there = _amount(k, many, room), _amount(k, left, room)
                return f"{shape(least.allocation)} needs {needed} more, and {there} is {where} once others have theirs"
    return f"there was no room for {shape(least.allocation)}"


def _amount(kind: int, many: float, room: Room) -> str:
    many = round(max(0.0, many), 6)  # the room forgives rounding
    if kind == 0:
        return f"{many:.3g} CPU"
    if kind == 1:
        return f"{many / (1 << 30):.3g} GiB"
    return f"{many:g} {room.kinds[kind - 2]}"


def _with(words: str, why: str) -> str:
    return f"{words}; {why}" if why else words
