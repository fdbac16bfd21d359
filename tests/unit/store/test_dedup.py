"""The worker's kernels against numpy."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from recmesh.formats import SlotMap, slots_of
from recmesh.store import dedup, scatter_add, split_by_owner, take_rows

_ids = st.lists(st.one_of(st.integers(-3, 3), st.integers(-(2**63), 2**63 - 1)), max_size=200)


@given(_ids)
def test_dedup_gives_distinct_ids_with_inverse_and_counts(values: list[int]) -> None:
    ids = np.array(values, np.int64)
    unique = dedup(ids)
    assert unique.ids.tolist() == list(dict.fromkeys(values))               # in order of first occurrence
    assert (unique.ids[unique.inverse] == ids).all()
    assert unique.counts.tolist() == [values.count(id_) for id_ in unique.ids.tolist()]


@given(_ids, st.integers(1, 20))
def test_scatter_add_sums_the_gradients_of_each_id(values: list[int], dim: int) -> None:
    ids = np.array(values, np.int64)
    unique = dedup(ids)
    grads = np.random.default_rng(0).integers(-9, 9, (len(ids), dim)).astype(np.float32)
    expected = np.zeros((len(unique.ids), dim), np.float32)
    np.add.at(expected, unique.inverse, grads)
    assert (scatter_add(grads, unique.inverse, rows=len(unique.ids)) == expected).all()


@given(_ids, st.integers(1, 5))
def test_each_id_goes_to_the_server_that_owns_its_slot(values: list[int], n_ps: int) -> None:
    ids, slot_map = np.array(values, np.int64), SlotMap.even(1, n_ps)
    parts = split_by_owner(ids, "item", slot_map)
    owners = slot_map.owners[slots_of(ids, "item")]
    assert [part.tolist() for part in parts] == [np.flatnonzero(owners == p).tolist() for p in range(n_ps)]


def test_take_rows_is_indexing() -> None:
    rows = np.arange(12, dtype=np.float32).reshape(4, 3)
    index = np.array([3, 0, 3])
    assert (take_rows(rows, index) == rows[index]).all()
