"""Within a generation slots only go on; a rollback may take them back."""

from dataclasses import replace
from pathlib import Path

import numpy as np

from recmesh.chaos.course import Standing, setbacks, standing
from recmesh.formats import SLOTS
from tests.unit.ps.support import Mesh

FIRST = Standing(1, 1, np.full(SLOTS, 7), np.full(SLOTS, 70))


def test_a_slot_that_fell_inside_a_generation_is_named() -> None:
    steps = FIRST.steps + 1
    steps[5] = 6
    [text] = setbacks([FIRST, replace(FIRST, snapshot=2, steps=steps)])
    assert "from snapshot 1 to 2" in text and "steps" in text and "[(5, 6)]" in text
    [text] = setbacks([FIRST, replace(FIRST, snapshot=2, positions=FIRST.positions - 1)])
    assert "ledgers" in text


def test_growth_and_a_rollback_are_no_setbacks() -> None:
    assert setbacks([FIRST, replace(FIRST, snapshot=2, steps=FIRST.steps + 1)]) == []
    assert setbacks([FIRST, replace(FIRST, snapshot=2, gen=2, steps=FIRST.steps - 1)]) == []
    assert setbacks([]) == []


def test_it_is_read_from_what_was_saved(tmp_path: Path) -> None:
    mesh = Mesh(tmp_path)
    try:
        mesh.begin(2)
        mesh.push([(0, 0, 8)], [0, 1])
        mesh.snapshot = 1
        for ps in range(2):
            mesh.mark(ps)
        mesh.commit()
    finally:
        mesh.close()
    found = standing(tmp_path / f"{mesh.snapshot:08d}")
    assert found is not None and (found.snapshot, found.gen) == (mesh.snapshot, 1)
    assert set(found.positions.tolist()) == {8} and found.steps.min() >= 1
    assert standing(tmp_path / "nowhere") is None
