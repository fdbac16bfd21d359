"""How a job looks to its users."""

from typing import Any

from recmesh.spec.job import TrainingJob
from services.jobmaster import wire
from services.jobmaster.domain.job import AcceptedJob, JobStatus, RolePlan, RoleState
from services.jobmaster.domain.record import RunRecord

SPEC: dict[str, Any] = {
    "name": "ads",
    "model": {"zoo": "dlrm"},
    "data": {"source": {"files": ["rows.parquet"]}, "features": [{"name": "item"}]},
}


def limits(**status: Any) -> list[tuple[str, float, int]]:
    roles = (
        RoleState(role="ps", index=0, stage="running", size=RolePlan(replicas=1, cpu=0.5, memory_bytes=1000)),
        RoleState(role="worker", index=0, stage="running", size=RolePlan(replicas=1)),
        RoleState(role="worker", index=1, stage="exited", size=RolePlan(replicas=1, cpu=2.0)),
    )
    spec, accepted = TrainingJob.parse(SPEC), AcceptedJob(job_id="j", spec_json="{}", created=1.0)
    found = wire.job(
        accepted, spec, JobStatus(job_id="j", roles=roles, **status), RunRecord(job_id="j", term=1), beats={},
        wanted={}, pinned={},
    )
    return [(role.role, role.cpu_limit, role.memory_limit_bytes) for role in found.roles]


def test_a_process_that_lives_has_limits_or_none() -> None:
    assert limits() == [("ps", 0.5, 1000), ("worker", 0.0, 0), ("worker", 0.0, 0)]


def test_a_limit_that_was_raised_after_it_was_too_little_is_shown_as_it_is() -> None:
    assert limits(memory={"ps": 4000, "worker": 4000})[:2] == [("ps", 0.5, 4000), ("worker", 0.0, 0)]
