"""Traces, known ones and one's own."""

from pathlib import Path

import numpy as np
import pytest

from recmesh.runtime.errors import InvalidArgument
from services.brain.simulator.job import TraceJob
from services.brain.simulator.traces import TRACES, own, trace_named, window
from services.brain.simulator.truth import rate_of
from services.brain.simulator.workload import jobs_of, paced
from tests.unit.brain.simulator.test_truth import DATA, needs_data
from tests.unit.brain.simulator.worlds import TRUTH


def test_a_trace_of_ones_own_in_csv_and_in_json_lines_says_the_same(tmp_path: Path) -> None:
    (tmp_path / "mine.csv").write_text(
        "job_id,arrival_s,workers,duration_s,owner,deadline_s\nb,60,2,600,ann,\na,0,1,30,,90\n"
    )
    (tmp_path / "mine.jsonl").write_text(
        '{"job_id": "b", "arrival_s": 60, "workers": 2, "duration_s": 600, "owner": "ann"}\n\n'
        '{"job_id": "a", "arrival_s": 0, "workers": 1, "duration_s": 30, "deadline_s": 90}\n'
    )
    first = trace_named(str(tmp_path / "mine.csv"), DATA)
    assert first == trace_named(str(tmp_path / "mine.jsonl"), DATA)
    assert [job.job_id for job in first] == ["a", "b"] and first[0].deadline_s == 90.0


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("x,1,10", r"mine.csv:2.arrival_s: 'x' is not a number"),
        ("0,0,10", r"mine.csv:2.workers: 0 is below 1"),
        ("0,1,nan", r"mine.csv:2.duration_s: nan is below 0.001, or not finite"),
        ("0,1,", r"mine.csv:2.duration_s: is missing"),
    ],
)
def test_a_wrong_line_is_told_by_its_number_and_field(tmp_path: Path, line: str, message: str) -> None:
    (tmp_path / "mine.csv").write_text(f"arrival_s,workers,duration_s\n{line}\n")
    with pytest.raises(InvalidArgument, match=message):
        own(tmp_path / "mine.csv")


def test_a_deadline_before_its_job_is_refused(tmp_path: Path) -> None:
    (tmp_path / "mine.csv").write_text("arrival_s,workers,duration_s,deadline_s\n0,1,10,20\n10,1,10,3\n")
    with pytest.raises(InvalidArgument, match=r"mine.csv:3.deadline_s: 3 is not after arrival_s 10"):
        own(tmp_path / "mine.csv")


def test_a_column_nobody_knows_is_refused(tmp_path: Path) -> None:
    (tmp_path / "mine.csv").write_text("arrival_s,workers,duration_s,gpus\n0,1,10,4\n")
    with pytest.raises(InvalidArgument, match=r"mine.csv:2.gpus: is not a column; there are arrival_s"):
        own(tmp_path / "mine.csv")


@pytest.mark.parametrize("text", ["not json\n", "[1, 2]\n"])
def test_lines_that_are_no_objects_are_told(tmp_path: Path, text: str) -> None:
    (tmp_path / "mine.jsonl").write_text(text)
    with pytest.raises(InvalidArgument, match=r"mine.jsonl:1"):
        own(tmp_path / "mine.jsonl")


def test_an_empty_trace_and_an_unknown_one_are_told(tmp_path: Path) -> None:
    (tmp_path / "mine.csv").write_text("arrival_s,workers,duration_s\n")
    with pytest.raises(InvalidArgument, match="has no jobs"):
        own(tmp_path / "mine.csv")
    with pytest.raises(InvalidArgument, match="--trace: one of philly, gavel, pollux, elasticflow, or a file"):
        trace_named("nowhere", DATA)
    with pytest.raises(InvalidArgument, match="there is no file"):
        trace_named(str(tmp_path / "absent.csv"), DATA)


def test_a_window_is_of_jobs_one_after_another_and_begins_at_zero() -> None:
    jobs = [TraceJob(str(n), 100.0 + n, 1, 10.0, deadline_s=200.0 + n) for n in range(20)]
    chosen = window(jobs, 5, np.random.default_rng(1))
    assert [job.arrival_s for job in chosen] == [0, 1, 2, 3, 4]
    assert all(job.deadline_s == job.arrival_s + 100 for job in chosen)
    numbers = [int(job.job_id) for job in chosen]
    assert numbers == list(range(numbers[0], numbers[0] + 5))
    assert len(window(jobs, 0, np.random.default_rng(1))) == 20
    assert len(window(jobs, 99, np.random.default_rng(1))) == 20


def test_a_jobs_samples_take_its_traced_time_at_its_users_size() -> None:
    trace = [TraceJob("a", 0.0, 4, 600.0), TraceJob("b", 5.0, 99, 900.0)]
    jobs = jobs_of(trace, TRUTH, rng=np.random.default_rng(0), longest_s=700.0)
    assert [job.samples / rate_of(TRUTH, "ads", job.asked) for job in jobs] == pytest.approx([600.0, 700.0])
    assert jobs[1].asked.workers == 6  # the most that was measured


def test_a_pace_fills_the_share_of_the_cluster_that_was_asked_for() -> None:
    trace = [TraceJob(str(n), 10.0 * n, 1 + n % 4, 600.0, deadline_s=10.0 * n + 900) for n in range(50)]
    jobs = paced(jobs_of(trace, TRUTH, rng=np.random.default_rng(0)), TRUTH, capacity_cpu=64, load=0.5)
    work = sum(job.samples / rate_of(TRUTH, "ads", job.asked) * job.asked.resources.cpu for job in jobs)
    assert work / (jobs[-1].arrival_s - jobs[0].arrival_s) / 64 == pytest.approx(0.5)
    assert all(job.deadline_s == pytest.approx(job.arrival_s + 900) for job in jobs)


@needs_data
@pytest.mark.parametrize(("name", "count"), [("gavel", 1000), ("pollux", 1280), ("elasticflow", 195)])
def test_known_traces_are_read(name: str, count: int) -> None:
    jobs = trace_named(name, DATA)
    assert len(jobs) >= count and set(TRACES) >= {name}
    assert all(job.duration_s > 0 and job.workers >= 1 for job in jobs)
    assert [job.arrival_s for job in jobs] == sorted(job.arrival_s for job in jobs)
    assert len({job.job_id for job in jobs}) == len(jobs)
    assert any(job.deadline_s for job in jobs) == (name == "elasticflow")
