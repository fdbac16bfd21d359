"""`--wait` of scale, resize, suspend, resume and stop: when a job is as it was asked to be."""

from collections.abc import Sequence
from typing import Any

import pytest

from recmesh.cli import waiting
from recmesh.client.views import Job, Role
from recmesh.runtime.errors import DeadlineExceeded, FailedPrecondition


def job(phase: str, *roles: tuple[str, str], **more: Any) -> Job:
    made = [Role(role=name, index=n, state=state, **more) for n, (name, state) in enumerate(roles)]
    return Job(job_id="ads-1", name="ads", phase=phase, roles=made)


RUN, START, GONE = ("worker", "running"), ("worker", "starting"), ("worker", "exited")


class FakeMesh:
    """A job that changes at each look; the last look stays."""

    def __init__(self, looks: Sequence[Job]) -> None:
        self.looks = list(looks)

    def job(self, job_id: str) -> Job:
        return self.looks.pop(0) if len(self.looks) > 1 else self.looks[0]


def until(looks: Sequence[Job], goal: waiting.Goal, *, within_s: float = 60.0) -> Job:
    return waiting.until(FakeMesh(looks), "ads-1", goal, within_s=within_s, quiet=True, look_s=0.0)  # type: ignore[arg-type]  # a fake


@pytest.mark.parametrize(
    ("found", "there"),
    [
        (job("Running", RUN, RUN), True),
        (job("Scaling", RUN, RUN), False),
        (job("Running", RUN, START), False),
        (job("Running", RUN, RUN, ("worker", "draining")), False),
        (job("Running", RUN, RUN, GONE), True),
        (job("Suspended"), True),
    ],
)
def test_a_count_is_reached_when_so_many_run_and_no_others_live(found: Job, there: bool) -> None:
    assert waiting.has_counts({"worker": 2})(found).is_there is there


def test_a_role_that_is_left_to_brain_needs_no_wait() -> None:
    assert waiting.has_counts({})(job("Scaling", START)).is_there


@pytest.mark.parametrize(
    ("cpu", "memory", "there"), [("2", None, True), ("2000m", "4Gi", True), ("3", None, False), (None, "8Gi", False)],
)  # fmt: skip
def test_a_size_is_reached_when_every_process_has_it(cpu: str | None, memory: str | None, there: bool) -> None:
    found = job("Running", RUN, RUN, GONE, cpu_limit=2.0, memory_limit_bytes=4 << 30)
    assert waiting.has_size("worker", cpu=cpu, memory=memory)(found).is_there is there


def test_suspended_is_without_processes_and_resumed_is_with_one() -> None:
    assert not waiting.is_suspended(job("Suspended", RUN)).is_there and waiting.is_suspended(job("Suspended")).is_there
    assert not waiting.is_training(job("Starting", START)).is_there
    assert waiting.is_training(job("Running", RUN)).is_there


def test_it_waits_until_the_job_is_there() -> None:
    looks = [job("Running", RUN), job("Scaling", RUN, START), job("Running", RUN, RUN)]
    assert len(until(looks, waiting.has_counts({"worker": 2})).roles) == 2


def test_a_job_that_is_over_will_never_be_there() -> None:
    with pytest.raises(FailedPrecondition, match="ads is Failed"):
        until([job("Failed")], waiting.has_counts({"worker": 2}))


def test_a_deadline_says_how_far_it_came_and_where_to_look() -> None:
    with pytest.raises(DeadlineExceeded, match=r"Scaling, 1 of 2 worker run.*recmesh describe ads-1"):
        until([job("Scaling", RUN)], waiting.has_counts({"worker": 2}), within_s=0.0)
