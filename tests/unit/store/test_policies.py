"""Admission by frequency, eviction by age and by frequency within a budget, values in bfloat16."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from recmesh.formats import SLOTS, slots_of
from recmesh.runtime.errors import InvalidArgument
from recmesh.store import Init, Optimizer, RowBlock, Store, TableSchema
from recmesh.store.schema import table_from_json, table_to_json

EVERYWHERE = np.ones(SLOTS, np.bool_)


def _store(schema: TableSchema) -> tuple[Store, int]:
    store = Store(memory_bytes=64 << 20)
    return store, store.add_table(schema)


def _ones(ids: NDArray[np.int64], dim: int = 2) -> NDArray[np.float32]:
    return np.ones((len(ids), dim), np.float32)


def _all(store: Store, table: int) -> RowBlock:
    blocks = list(store.scan(table, EVERYWHERE))
    found = blocks[0]
    for block in blocks[1:]:
        found = found + block
    return found.select(np.ones(len(found), np.bool_))


# ---- admission


@settings(max_examples=40, deadline=None)
@given(minimum=st.integers(1, 6), half=st.booleans(), seed=st.integers(0, 2**32))
def test_an_id_is_trained_from_the_push_that_reaches_the_minimum(minimum: int, half: bool, seed: int) -> None:
    rng = np.random.default_rng(seed)
    schema = TableSchema("t", 2, Optimizer("accumulate"), Init("normal", 1.0, 5), min_frequency=minimum,
                         dtype="bfloat16" if half else "float32")
    store, table = _store(schema)
    first = store.pull(table, np.arange(60))
    seen, pushes, trained = Counter[int](), Counter[int](), Counter[int]()
    for step in range(8):
        ids = np.unique(rng.integers(0, 60, 30))
        counts = rng.integers(1, 3, len(ids)).astype(np.uint32)
        store.apply(table, ids, np.full((len(ids), 2), 1024, np.float32), counts, step=step)
        for id_, count in zip(ids.tolist(), counts.tolist(), strict=True):
            seen[id_] += count
            pushes[id_] += 1
            trained[id_] += seen[id_] >= minimum
        if step == 3:                                            # a snapshot loses nothing of candidates
            store.mark()
            blocks = list(store.copy_rows(table))
            store.unmark()
            store, table = _store(schema)
            for block in blocks:
                store.load_rows(table, block)
    values = store.pull(table, np.arange(60))
    for id_ in range(60):
        grown = np.round((values[id_] - first[id_]) / 1024)
        assert (grown == trained[id_]).all()
        if not trained[id_]:
            assert (values[id_] == first[id_]).all()
    rows = _all(store, table)
    assert dict(zip(rows.ids.tolist(), rows.frequency.tolist(), strict=True)) == dict(seen)
    assert dict(zip(rows.ids.tolist(), rows.updates.tolist(), strict=True)) == dict(pushes)
    assert store.tables[table].rows == sum(map(bool, trained.values()))


def test_candidates_are_small_and_serve_as_never_seen() -> None:
    store, table = _store(TableSchema("t", 128, Optimizer("adam"), Init("normal", 1.0), min_frequency=2))
    ids = np.arange(1000)
    store.apply(table, ids, _ones(ids, 128), None, step=0)
    assert store.tables[table].memory_bytes == 32 * 1000 and store.rows == 0
    assert not store.pull(table, ids, absent_as_zero=True).any()
    store.apply(table, ids, _ones(ids, 128), None, step=1)
    assert store.rows == 1000 and store.tables[table].candidates.rows == 0
    assert store.pull(table, ids, absent_as_zero=True).any(axis=1).all()


def test_a_candidate_at_the_mark_is_in_the_copy_though_it_was_admitted_since() -> None:
    store, table = _store(TableSchema("t", 2, Optimizer("adagrad"), Init("uniform"), min_frequency=2))
    ids = np.arange(3000)
    first = store.pull(table, ids)
    store.apply(table, ids, _ones(ids), None, step=0)
    store.mark()
    store.apply(table, ids, _ones(ids), None, step=1)
    store.remove_rows(table, ids[:1000])
    blocks = list(store.copy_rows(table))
    store.unmark()
    found = np.concatenate([block.ids for block in blocks])
    assert sorted(found.tolist()) == ids.tolist()
    assert (np.concatenate([block.values for block in blocks]) == first[found]).all()
    assert all((block.frequency == 1).all() for block in blocks)


def test_whole_rows_change_between_candidate_and_row_as_they_are_put() -> None:
    store, table = _store(TableSchema("t", 2, Optimizer("adagrad"), Init("uniform"), min_frequency=3))
    ids = np.arange(50)
    store.apply(table, ids, _ones(ids), None, step=0)
    young = store.read_rows(table, ids)
    store.apply(table, ids, _ones(ids), np.full(50, 2, np.uint32), step=1)
    old = store.read_rows(table, ids)
    for block, rows in ((young, 0), (old, 50), (young, 0)):
        store.upsert_rows(table, block)
        again = store.read_rows(table, block.ids)
        assert store.tables[table].rows == rows and store.tables[table].candidates.rows == 50 - rows
        np.testing.assert_array_equal(again.values[np.argsort(again.ids)], block.values[np.argsort(block.ids)])
    # A trained row stays a row however rare it is: the minimum may have been raised since.
    trained = RowBlock(young.ids, young.values + 1, young.state, young.updates, young.frequency, young.last_step)
    store.upsert_rows(table, trained)
    assert store.tables[table].rows == 50


# ---- eviction


def test_rows_that_no_step_touched_for_their_time_go_and_are_counted() -> None:
    store, table = _store(TableSchema("t", 2, Optimizer("accumulate"), Init("zeros"), ttl_steps=10))
    old, live = np.arange(0, 300), np.arange(300, 400)
    for step in range(3):
        store.apply(table, old, _ones(old), None, step=step)
    gone: list[int] = []
    for step in range(3, 40):
        gone += store.apply(table, live, _ones(live), None, step=step).tolist()
        if step < 12:
            assert not gone                                                   # the last update was step 3
    assert sorted(gone) == old.tolist() and store.rows == 100
    by_slot = np.bincount(slots_of(old, "t"), minlength=SLOTS) * 3
    assert (store.evicted == by_slot).all()
    live_updates = store.read_rows(table, live).updates.sum()
    assert int(store.evicted.sum() + live_updates) == 3 * 300 + 37 * 100       # nothing is lost from the count


def test_an_evicted_id_that_comes_back_starts_anew() -> None:
    store, table = _store(TableSchema("t", 2, Optimizer("accumulate"), Init("zeros"), ttl_steps=2))
    one, other = np.array([1]), np.array([2])
    store.apply(table, one, _ones(one), None, step=0)
    for step in range(1, 4):
        store.apply(table, other, _ones(other), None, step=step)
    assert not store.pull(table, one).any()
    store.apply(table, one, _ones(one), None, step=4)
    assert (store.pull(table, one) == 1).all() and store.read_rows(table, one).updates.tolist() == [1]


def test_only_the_groups_slots_are_evicted() -> None:
    store, table = _store(TableSchema("t", 2, Optimizer("accumulate"), Init("zeros"), ttl_steps=2))
    ids = np.arange(200)
    store.apply(table, ids, _ones(ids), None, step=0)
    half = np.arange(SLOTS) < SLOTS // 2
    mine = half[slots_of(ids, "t")]
    gone = store.apply(table, ids[:0], _ones(ids[:0]), None, step=50, slots=half)
    assert sorted(gone.tolist()) == ids[mine].tolist() and store.rows == int((~mine).sum())


def test_candidates_age_too() -> None:
    store, table = _store(TableSchema("t", 2, Optimizer("accumulate"), Init("zeros"), min_frequency=3, ttl_steps=5))
    ids, live = np.arange(100), np.array([1000])
    store.apply(table, ids, _ones(ids), None, step=0)
    for step in range(1, 9):
        store.apply(table, live, _ones(live), None, step=step)
    assert store.tables[table].candidates.rows == 0 and store.tables[table].rows == 1
    assert int(store.evicted.sum()) == 100


def test_a_budget_keeps_the_frequent() -> None:
    width_bytes = 4 * 8
    budget = 4000 * width_bytes
    store, table = _store(TableSchema("t", 1, Optimizer("accumulate"), Init("zeros"), max_bytes=budget))
    often, rng, applied = np.arange(1000), np.random.default_rng(0), 0
    for step in range(200):
        rare = np.unique(rng.integers(10_000, 10_000_000, 200))
        ids = np.concatenate((often, rare))
        store.apply(table, ids, _ones(ids, 1), None, step=step)
        applied += len(ids)
    assert store.tables[table].memory_bytes <= budget + 200 * width_bytes
    assert (store.read_rows(table, often).updates == 200).all()                # never one that is often used
    assert int(store.evicted.sum()) + int(_all(store, table).updates.sum()) == applied
    store.share = 0.5                                                          # half of the slots have left
    for step in range(200, 300):
        store.apply(table, often, _ones(often, 1), None, step=step)
    assert store.tables[table].memory_bytes <= budget // 2 + width_bytes


def test_eviction_beside_a_copy_leaves_the_cut_and_its_counter_whole() -> None:
    store, table = _store(TableSchema("t", 2, Optimizer("accumulate"), Init("zeros"), ttl_steps=5))
    ids, live = np.arange(5000), np.arange(6000, 6400)
    store.apply(table, ids, _ones(ids), None, step=0)
    store.mark()
    for step in range(1, 60):
        store.apply(table, live, _ones(live), None, step=step)
    assert store.rows == 400 and int(store.evicted.sum()) == 5000
    copied = [block for block in store.copy_rows(table) if len(block)]
    assert sorted(id_ for block in copied for id_ in block.ids.tolist()) == ids.tolist()
    assert all((block.updates == 1).all() and (block.values == 1).all() for block in copied)
    assert not store.evicted_at_mark.any()
    store.unmark()


# ---- bfloat16


def _rounded(values: NDArray[np.float32]) -> NDArray[np.float32]:
    torch = pytest.importorskip("torch")
    made: NDArray[np.float32] = torch.from_numpy(values).to(torch.bfloat16).float().numpy()
    return made


@pytest.mark.parametrize("dim", [1, 7, 16])
def test_bfloat16_values_take_half_and_read_as_torch_rounds_them(dim: int) -> None:
    store, table = _store(TableSchema("t", dim, Optimizer("sgd", lr=0.0), Init("normal", 1.0), dtype="bfloat16"))
    twin, other = _store(TableSchema("t", dim, Optimizer("sgd", lr=0.0), Init("normal", 1.0)))
    ids = np.arange(500)
    expected = _rounded(twin.pull(other, ids))
    assert (store.pull(table, ids) == expected).all()
    store.apply(table, ids, np.zeros((500, dim), np.float32), None, step=0)
    assert (store.pull(table, ids) == expected).all() and (store.read_rows(table, ids).values == expected).all()
    odd = np.array([[np.inf, -np.inf, np.nan, -0.0, 3.4e38, 1e-40, 1.0][:dim]] * 500, np.float32)
    if dim == 7:
        rows = store.read_rows(table, ids)
        store.upsert_rows(table, RowBlock(rows.ids, odd, rows.state, rows.updates, rows.frequency, rows.last_step))
        np.testing.assert_array_equal(store.pull(table, ids), _rounded(odd))
    if dim == 16:
        assert store.tables[table].width == 16 and twin.tables[other].width == 24


def test_bfloat16_keeps_the_mean_of_updates_below_its_unit() -> None:
    store, table = _store(TableSchema("t", 4, Optimizer("accumulate"), Init("zeros"), dtype="bfloat16"))
    ids = np.arange(2000)
    store.apply(table, ids, np.ones((2000, 4), np.float32), None, step=0)
    for step in range(1, 101):
        store.apply(table, ids, np.full((2000, 4), 1e-3, np.float32), None, step=step)   # a unit is 2**-7
    assert store.pull(table, ids).mean() == pytest.approx(1.1, abs=2e-3)
    again, number = _store(store.tables[table].schema)
    again.apply(number, ids, np.ones((2000, 4), np.float32), None, step=0)
    for step in range(1, 101):
        again.apply(number, ids, np.full((2000, 4), 1e-3, np.float32), None, step=step)
    assert (again.pull(number, ids) == store.pull(table, ids)).all()           # the same pushes, the same rows


@pytest.mark.parametrize("kind", ["sgd", "adagrad", "rowwise_adagrad", "adam", "ftrl"])
def test_bfloat16_follows_float32(kind: str) -> None:
    ids, rng = np.arange(400), np.random.default_rng(2)
    pair = [_store(TableSchema("t", 8, Optimizer(kind, lr=0.05), Init("normal", 0.5), dtype=dtype))
            for dtype in ("float32", "bfloat16")]
    for step in range(20):
        grads = rng.normal(size=(400, 8)).astype(np.float32)
        for store, table in pair:
            store.apply(table, ids, grads, None, step=step)
    exact, near = (store.pull(table, ids) for store, table in pair)
    assert np.abs(exact - near).mean() < 0.02 * np.abs(exact).mean()


def test_another_dtype_keeps_values_state_and_counts() -> None:
    store, table = _store(TableSchema("t", 4, Optimizer("adagrad"), Init("uniform")))
    ids = np.arange(100)
    store.apply(table, ids, _ones(ids, 4), None, step=0)
    before = store.read_rows(table, ids)
    after = store.read_rows(store.replace_table(table, TableSchema("t", 4, Optimizer("adagrad"), Init("uniform"),
                                                                   dtype="bfloat16")), ids)
    assert (after.values == _rounded(before.values)).all() and (after.state == before.state).all()
    assert (after.updates == 1).all()


def test_what_cannot_be_a_policy_is_refused_by_name() -> None:
    with pytest.raises(InvalidArgument) as caught:
        TableSchema("t", 4, Optimizer("ftrl", lr=0.0), min_frequency=0, ttl_steps=-1, dtype="float16").check()
    assert {violation.path for violation in caught.value.violations} == {
        "tables.t.optimizer.lr", "tables.t.min_frequency", "tables.t.ttl_steps", "tables.t.dtype"}


def test_policies_are_in_the_tables_json_and_need_not_be() -> None:
    schema = TableSchema("t", 4, min_frequency=3, ttl_steps=9, max_bytes=1 << 20, dtype="bfloat16")
    assert table_from_json(table_to_json(schema)) == schema
    older = {key: value for key, value in table_to_json(TableSchema("t", 4)).items()
             if key not in ("min_frequency", "ttl_steps", "max_bytes", "dtype")}
    assert table_from_json(older) == TableSchema("t", 4)
