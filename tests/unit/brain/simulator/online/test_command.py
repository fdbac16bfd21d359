import json
from pathlib import Path

import numpy as np
import pytest

from recmesh.runtime.errors import InvalidArgument
from services.brain.simulator.online.command import main
from services.brain.simulator.online.series import per_minute, scaled
from services.brain.simulator.online.truths import A10, T4, needing, theta_named
from tests.unit.cli.test_command import recmesh


@pytest.fixture
def series(tmp_path: Path) -> Path:
    path = tmp_path / "mine.csv"
    hours = np.arange(8 * 24)
    values = 100 + 60 * np.sin(2 * np.pi * hours / 24)
    path.write_text("time,value\n" + "".join(f"{3600 * h},{v:.3f}\n" for h, v in zip(hours, values, strict=True)))
    return path


def test_a_comparison_has_a_table_plots_and_figures(
    series: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    assert main(["--online", str(series), "--planner", "adequate", "--planner", "kale", "--out", str(out)]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("planner") and "adequate" in shown and "0.00%" in shown
    assert (out / "report.html").read_text().count("<svg") == 2
    assert json.loads((out / "figures.json").read_text())["planners"]["adequate"]["lag_minutes"] == 0


@pytest.mark.long
def test_json_is_one_document_and_the_same_again(series: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = []
    for _ in range(2):
        assert main(["--online", str(series), "--planner", "hpa", "--json", "--restart", ".1", "--lead", "10"]) == 0
        found.append(json.loads(capsys.readouterr().out))
    assert found[0] == found[1]
    assert found[0]["planners"]["hpa"]["down_minutes"] == pytest.approx(
        found[0]["planners"]["hpa"]["changes"] * 0.1 / 60
    )


@pytest.mark.long
def test_the_command_line_leads_to_it(series: Path) -> None:
    done = recmesh("simulate", "--online", str(series), "--planner", "adequate", home=series.parent)
    assert done.returncode == 0 and done.stdout.startswith("planner")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--online", "nowhere"], "--online: one of taxi, server"),
        (["--online", "no/where.csv"], "--online: names no file"),
        (["--planner", "best"], "--planner: no 'best' in recmesh.stream_planners: there are autopilot"),
        (["--theta", "fast"], "--theta: 'fast' is none of t4, a10"),
        (["--theta", "a10"], "--peak-workers: a10 is fastest with 10 workers: no load needs 28"),
        (["--step", "100"], "--step: must be whole minutes"),
        (["--every", "450"], "--every: must be whole steps"),
        (["--least", "50"], "--least: must be 1 or more, and not above --most"),
        (["--days", "3"], "--online: a forecast needs 4 days before it"),
    ],
)
def test_what_is_wrong_is_named(
    series: Path, arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--online", str(series), *arguments]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("line", "message"),
    [("x,1\n", "'x' is neither seconds nor an ISO 8601 time"), ("1,-1\n", "-1 is below 0"), ("1,y\n", "'y' is not a")],
)
def test_a_wrong_line_is_named(tmp_path: Path, line: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "wrong.csv"
    path.write_text("time,value\n0,1\n" + line)
    assert main(["--online", str(path)]) == 2
    error = capsys.readouterr().err
    assert "wrong.csv:3" in error and message in error


def test_a_series_is_linear_between_the_middles_of_its_intervals_and_ends_at_a_long_hole() -> None:
    hour = 3600.0
    made = per_minute(np.array([0.0, hour, 30 * 24 * hour, 30 * 24 * hour + hour]), np.array([9.0, 9.0, 10.0, 20.0]))
    assert len(made) == 120 and made[0] == 10.0 and made[-1] == 20.0
    assert made[60] == pytest.approx(15.0, abs=0.1) and (np.diff(made) >= 0).all()


def test_a_scaled_series_needs_the_workers_it_is_scaled_to() -> None:
    peak = needing(T4, 28)
    made = scaled(np.array([3.0, 7.0, 5.0]), peak=peak, ratio=7.65)
    assert made.max() == pytest.approx(peak) and made.min() == pytest.approx(peak / 7.65)
    fewer, enough = T4(np.array([27.0, 28.0]))
    assert fewer < peak < enough
    with pytest.raises(InvalidArgument):
        scaled(np.ones(3), peak=1.0, ratio=2.0)


def test_named_speeds_are_the_published_ones() -> None:
    """MATH section 2."""
    assert T4(np.array([10.0]))[0] == pytest.approx(13_266.34) and A10(np.array([10.0]))[0] == pytest.approx(30_005.46)
    counts = np.arange(1.0, 65.0)
    assert (np.diff(T4(counts)) > 0).all() and int(np.argmax(A10(counts))) == 9
    assert theta_named("0.00035,2.5726,0.9824,0.02786")(counts) == pytest.approx(A10(counts))


def test_without_a_series_it_names_those_there_are_and_help_needs_none(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--online"]) == 2
    assert "mongo-01" in capsys.readouterr().err
    with pytest.raises(SystemExit) as end:
        main(["--online", "--help"])
    assert end.value.code == 0
