"""What a job's jobmaster saw, decided and did about trouble, and what came of it: a bounded list per job."""

from services.jobmaster.domain.job import MAX_DECISIONS, Decision

MAX_TEXT = 300
"""Characters of each text: the list is stored with the job's status."""
Timeline = tuple[Decision, ...]


def decided(timeline: Timeline, *, at: float, matter: str, place: str, seen: str, decision: str) -> Timeline:
    """The timeline with one more decision, numbered on from the last; the oldest goes when it is full."""
    number = timeline[-1].number + 1 if timeline else 1
    made = Decision(
        number=number, at=at, matter=matter, place=place, seen=seen[:MAX_TEXT], decided=decision[:MAX_TEXT]
    )
    return (*timeline, made)[-MAX_DECISIONS:]


def concluded(timeline: Timeline, number: int, *, done: str = "", effect: str = "") -> Timeline:
    """The timeline with what was done about a decision, or what came of it; unchanged when that is forgotten."""
    return tuple(
        item.model_copy(
            update={"done": (done or item.done)[:MAX_TEXT], "effect": (effect or item.effect)[:MAX_TEXT]}
        )
        if item.number == number else item
        for item in timeline
    )
