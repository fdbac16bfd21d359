from pathlib import Path

import pytest

from services.jobmaster.domain import phase as phases
from services.jobmaster.domain.phase import ENDED, MEANING, TRANSITIONS, IllegalTransition, Phase

PAGE = Path(__file__).parents[3] / "docs" / "reference" / "job-states.md"


def test_the_reference_page_is_what_the_table_draws() -> None:
    assert PAGE.read_text() == phases.page(), (
        "run: python -m services.jobmaster.domain.phase > docs/reference/job-states.md"
    )


def test_every_phase_has_a_row_and_a_meaning() -> None:
    assert set(TRANSITIONS) == set(MEANING) == set(Phase)


def test_nothing_leaves_an_ended_phase_and_every_other_one_can_fail_or_stop() -> None:
    assert {Phase.SUCCEEDED, Phase.FAILED, Phase.STOPPED} == ENDED
    for source, following in TRANSITIONS.items():
        if source not in ENDED:
            assert {Phase.FAILED, Phase.STOPPED} <= set(following)


def test_every_live_phase_can_be_suspended_and_comes_back_to_pending() -> None:
    for source, following in TRANSITIONS.items():
        if source not in ENDED | {Phase.SUSPENDED}:
            assert Phase.SUSPENDED in following
    assert Phase.PENDING in TRANSITIONS[Phase.SUSPENDED]


def test_success_comes_from_running_only() -> None:
    assert [source for source, following in TRANSITIONS.items() if Phase.SUCCEEDED in following] == [Phase.RUNNING]


def test_an_edge_that_the_table_has_not_is_refused() -> None:
    phases.check(Phase.RUNNING, Phase.SCALING)
    with pytest.raises(IllegalTransition):
        phases.check(Phase.SUCCEEDED, Phase.RUNNING)
