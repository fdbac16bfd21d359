"""A jobmaster whose clock is behind its predecessor's waits for nothing that the predecessor wrote down."""

from services.jobmaster.domain.job import Closing, JobStatus, RoleState, SlowWorker, Trial
from services.jobmaster.domain.stamps import none_ahead

NOW, HOUR = 10_000.0, 3_600.0


def test_moments_to_come_become_now_and_pauses_stay_pauses() -> None:
    role = RoleState(role="ps", index=0, since=NOW + HOUR, retry_at=NOW + HOUR, leaving_since=NOW + HOUR,
                     left_at=NOW + HOUR)
    status = JobStatus(
        job_id="j", roles=(role,), snapshot_at=NOW + HOUR, started=NOW + HOUR, placed_at=NOW + HOUR,
        judged_at=NOW + HOUR, trained_since=NOW + HOUR,
        slow=(SlowWorker(index=0, incarnation="i", level=1, since=NOW + HOUR, at=NOW + HOUR),),
        closing=Closing(snapshot=1, samples=1, reported_at=NOW + HOUR), asked_plan_at=NOW + HOUR,
        trial=Trial(plan_id="p", decision=1, before={}, after={}, rate_before=1.0, rate_expected=1.0, began=NOW + HOUR,
                    settled=NOW + HOUR, taken_back_at=NOW + HOUR, samples=0, generation=1),
    )
    found = none_ahead(status, now=NOW, longest_pause_s=60.0)
    [role], [slow] = found.roles, found.slow
    assert (role.since, role.leaving_since, role.left_at, role.retry_at) == (NOW, NOW, NOW, NOW + 60.0)
    assert (slow.since, slow.at) == (NOW, NOW) and found.closing and found.closing.reported_at == NOW
    assert {found.snapshot_at, found.started, found.placed_at, found.judged_at, found.trained_since,
            found.asked_plan_at} == {NOW}
    assert found.trial and {found.trial.began, found.trial.settled, found.trial.taken_back_at} == {NOW}


def test_what_lies_behind_stays_as_it_is() -> None:
    role = RoleState(role="ps", index=0, since=1.0, retry_at=NOW + 5.0)
    status = JobStatus(job_id="j", roles=(role,), snapshot_at=2.0)
    assert none_ahead(status, now=NOW, longest_pause_s=60.0) == status
