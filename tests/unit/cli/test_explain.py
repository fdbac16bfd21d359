"""`recmesh explain`: what is said of a job, as text, as JSON and as a page; and what is said when nothing is known."""

import json
from pathlib import Path
from typing import Any

import pytest

from recmesh.cli import explain_verbs, output
from recmesh.cli.output import Shape
from recmesh.runtime.errors import FailedPrecondition, InvalidArgument, NotFound, Unavailable

AT = 1_700_000_000.0


def roles(workers: int, ps: int = 1, cpu: float = 1.0) -> list[dict[str, Any]]:
    return [{"role": "ps", "replicas": ps, "cpu": cpu}, {"role": "worker", "replicas": workers, "cpu": cpu}]


def point(workers: int, **of: float) -> dict[str, Any]:
    return {"workers": workers, "ps": 1, "worker_cpu": 1.0, "ps_cpu": 1.0, "at": AT} | of


def candidate(workers: int, **of: Any) -> dict[str, Any]:
    return point(workers, cost=workers - 2.0, gain=400.0, samples_per_s=2500.0) | {"reason": "GROW"} | of


FRONT = [candidate(3, is_chosen=True, why="worth it"), candidate(4, gain=300.0)]
DOCUMENT: dict[str, Any] = {
    "text": "...",
    "plan": {"plan_id": "b", "roles": roles(3), "source": "pareto-greedy", "explanation": "faster"},
    "first": {
        "plan_id": "a", "roles": roles(1), "source": "similar", "explanation": "from 1 similar job(s)",
        "similar": [{"job_id": "job-x", "similarity": 0.93, "why": "same model; data ×1.2"}],
    },
    "profiles": [
        {"at": AT, "workers": 2, "ps": 1, "samples_per_s": 2000.0, "compute_s": 0.09, "pull_s": 0.01},
        {"at": AT + 60, "workers": 3, "ps": 1, "samples_per_s": 2600.0},
    ],
    "look": {
        "at": AT + 70, "planner": "pareto-greedy", "reason": "KEEP", "why": "nothing is better", "now": roles(3),
        "fit": {
            "form": "dlrover", "error": 0.034, "coefficients": {"gradient": 0.0008, "sync": None},
            "points": [
                point(2, measured=2000.0, predicted=1900.0, log_sd=0.05),
                point(3, measured=2400.0, predicted=2600.0, log_sd=0.1),
                point(3, measured=2600.0, predicted=2600.0, log_sd=0.1),
            ],
            "notes": ["'update' and 'sync' cannot be told apart"], "unknown": "",
        },
        "front": [],
    },
    "decisions": [{
        "at": AT + 5, "planner": "pareto-greedy", "reason": "GROW", "why": "worth it", "now": roles(2),
        "chosen": roles(3), "samples_per_s": 2000.0, "expected_samples_per_s": 2500.0, "plan_id": "b", "front": FRONT,
    }],
    "changes": [
        {
            "plan_id": "b", "at": AT + 30, "verdict": "kept", "why": "2,600 samples/s, 2,000 before",
            "before": roles(2), "after": roles(3), "rate_before": 2000.0, "rate_expected": 2500.0, "rate_after": 2600.0,
            "overhead_s": 1.5,
        },
        {"plan_id": "c", "at": AT, "verdict": "taken back", "before": roles(2), "after": roles(2, cpu=2.0)},
    ],
}  # fmt: skip


class FakeMesh:
    """Knows one job; brain may know less, or be away."""

    def __init__(self) -> None:
        self.document: dict[str, Any] | Exception = DOCUMENT

    def __enter__(self) -> "FakeMesh":
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def find_job(self, job: str) -> str:
        if job != "ads":
            raise NotFound(f"there is no job {job}")
        return "ads-x7"

    def plan(self, job_id: str) -> dict[str, Any]:
        if job_id != "ads-x7":
            raise NotFound(f"brain knows nothing of job {job_id!r}")
        if isinstance(self.document, Exception):
            raise self.document
        return self.document


@pytest.fixture
def mesh(monkeypatch: pytest.MonkeyPatch) -> FakeMesh:
    made = FakeMesh()
    monkeypatch.setattr(explain_verbs, "connect", lambda home: made)
    return made


def section(out: str, title: str) -> list[list[str]]:
    """The lines below a title, as words."""
    lines = out.split(f"\n{title}\n")[1].split("\n\n")[0].splitlines()
    return [line.split() for line in lines[1:]]


def test_all_that_is_known_is_told(mesh: FakeMesh, capsys: pytest.CaptureFixture[str]) -> None:
    explain_verbs.explain("ads")
    out = capsys.readouterr().out
    assert "ads-x7" in out and "1 ps × 1 CPU, 3 worker × 1 CPU" in out and "compute 90%, pull 10%" in out
    assert section(out, "Similar past jobs") == ["job-x 0.93 same model; data ×1.2".split()]
    fit = section(out, "Fit, samples/s")
    assert [row[:8] for row in fit] == [
        ["2", "1", "1", "1", "1", "2,000", "1,900", "5%"], ["3", "1", "1", "1", "2", "2,498", "2,600", "11%"],
    ]  # fmt: skip
    assert [row[8] for row in fit] == ["-5.0%", "+4.1%"]
    assert "3.4%" in out and "gradient 0.0008" in out and "cannot be told apart" in out
    chosen, other = section(out, f"Front at {output.clock(AT + 5)}, the last time there was a choice")
    assert chosen[0] == "chosen" and chosen[-2:] == ["worth", "it"] and other[0] == "4"
    assert "KEEP: nothing is better" in out
    assert "worker 2 → 3  2,000  2,500     worth it" in out
    kept, back = section(out, "Changes, samples/s")
    assert "worker 2 → 3 2,000 2,500 2,600 1.5 s kept 2,600 samples/s" in " ".join(kept)
    assert " ".join(back).endswith("ps 1 CPU → 2 CPU, worker 1 CPU → 2 CPU taken back")


def test_a_plan_that_was_taken_back_is_said_to_be(mesh: FakeMesh, capsys: pytest.CaptureFixture[str]) -> None:
    kept, *others = DOCUMENT["changes"]
    mesh.document = DOCUMENT | {"changes": [kept | {"verdict": "taken back"}, *others]}
    explain_verbs.explain("ads")
    assert "from the planner pareto-greedy (taken back)" in capsys.readouterr().out


def test_json_is_the_document(mesh: FakeMesh, capsys: pytest.CaptureFixture[str]) -> None:
    explain_verbs.explain("ads", shape=Shape.JSON)
    assert json.loads(capsys.readouterr().out) == DOCUMENT


def test_a_page_holds_plots_and_tables_and_needs_nothing_else(
    mesh: FakeMesh, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    explain_verbs.explain("ads", out=tmp_path / "ads.html")
    assert capsys.readouterr().out == f"Wrote {tmp_path}/ads.html.\n"
    page = (tmp_path / "ads.html").read_text()
    assert page.count('<svg xmlns="http://www.w3.org/2000/svg" class="plot"') == 3 and "cannot be read" not in page
    assert page.count('class="moment ok"') == 1 and page.count('class="ring"') == 1 and "job-x" in page
    assert "src=" not in page and "<link" not in page
    with pytest.raises(InvalidArgument, match="is a folder"):
        explain_verbs.explain("ads", out=tmp_path)
    with pytest.raises(FailedPrecondition, match="cannot be written: No such file"):
        explain_verbs.explain("ads", out=tmp_path / "none" / "ads.html")


@pytest.mark.parametrize("document", [
    {"profiles": [{"at": AT}]},
    {"plan": {"roles": roles(1), "source": "default", "explanation": "defaults"}, "look": None, "first": None},
    {"profiles": [], "look": {"at": AT, "fit": {"unknown": "its speed was not steady yet"}}},
])  # fmt: skip
def test_little_is_told_without_a_stumble(
    mesh: FakeMesh, document: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    mesh.document = document
    explain_verbs.explain("ads", out=tmp_path / "ads.html")
    assert "cannot be read" not in (tmp_path / "ads.html").read_text()
    explain_verbs.explain("ads")
    out = capsys.readouterr().out
    assert "Job          ads-x7" in out and "Changes" not in out
    assert ("its speed was not steady yet" in out) is ("look" in document and document["look"] is not None)


def test_a_job_that_is_not_there_and_a_brain_that_does_not_know_or_answer_are_told_apart(mesh: FakeMesh) -> None:
    with pytest.raises(NotFound, match="there is no job ghost"):
        explain_verbs.explain("ghost")
    mesh.document = NotFound("brain knows nothing of job 'ads-x7'")
    with pytest.raises(NotFound, match="brain knows nothing of ads yet"):
        explain_verbs.explain("ads")
    mesh.document = Unavailable("brain does not answer")
    with pytest.raises(Unavailable, match="brain does not answer"):
        explain_verbs.explain("ads")
