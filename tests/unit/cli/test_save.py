"""Snapshots before a mesh goes down: had if they can be, and never in the way."""

from types import SimpleNamespace
from typing import Any

from recmesh.cli.mesh.save import save_jobs
from recmesh.runtime.errors import Unavailable


class FakeMesh:
    """Two jobs train; of one no snapshot can be had."""

    def __init__(self, *, away: bool = False) -> None:
        self.away = away
        self.asked: list[float] = []

    def jobs(self, *, phase: str, limit: int) -> Any:
        if self.away:
            raise Unavailable("the gateway does not answer")
        names = {"Running": ["good"], "Scaling": ["bad"]}[phase]
        return SimpleNamespace(jobs=[SimpleNamespace(job_id=name) for name in names])

    def checkpoint(self, job_id: str, *, timeout_s: float) -> int:
        self.asked.append(timeout_s)
        if job_id == "bad":
            raise Unavailable("a server is away")
        return 3


def saved(mesh: Any, within_s: float) -> list[str]:
    said: list[str] = []
    save_jobs(mesh, within_s=within_s, tell=said.append)
    return said


def test_each_job_that_trains_gets_a_snapshot_within_the_time() -> None:
    mesh = FakeMesh()
    assert saved(mesh, 5.0) == [
        "good: snapshot 3", "bad: no snapshot, it goes on from its last one (a server is away)",
    ]
    assert all(0 < timeout_s <= 5.0 for timeout_s in mesh.asked)


def test_a_mesh_that_does_not_answer_goes_down_all_the_same() -> None:
    assert saved(FakeMesh(away=True), 5.0) == ["No snapshots: the gateway does not answer"]


def test_no_time_is_no_snapshot() -> None:
    mesh = FakeMesh()
    assert saved(mesh, 0.0)[0] == "good: no time left for a snapshot; it goes on from its last one"
    assert not mesh.asked
