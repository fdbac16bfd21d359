"""What `recmesh freshness` prints."""

import pytest

from recmesh.cli import model_verbs


@pytest.mark.parametrize(("count", "line"), [
    (3, "may be rolled back to: 1, 2, 3\n"),
    (14, "may be rolled back to: 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, and 2 older ones from 1 on\n"),
])
def test_a_list_that_is_not_complete_says_so(count: int, line: str, capsys: pytest.CaptureFixture[str]) -> None:
    model_verbs._print_freshness({
        "name": "m", "model_version": "1", "fresh_version": count, "job_id": "j", "held": False, "follows": True,
        "committed_at": 0.0, "error": "", "versions": list(range(1, count + 1)), "tables": {},
    })
    assert line in capsys.readouterr().out
