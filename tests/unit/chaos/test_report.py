"""What a report says of a loss."""

import math

import pytest

from recmesh.chaos.report import Report


@pytest.mark.parametrize(("loss", "others", "expected"), [
    (0.5, [0.4, 0.6], 0.0), (0.7, [0.4, 0.6], math.sqrt(2)), (0.7, [0.5, 0.5], math.inf), (0.5, [0.5, 0.5], 0.0),
    (0.7, [0.5], None), (math.nan, [0.4, 0.6], None), (0.5, [0.4, math.nan], None),
])
def test_a_loss_is_measured_by_the_spread_of_undisturbed_runs(
    loss: float, others: list[float], expected: float | None
) -> None:
    found = Report("job", 1, loss=loss, undisturbed_losses=others).loss_delta_sd
    assert found is None if expected is None else found == pytest.approx(expected)


@pytest.mark.parametrize(("broken", "problems", "expected"), [
    ("", [], "right"), ("", ["a row is lost"], "wrong"), ("dedup", ["a row is doubled"], "wrong"),
    ("coverage", [], "inconclusive"),
])
def test_a_run_without_a_rule_must_not_be_right(broken: str, problems: list[str], expected: str) -> None:
    report = Report("job", 1, broken=broken, problems=problems)
    assert report.verdict == report.as_document()["verdict"] == expected
