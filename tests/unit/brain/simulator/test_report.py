"""Figures, tables and plots."""

import math
from xml.etree import ElementTree

import numpy as np
import pytest

from services.brain.simulator import report, svg
from services.brain.simulator.engine import simulate
from services.brain.simulator.metrics import course, figures
from services.brain.simulator.policy import Policy
from tests.unit.brain.simulator.test_engine import INSTANT, run
from tests.unit.brain.simulator.worlds import TRUTH, AsAsked, Growing, job, settings


def test_figures_of_two_jobs_by_hand() -> None:
    """Each holds 2 + 1 cores and uses 1.5 + .5 of them for its 600 s and 1,200 s, on 32 cores."""
    outcome = run(job("a"), job("b", at=100.0, samples=60_000.0))
    found = figures(outcome)
    assert found.jct_mean_s == pytest.approx(900.0) and found.jct_median_s == pytest.approx(900.0)
    assert found.jct_p90_s == pytest.approx(1140.0)
    assert found.makespan_s == pytest.approx(1300.0)
    assert found.cur == pytest.approx(2 / 3)
    assert found.allocated == pytest.approx(3 * 1800 / (32 * 1300))
    assert found.jcr == found.jcr_small == 1.0 and math.isnan(found.jcr_large)
    assert found.document()["jcr_large"] is None


def test_a_deadline_is_met_by_who_ends_before_it() -> None:
    from dataclasses import replace

    outcome = run(replace(job("a"), deadline_s=700.0), replace(job("b"), deadline_s=500.0), job("c"))
    assert figures(outcome).deadlines_met == 0.5


def test_the_course_adds_up_to_what_was_held() -> None:
    outcome = run(job("a"), job("b", at=100.0, samples=60_000.0))
    over_time = course(outcome, spans=13)
    assert over_time.held.mean() == pytest.approx(figures(outcome).allocated)
    assert np.all(over_time.used <= over_time.held + 1e-12)
    assert over_time.held[0] == pytest.approx(3 / 32) and over_time.held[5] == pytest.approx(3 / 32 * 2)


def test_a_comparison_is_over_jobs_that_both_ended() -> None:
    jobs = [job("a"), job("b", at=100.0, samples=600_000.0)]
    outcomes = {
        "growing": simulate(jobs, TRUTH, Policy("growing", Growing(4), costs=INSTANT), settings(until_s=11_000.0)),
        "as-asked": simulate(jobs, TRUTH, Policy("as-asked", AsAsked(), costs=INSTANT), settings(until_s=11_000.0)),
    }
    assert figures(outcomes["as-asked"]).ended == 1
    (sentence,) = report.against(outcomes)
    assert sentence.startswith("growing: mean JCT") and "shorter than as-asked (over 1 jobs" in sentence


def test_empty_columns_are_left_out_of_the_table() -> None:
    found = {"as-asked": figures(run(job()))}
    text = report.table(report.COLUMNS, report.rows(found))
    assert "≥ 100 CPU" not in text and "in time" not in text
    assert text.splitlines()[0].split()[0] == "planner" and "10.0 min" in text


def test_the_page_is_whole_and_has_both_plots() -> None:
    page = report.page("a <title>", {"as-asked": run(job())}, {"seed": "1"})
    assert "a &lt;title&gt;" in page and page.count("<svg") == 2
    assert "http" not in page.replace("http://www.w3.org/2000/svg", "")  # nothing is fetched
    for part in page.split("<svg")[1:]:
        ElementTree.fromstring("<svg" + part.partition("</svg>")[0] + "</svg>")


def test_an_axis_of_times_has_named_ticks_and_a_logarithmic_place() -> None:
    axis = svg.seconds(1.0, 3600.0, "time")
    assert [label for _, label in axis.ticks] == ["1 s", "10 s", "1 min", "10 min", "1 h"]
    assert axis.share(60.0) == pytest.approx(0.5)
    assert [label for _, label in svg.days(7 * 86_400.0, "t").ticks][:2] == ["0 d", "2 d"]


@pytest.mark.parametrize(
    ("seconds", "text"), [(61.2, "61.2 s"), (600, "10.0 min"), (7200, "2.0 h"), (200_000, "2.3 d"), (math.nan, "")]
)
def test_spans_are_told_in_the_unit_a_person_would_use(seconds: float, text: str) -> None:
    assert report.span(seconds) == text
