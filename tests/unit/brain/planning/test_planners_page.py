"""docs/reference/planners.md says what the code says."""

import ast
import inspect
import itertools
import re
from pathlib import Path

from recmesh.plugins import planning
from recmesh.plugins.planning import Reason
from services.brain.domain.planning.built_in import PLANNERS

PAGE = (Path(__file__).parents[4] / "docs" / "reference" / "planners.md").read_text(encoding="utf-8")


def documented() -> dict[str, str]:
    """Each reason and the string below it."""
    tree = ast.parse(inspect.getsource(planning))
    body = next(node.body for node in tree.body if isinstance(node, ast.ClassDef) and node.name == "Reason")
    found = {}
    for member, text in itertools.pairwise(body):
        if isinstance(member, ast.Assign) and isinstance(member.targets[0], ast.Name):
            assert isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant), (
                f"{member.targets[0].id} is bare"
            )
            found[member.targets[0].id] = inspect.cleandoc(str(text.value.value)).replace("\n", " ")
    return found


def test_the_table_of_reasons_is_that_of_the_code() -> None:
    rows = re.findall(r"^\| `([A-Z_]+)` \| (\d+) \| (.+) \|$", PAGE, re.MULTILINE)
    assert [(name, int(number)) for name, number, _ in rows] == [(each.name, each.value) for each in sorted(Reason)]
    assert {name: words for name, _, words in rows} == documented()


def test_the_table_of_planners_names_all_that_are_built_in() -> None:
    named = re.findall(r"^\| `([a-z-]+)` \|", PAGE, re.MULTILINE)
    assert named == list(PLANNERS)
