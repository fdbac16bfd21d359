"""A snapshot as it is exported: every row that was ever trained, and no candidate."""

from dataclasses import replace
from pathlib import Path

import numpy as np

from recmesh.formats.snapshot import open_part, read_table
from recmesh.spec.job import TablePolicy
from recmesh.store import Init, RowBlock, TableSchema, candidates
from recmesh.trainer.finisher.saved import load_saved
from recmesh.trainer.ports import Declared, TableDeclaration
from recmesh.trainer.ps.messages import Declaration, Part, RowGrads
from tests.unit.ps.support import COUNT, Mesh


def _push(mesh: Mesh, ids: list[int], at: int) -> None:
    rows = RowGrads(0, np.array(ids), np.ones((len(ids), 2), np.float32))
    mesh.servers[0].push(Part(mesh.gen, mesh.version, ((0, at, at + 1),), 0, [rows]))


def test_a_row_that_was_trained_before_the_minimum_was_raised_is_exported(tmp_path: Path) -> None:
    table = TableSchema("item", 2, COUNT, Init("normal", 0.1, 7))
    mesh = Mesh(tmp_path, n_ps=1, model=Declaration((table,), ()))
    mesh.begin(1)
    _push(mesh, [1, 2, 3], 0)
    mesh.snapshot = 1
    mesh.mark(0)
    mesh.commit()
    mesh.model = Declaration((replace(table, min_frequency=3),), ())
    mesh.begin(1)
    for at, ids in enumerate(([3, 4, 5], [4], [4]), start=1):
        _push(mesh, ids, at)                                   # 5 is seen once, and 4 is admitted
    mesh.snapshot = 2
    mesh.mark(0)
    mesh.commit()
    uris = mesh.part_uris(2, 1)
    saved = read_table([open_part(uri) for uri in uris], "item")
    assert saved.ids.tolist() == [1, 2, 3, 4, 5]
    assert saved.ids[candidates(mesh.model.tables[0], RowBlock(*saved))].tolist() == [5]
    declared = Declared((TableDeclaration("item", 2, None, None, 7, policy=TablePolicy(min_frequency=3)),))  # type: ignore[arg-type]  # neither is asked
    tables, _ = load_saved(uris, declared)
    assert tables["item"].ids.tolist() == [1, 2, 3, 4]
    mesh.close()
