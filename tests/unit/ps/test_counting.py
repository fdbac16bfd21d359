"""The property: each position is applied exactly once, under replays, reordering, re-cutting and rollback."""

import tempfile
from pathlib import Path

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from recmesh.formats import slots_of
from recmesh.formats.snapshot import levels, open_part, read_table
from tests.unit.ps.support import Mesh, truth

TOTAL = 60

_piece = st.tuples(st.integers(0, TOTAL - 1), st.integers(1, 12)).map(
    lambda p: (0, p[0], min(TOTAL, p[0] + p[1])))
_action = st.one_of(
    st.tuples(st.just("push"), st.lists(_piece, min_size=1, max_size=2), st.permutations([0, 1, 2]),
              st.integers(1, 6)),
    st.tuples(st.just("mark"), st.permutations([0, 1, 2]), st.lists(_piece, max_size=2), st.booleans()),
    st.tuples(st.just("rollback"), st.integers(1, 3)),
)


def _disjoint(pieces: list[tuple[int, int, int]]) -> list[tuple[int, int, int]]:
    (_, lo, hi), *others = pieces
    return [pieces[0], *(piece for piece in others if piece[1] >= hi or piece[2] <= lo)]


@settings(max_examples=50, deadline=None)
@given(st.integers(1, 3), st.lists(_action, max_size=14))
def test_every_row_ends_at_its_exact_count(n_ps: int, actions: list[tuple[object, ...]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        mesh = Mesh(Path(folder))
        mesh.begin(n_ps)
        for action in actions:
            match action:
                case ("push", list(pieces), list(order), int(times)):
                    servers = [ps for ps in order if ps < mesh.n_ps]
                    # Replays, and a worker that dies on the way: not every server gets the batch.
                    mesh.push(_disjoint(pieces), (servers * 2)[:times])
                case ("mark", list(order), list(pieces), bool(commits)):
                    mesh.snapshot += 1
                    for ps in (ps for ps in order if ps < mesh.n_ps):
                        mesh.mark(ps)
                        for piece in pieces:                        # between the marks
                            mesh.push([piece], range(mesh.n_ps))
                    if commits:
                        mesh.commit()
                        _check_snapshot(mesh)
                case ("rollback", int(servers)):
                    mesh.begin(servers)
        mesh.finish(TOTAL)
        items, users, samples = truth(range(TOTAL))
        assert mesh.counts() == (items, users, [samples] * 2)
        assert all(s.ledgers(mesh.gen).by_all.triples() == [(0, 0, TOTAL)] for s in mesh.servers)
        mesh.close()


def _check_snapshot(mesh: Mesh) -> None:
    """The snapshot itself, read over its chain: each row is what the ledger of its group says."""
    parts = [open_part(uri) for uri in mesh.chain_uris(mesh.committed, mesh.committed_ps)]
    rows = read_table(parts, "item")
    assert (np.diff(rows.ids) > 0).all()
    slots = slots_of(rows.ids, "item")
    for part in levels(parts)[0].parts:
        for group in part.document.groups:
            mine = group.slots[slots]
            items, _, _ = truth([p for lo, hi in group.ledger.line(0) for p in range(lo, hi)])
            owned = {id_ for id_ in items if group.slots[slots_of(np.array([id_]), "item")[0]]}
            found = dict(zip(rows.ids[mine].tolist(), rows.values[mine][:, 0].tolist(), strict=True))
            assert found == {id_: items[id_] for id_ in owned}
