"""What jobmaster tells brain of a job, as the wire has it."""

from dataclasses import fields, replace

from services.jobmaster.domain.job import RolePlan
from services.jobmaster.peers.brain import profile_message
from services.jobmaster.peers.planning import JobProfile, RoleUse

PROFILE = JobProfile(
    job_id="j", at=1.0, workers=2, ps=1, worker_cpu=0.5, ps_cpu=0.25, batch_size=64, samples_per_s=100.0, data_s=0.1,
    pull_s=0.1, compute_s=0.1, push_s=0.1, ps_busy_share=0.5, ps_memory_bytes=10, rows=5, samples=7, remaining=9,
)


def test_everything_that_a_profile_holds_reaches_brain() -> None:
    use = RoleUse("worker", RolePlan(replicas=2, cpu=0.5), cpu_max=0.4, memory_bytes=8)
    message = profile_message(replace(PROFILE, roles=(use,), owner="ads", is_steady=True))
    for field in fields(PROFILE):
        if field.name != "roles":
            told = getattr(replace(PROFILE, owner="ads", is_steady=True), field.name)
            assert getattr(message, field.name) == told, field.name
    [told_use] = message.roles
    assert (told_use.has.role, told_use.has.replicas, told_use.cpu_max, told_use.memory_bytes) == ("worker", 2, 0.4, 8)
