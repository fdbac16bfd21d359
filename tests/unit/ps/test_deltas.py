"""Delta snapshots: what they leave out, and that nothing is missing from what they are read back as."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from recmesh.formats import SLOTS, Ledger, SlotMap
from recmesh.formats.snapshot import PartDocument, SnapshotError, open_part, read_dense, read_table
from recmesh.runtime.errors import DataLoss
from recmesh.trainer.ps.baseline import Baselines
from recmesh.trainer.ps.ledger import Books, Cut
from tests.unit.ps.support import MODEL, Mesh, initial_chunks, truth


@pytest.fixture
def mesh(tmp_path: Path) -> Iterator[Mesh]:
    mesh = Mesh(tmp_path)
    mesh.begin(2)
    yield mesh
    mesh.close()


def _snapshot(mesh: Mesh, *, commit: bool = True) -> list[PartDocument]:
    mesh.snapshot += 1
    for ps in range(mesh.n_ps):
        mesh.mark(ps)
    if commit:
        mesh.commit()
        return [open_part(uri).document for uri in mesh.part_uris(mesh.snapshot, mesh.n_ps)]
    for ps in range(mesh.n_ps):
        mesh.servers[ps].abort_mark(mesh.gen, 1, mesh.snapshot)
    return []


def _items(mesh: Mesh) -> dict[int, float]:
    rows = read_table([open_part(uri) for uri in mesh.chain_uris(mesh.committed, mesh.committed_ps)], "item")
    return dict(zip(rows.ids.tolist(), rows.values[:, 0].tolist(), strict=True))


def test_a_delta_holds_the_rows_that_changed_and_reads_as_the_whole(mesh: Mesh) -> None:
    mesh.push([(0, 0, 100)], [0, 1])
    whole = _snapshot(mesh)
    mesh.push([(0, 100, 102)], [0, 1])
    delta = _snapshot(mesh)
    assert [document.base for document in whole + delta] == [0, 0, 1, 1]
    touched = truth(range(100, 102))
    assert sum(document.rows for document in delta) == len(touched[0]) + len(touched[1])
    assert _items(mesh) == truth(range(102))[0]
    assert (read_dense([open_part(uri) for uri in mesh.chain_uris(2, 2)])["w"] == 102).all()
    mesh.begin(3)                                                   # another number of servers, another generation
    assert mesh.counts() == (*truth(range(102))[:2], [102] * 2)
    mesh.push([(0, 102, 103)], [0, 1, 2])
    assert [document.base for document in _snapshot(mesh)] == [0, 0, 0]


def test_what_changed_before_an_aborted_snapshot_is_in_the_next_one(mesh: Mesh) -> None:
    mesh.push([(0, 0, 50)], [0, 1])
    _snapshot(mesh)
    mesh.push([(0, 50, 55)], [0, 1])
    _snapshot(mesh, commit=False)
    mesh.push([(0, 55, 60)], [0, 1])
    assert [document.base for document in _snapshot(mesh)] == [1, 1]
    assert _items(mesh) == truth(range(60))[0]


def test_nothing_changed_is_an_empty_delta(mesh: Mesh) -> None:
    mesh.push([(0, 0, 50)], [0, 1])
    _snapshot(mesh)
    assert [document.rows for document in _snapshot(mesh)] == [0, 0]
    assert _items(mesh) == truth(range(50))[0]


@pytest.mark.parametrize("victim", [1, 2, 3])
def test_damage_anywhere_in_the_chain_refuses_the_restore(mesh: Mesh, victim: int) -> None:
    for n in range(3):
        mesh.push([(0, 20 * n, 20 * n + 20)], [0, 1])
        _snapshot(mesh)
    path = mesh.folder / f"{victim:08d}" / "ps-000" / "group-0.table-0.arrow"
    good = path.read_bytes()
    path.write_bytes(good[:-9] + bytes([good[-9] ^ 1]) + good[-8:])
    mesh.gen, mesh.version, mesh.n_ps = 2, 2, 1
    server = mesh.server("inc-2-0")
    with pytest.raises(DataLoss, match="checksum"):
        server.restore(mesh.order(0))
    path.write_bytes(good)
    order = mesh.order(0)
    with pytest.raises(DataLoss, match="builds on snapshot 1, which is not there"):
        server.restore(replace(order, parts=order.parts[:4]))
    with pytest.raises(DataLoss, match="of snapshot 1 do not hold each of the slots"):
        server.restore(replace(order, parts=order.parts[:5]))
    server.restore(order)
    server.declare(2, MODEL, initial_chunks(mesh.slot_map, 0))
    mesh.servers = [server]
    assert mesh.counts() == (*truth(range(60))[:2], [60] * 2)


def test_a_chain_of_two_generations_is_refused(mesh: Mesh) -> None:
    mesh.push([(0, 0, 20)], [0, 1])
    _snapshot(mesh)
    mesh.push([(0, 20, 40)], [0, 1])
    _snapshot(mesh)
    path = Path(mesh.part_uris(1, 2)[0]) / "part.json"
    path.write_text(path.read_text().replace('"gen":1', '"gen":7'))
    with pytest.raises(SnapshotError, match="of generation 1 of job job, generation 7"):
        _items(mesh)


def test_removed_rows_are_tombstones_until_they_come_back(mesh: Mesh) -> None:
    """The store's own removal is not needed for this: the server notes ids, and the files carry them."""
    mesh.push([(0, 0, 60)], [0, 1])
    _snapshot(mesh)
    before = _items(mesh)
    ids = np.array(sorted(before)[:12])
    mesh.push([(0, 60, 64)], [0, 1])
    again = truth(range(60, 64))[0]
    for server in mesh.servers:
        server.model.baselines.note_removed(0, ids)
    delta = _snapshot(mesh)
    noted = [table for document in delta for group in document.groups for table in group.tables if table.removed]
    assert sum(table.removed for table in noted) == len(ids)         # each id at the server of its slot
    found = _items(mesh)
    assert not set(ids.tolist()) & set(found) - set(again)           # gone, unless they were trained since
    assert {id_: found[id_] for id_ in again} == {id_: before.get(id_, 0) + n for id_, n in again.items()}
    assert not any(table.removed for document in _snapshot(mesh) for group in document.groups
                   for table in group.tables)                        # they are in the base now
    mesh.begin(2)
    assert set(mesh.counts()[0]) == set(found)


def test_removals_that_an_aborted_snapshot_carried_are_carried_again() -> None:
    cut = [Cut(np.ones(SLOTS, bool), Ledger(), 5)]
    lines = Baselines()
    lines.cut(1, cut, since=1)
    lines.note_removed(0, np.array([3, 4]))
    assert lines.changes(1, since=1).removed_of(0).tolist() == [3, 4]
    lines.cut(2, cut, since=1)                                        # not committed
    lines.note_removed(0, np.array([4, 5]))
    assert lines.changes(1, since=1).removed_of(0).tolist() == [3, 4, 5]
    lines.cut(3, cut, since=1)
    lines.note_removed(0, np.array([6]))
    assert lines.changes(3, since=1).removed_of(0).tolist() == [6]
    assert lines.changes(3, since=2).base == 0                        # slots have moved
    assert lines.changes(2, since=1).base == 0                        # older than a base in use


def test_too_many_removals_make_the_next_snapshot_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("recmesh.trainer.ps.baseline._REMOVED_KEPT", 3)
    lines = Baselines()
    lines.cut(1, [Cut(np.ones(SLOTS, bool), Ledger(), 5)], since=1)
    lines.note_removed(0, np.arange(3))
    assert lines.changes(1, since=1).base == 1
    lines.note_removed(0, np.arange(1))
    assert lines.changes(1, since=1).base == 0


def test_rows_of_the_slower_of_two_groups_count_as_changed_after_they_merged() -> None:
    """Step 3 and step 9 become one group at step 9; an update at step 4 came after the cut at 3 all the same."""
    books, half = Books("x"), np.arange(SLOTS) < SLOTS // 2
    books.begin(gen=1, since=1, owned=np.ones(SLOTS, bool), voids=(),
                cuts=[Cut(half, Ledger([(0, 0, 3)]), 3), Cut(~half, Ledger([(0, 0, 9)]), 9)])
    lines = Baselines()
    lines.cut(1, books.cut(), since=1)
    claim = books.claim(((0, 3, 9),), epoch=0)
    assert claim.steps == (3,)                                        # written as last_step 4
    books.commit(claim)
    assert [group.step for group in books.groups] == [9]
    changes = lines.changes(1, since=1)
    slots = np.array([0, 0, SLOTS - 1, SLOTS - 1], np.uint16)
    assert changes.keep(slots, np.array([3, 4, 9, 10], np.uint64)).tolist() == [False, True, False, True]


def test_a_declaration_that_changes_tables_makes_the_next_snapshot_whole(mesh: Mesh) -> None:
    mesh.push([(0, 0, 20)], [0, 1])
    _snapshot(mesh)
    mesh.close()
    mesh.gen, mesh.version, mesh.n_ps = 2, 2, 1
    mesh.servers = [mesh.server("inc-2-0")]
    mesh.servers[0].restore(mesh.order(0))
    _snapshot(mesh)                                                   # before any worker has declared the model
    mesh.servers[0].declare(2, replace(MODEL, tables=MODEL.tables[::-1]), initial_chunks(SlotMap.even(2, 1), 0))
    assert [document.base for document in _snapshot(mesh)] == [0]
