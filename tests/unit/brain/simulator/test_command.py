"""`recmesh simulate` from its arguments to its report."""

import csv
import json
import subprocess
import sys
from pathlib import Path

import pytest

from recmesh.runtime.errors import InvalidArgument
from services.brain.simulator.command import main, minutes, nodes_of
from tests.unit.cli.test_command import recmesh

MINE = "job_id,arrival_s,workers,duration_s,owner\n" + "".join(
    f"j{n},{60 * n},{1 + n % 3},{600 + 100 * n},ann\n" for n in range(8)
)


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "mine.csv"
    path.write_text(MINE)
    return path


def test_a_report_has_tables_plots_and_jobs(trace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--trace", str(trace), "--truth", "paper", "--planner", "tuned", "--planner", "static", "--jobs", "0"]
    assert main([*arguments, "--out", str(tmp_path / "out")]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("planner") and "tuned: mean JCT" in shown and "shorter than static" in shown
    assert "<svg" in (tmp_path / "out/report.html").read_text()
    with (tmp_path / "out/jobs.csv").open() as lines:
        rows = list(csv.DictReader(lines))
    assert len(rows) == 16 and {row["planner"] for row in rows} == {"tuned", "static"}


def test_json_is_one_document_and_the_same_for_the_same_seed(trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--trace", str(trace), "--truth", "paper", "--planner", "static", "--json", "--deaths", ".3"]
    documents = []
    for seed in ("1", "1", "2"):
        assert main([*arguments, "--seed", seed]) == 0
        documents.append(json.loads(capsys.readouterr().out))
    assert documents[0] == documents[1] != documents[2]
    assert documents[0]["planners"]["static"]["jobs"] == 8


def test_the_service_s_own_planner_and_learning_run_in_it(trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--trace", str(trace), "--truth", "paper", "--planner", "pareto-greedy", "--json", "--until", "3000"]
    assert main(arguments) == 0
    found = json.loads(capsys.readouterr().out)["planners"]["pareto-greedy"]
    assert found["decisions"] > 8 and found["reasons"]["STARTED"] == 8


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--trace", "nowhere"], "--trace: one of philly, gavel, pollux, elasticflow, or a file"),
        (["--truth", "guess"], "--truth: one of dl2, pollux, paper"),
        (["--planner", "best"], "--planner: one of elastic-scheduler, optimus, pareto-greedy, static, tuned"),
        (["--nodes", "many"], "--nodes: 'many' is not NxCPUxGIB"),
        (["--nodes", "4x1x1"], "--nodes: no node holds a worker of d"),
        (["--models", "d9"], "--models: 'd9' is not a model of paper, which has d1, d2, d4"),
        (["--jobs", "-1", "--load", "-2"], "--load: must be a share from 0"),
        (["--stop-restart", "soon"], "--stop-restart: 'soon' is not two numbers of minutes"),
        (["--stop-restart", "30..10"], "is not two numbers of minutes, the smaller one first"),
        (["--checkpoint", "0x1"], "--checkpoint: '0x1' is not a number of seconds above 0"),
        (["--checkpoint", "often"], "--checkpoint: 'often' is not a number of seconds"),
        (["--interval", "inf"], "--interval: must be a number of seconds above 0"),
        (["--planner", "static", "--planner", "static"], "--planner: names a planner twice"),
    ],
)
def test_wrong_input_is_told_by_its_option(
    trace: Path, arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    base = ["--truth", "paper", "--planner", "static", "--trace", str(trace)]
    assert main([*base, *arguments]) == 2
    told = capsys.readouterr()
    assert told.out == "" and message in told.err


def test_a_report_that_cannot_be_written_is_told_before_anything_is_simulated(
    trace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    taken = tmp_path / "taken"
    taken.write_text("a file")
    arguments = ["--truth", "paper", "--planner", "static", "--trace", str(trace), "--out", str(taken)]
    assert main(arguments) == 2
    told = capsys.readouterr()
    assert told.out == "" and "--out" in told.err and "decisions" not in told.err


def test_missing_data_is_told_with_its_path(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--data", str(tmp_path)]) == 2
    assert "config_speed.txt" in capsys.readouterr().err


def test_clusters_and_spans_are_read() -> None:
    nodes = nodes_of("2x64x256,1x8x16x4")
    assert [node.cpu for node in nodes] == [64, 64, 8] and nodes[2].gpus == {"gpu": 4.0}
    assert minutes("10..30") == (600.0, 1800.0)
    with pytest.raises(InvalidArgument):
        minutes("30..10")


@pytest.mark.long
def test_the_verb_hands_its_options_and_its_exit_code_through(trace: Path, tmp_path: Path) -> None:
    helped = recmesh("simulate", "--help", home=tmp_path)
    assert helped.returncode == 0 and "usage: recmesh simulate" in helped.stdout and "--stop-restart" in helped.stdout
    wrong = recmesh("simulate", "--trace", "nowhere", "--truth", "paper", home=tmp_path)
    assert wrong.returncode == 2 and wrong.stderr.startswith("error: there is no trace 'nowhere'\n  --trace: ")


def test_a_reader_who_has_seen_enough_ends_it_quietly(trace: Path) -> None:
    command = [sys.executable, "-m", "services.brain.simulator", "--truth", "paper", "--planner", "static"]
    with subprocess.Popen(
        [*command, "--trace", str(trace), "--json"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None and process.stderr is not None
        process.stdout.close()
        told = process.stderr.read()
        assert process.wait(60) == 0 and "Traceback" not in told and "Exception" not in told
