"""The store against a dictionary of rows, and its optimizers against torch's."""

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from recmesh.formats import initial_rows, slots_of, table_salt
from recmesh.runtime.errors import DataLoss, InvalidArgument, ResourceExhausted
from recmesh.store import DenseRecord, DenseSchema, Init, Optimizer, RowBlock, Store, TableSchema, kernels
from recmesh.store import index as index_module
from recmesh.store.probing import PARTITIONS
from recmesh.store.row_kernels import BLOCK
from recmesh.store.schema import dense_from_json, dense_to_json, table_from_json, table_to_json
from tests.unit.store.reference import ReferenceTable

KINDS = ("sgd", "adagrad", "rowwise_adagrad", "adam", "ftrl", "accumulate")


def _rows(store: Store, table: int) -> RowBlock:
    return store.tables[table].read(0, store.tables[table].rows)


@settings(max_examples=30, deadline=None)
@given(
    kind=st.sampled_from(KINDS), dim=st.integers(1, 33), init=st.sampled_from(("zeros", "uniform", "normal")),
    decay=st.sampled_from((0.0, 0.01)), seed=st.integers(0, 2**32),
)
def test_pushes_leave_what_the_reference_leaves(
    kind: str, dim: int, init: str, decay: float, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    schema = TableSchema("t", dim, Optimizer(kind, lr=0.1, weight_decay=decay, schedule=((0, 1.0), (4, 0.5)), l1=0.02,
                                             l2=0.01),
                         Init(init, 0.3, seed))
    store, truth = Store(), ReferenceTable(schema)
    table = store.add_table(schema)
    for step in range(6):
        known = np.concatenate((np.arange(40), -np.arange(1, 300) * 7919))
        ids = rng.permutation(known)[:rng.integers(0, 250)]
        grads = rng.normal(size=(len(ids), dim)).astype(np.float32)
        counts = rng.integers(1, 9, len(ids)).astype(np.uint32)
        store.apply(table, ids, grads, counts, step=step)
        truth.push(ids, grads, counts, step=step)
    rows = _rows(store, table)
    assert set(rows.ids.tolist()) == set(truth.values)
    order = rows.ids.tolist()
    np.testing.assert_allclose(rows.values, [truth.values[i] for i in order], rtol=2e-5, atol=2e-6)
    np.testing.assert_allclose(rows.state, np.reshape([truth.state[i] for i in order], rows.state.shape),
                               rtol=2e-5, atol=2e-6)
    assert rows.updates.tolist() == [truth.updates[i] for i in order]
    assert rows.frequency.tolist() == [truth.frequency[i] for i in order]
    assert rows.last_step.tolist() == [truth.last_step[i] for i in order]


@pytest.mark.parametrize("kind", ["zeros", "uniform", "normal"])
def test_an_absent_id_reads_its_initial_value_bit_for_bit_and_is_not_inserted(kind: str) -> None:
    store = Store()
    table = store.add_table(TableSchema("item", 7, Optimizer(), Init(kind, 0.05, 3)))
    ids = np.array([0, -1, 5, 2**62, -(2**63), *range(100, 400)])
    expected = initial_rows(3, table="item", ids=ids, dim=7, kind=kind, scale=0.05)
    assert (store.pull(table, ids).view(np.uint32) == expected.view(np.uint32)).all()
    assert not store.pull(table, ids, absent_as_zero=True).any()
    assert store.rows == 0


def test_an_updated_row_starts_from_its_initial_value() -> None:
    store = Store()
    table = store.add_table(TableSchema("item", 3, Optimizer("accumulate"), Init("normal", 1.0, 9)))
    before = store.pull(table, np.array([42]))
    store.apply(table, np.array([42]), np.ones((1, 3), np.float32), None, step=0)
    assert (store.pull(table, np.array([42])) == before + 1).all()
    assert _rows(store, table).frequency.tolist() == [1]


def test_the_index_grows_through_many_partitions_and_loses_nothing() -> None:
    store = Store()
    tables = [store.add_table(TableSchema(name, 1, Optimizer("accumulate"), Init("zeros"))) for name in "ab"]
    ids = np.random.default_rng(0).integers(-(2**63), 2**63, 120_000)
    ids = np.unique(ids)
    for lo in range(0, len(ids), 5000):
        for table in tables:
            some = ids[lo:lo + 5000]
            store.apply(table, some, (some % 97 + table).astype(np.float32)[:, None], None, step=0)
    for table in tables:
        assert (store.pull(table, ids)[:, 0] == ids % 97 + table).all()
    assert store.rows == 2 * len(ids)
    absent = store.pull(tables[0], ids[:1000] ^ 1) if not np.isin(ids[:1000] ^ 1, ids).any() else np.zeros(1)
    assert not absent.any()


_TORCH: dict[str, Callable[[Any, Any], Any]] = {
    "sgd": lambda torch, w: torch.optim.SGD([w], lr=0.1, weight_decay=0.01),
    "adagrad": lambda torch, w: torch.optim.Adagrad([w], lr=0.1, initial_accumulator_value=0.1, eps=1e-8,
                                                    weight_decay=0.01),
    "adam": lambda torch, w: torch.optim.Adam([w], lr=0.1, weight_decay=0.01),
}


@pytest.mark.parametrize("kind", sorted(_TORCH))
def test_optimizers_agree_with_torch(kind: str) -> None:
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(1)
    ids = np.arange(50)
    optimizer = Optimizer(kind, lr=0.1, weight_decay=0.01)
    store = Store()
    table = store.add_table(TableSchema("t", 8, optimizer, Init("normal", 0.5, 1)))
    block = store.add_dense(DenseSchema("w", (50, 8), optimizer))
    weight = store.pull(table, ids)
    store.create_chunk(block, 0, weight.reshape(-1))
    w = torch.nn.Parameter(torch.from_numpy(weight.copy()))
    theirs = _TORCH[kind](torch, w)
    for step in range(20):
        grad = rng.normal(size=(50, 8)).astype(np.float32)
        w.grad = torch.from_numpy(grad.copy())
        theirs.step()
        store.apply(table, ids, grad, None, step=step)
        store.apply_dense([(block, 0, grad.reshape(-1))], step=step)
    expected = w.detach().numpy()
    np.testing.assert_allclose(store.pull(table, ids), expected, rtol=3e-5, atol=3e-6)
    ((_, _, dense),), _ = store.pull_dense()
    np.testing.assert_allclose(dense.reshape(50, 8), expected, rtol=3e-5, atol=3e-6)


@pytest.mark.parametrize("l1", [0.0, 0.5])
def test_ftrl_agrees_with_keras(l1: float) -> None:
    keras = pytest.importorskip("keras")
    rng, ids = np.random.default_rng(1), np.arange(50)
    optimizer = Optimizer("ftrl", lr=0.1, initial_accumulator=0.1, l1=l1, l2=0.02)
    store = Store()
    table = store.add_table(TableSchema("t", 8, optimizer, Init("normal", 0.5, 1)))
    block = store.add_dense(DenseSchema("w", (50, 8), optimizer))
    weight = store.pull(table, ids)
    store.create_chunk(block, 0, weight.reshape(-1))
    variable = keras.Variable(weight)
    theirs = keras.optimizers.Ftrl(0.1, initial_accumulator_value=0.1, l1_regularization_strength=l1,
                                   l2_regularization_strength=0.02)
    for step in range(20):
        grad = rng.normal(size=(50, 8)).astype(np.float32)
        theirs.apply_gradients([(keras.ops.convert_to_tensor(grad), variable)])
        store.apply(table, ids, grad, None, step=step)
        store.apply_dense([(block, 0, grad.reshape(-1))], step=step)
    expected = np.asarray(variable.value.numpy())
    assert (expected == 0).any() == bool(l1)                      # l1 makes weights exactly zero
    np.testing.assert_allclose(store.pull(table, ids), expected, rtol=1e-4, atol=1e-5)
    ((_, _, dense),), _ = store.pull_dense()
    np.testing.assert_allclose(dense.reshape(50, 8), expected, rtol=1e-4, atol=1e-5)


def test_row_wise_adagrad_of_one_column_is_torchs_adagrad() -> None:
    torch = pytest.importorskip("torch")
    rng, ids = np.random.default_rng(1), np.arange(50)
    store = Store()
    table = store.add_table(TableSchema("t", 1, Optimizer("rowwise_adagrad", lr=0.1), Init("normal", 0.5, 1)))
    w = torch.nn.Parameter(torch.from_numpy(store.pull(table, ids)))
    theirs = torch.optim.Adagrad([w], lr=0.1, initial_accumulator_value=0.1, eps=1e-8)
    for step in range(20):
        grad = rng.normal(size=(50, 1)).astype(np.float32)
        w.grad = torch.from_numpy(grad.copy())
        theirs.step()
        store.apply(table, ids, grad, None, step=step)
    np.testing.assert_allclose(store.pull(table, ids), w.detach().numpy(), rtol=3e-5, atol=3e-6)


def test_adam_corrects_its_bias_by_the_rows_own_count() -> None:
    store = Store()
    table = store.add_table(TableSchema("t", 1, Optimizer("adam", lr=0.1), Init("zeros")))
    grad = np.ones((1, 1), np.float32)
    for step in range(100):
        store.apply(table, np.array([1]), grad, None, step=step)
    store.apply(table, np.array([2]), grad, None, step=100)
    assert store.pull(table, np.array([2]))[0, 0] == pytest.approx(-0.1, rel=1e-4)   # its first step


def test_adam_beyond_the_table_of_corrections_computes_them() -> None:
    optimizer = Optimizer("adam", beta1=0.9999, beta2=0.99999)
    cell, grad = np.zeros(3, np.float32), np.ones(1, np.float32)
    near, far = cell.copy(), cell.copy()
    t = 60_000
    kernels.apply_dense(3, near, 1, grad, t, optimizer.hyper(0), optimizer.bias())
    kernels.apply_dense(3, far, 1, grad, t, optimizer.hyper(0), optimizer.bias()[:4])
    np.testing.assert_allclose(near, far, rtol=1e-6)


def test_the_schedule_is_linear_between_its_points_and_constant_outside() -> None:
    optimizer = Optimizer("sgd", lr=2.0, schedule=((10, 0.0), (20, 1.0), (30, 0.5)))
    assert [optimizer.rate(step) for step in (0, 10, 15, 20, 25, 99)] == [0.0, 0.0, 1.0, 2.0, 1.5, 1.0]


def _filled(rows: int) -> tuple[Store, int]:
    store = Store()
    table = store.add_table(TableSchema("t", 2, Optimizer("accumulate"), Init("zeros")))
    store.apply(table, np.arange(rows), np.ones((rows, 2), np.float32), None, step=0)
    return store, table


@settings(max_examples=20, deadline=None)
@given(st.integers(1, 5 * BLOCK), st.lists(st.integers(0, 6 * BLOCK), min_size=1, max_size=300),
       st.integers(0, 6))
def test_a_marked_copy_holds_the_state_at_the_mark(
    rows: int, touched: list[int], blocks_first: int
) -> None:
    store, table = _filled(rows)
    store.mark()
    out = np.empty((BLOCK, store.tables[table].width), np.float32)
    for block in range(min(blocks_first, store.tables[table].slab.marked_blocks)):
        store.tables[table].slab.copy_block(block, out)                       # copied before the updates
    ids = np.unique(np.array(touched))
    for _ in range(3):
        store.apply(table, ids, np.full((len(ids), 2), 5, np.float32), None, step=1)
    copied = [store.tables[table].decode(out[:store.tables[table].slab.copy_block(block, out)])
              for block in range(blocks_first, store.tables[table].slab.marked_blocks)]
    assert all((block.values == 1).all() and (block.updates == 1).all() for block in copied)
    seen = [id_ for block in copied for id_ in block.ids.tolist()]
    assert seen == list(range(min(rows, blocks_first * BLOCK), rows))
    store.unmark()
    hit = ids[ids < rows]
    assert (store.pull(table, hit) == 16).all()


def test_a_second_mark_does_not_see_the_first_ones_images() -> None:
    store, table = _filled(10)
    store.mark()
    store.apply(table, np.arange(10), np.ones((10, 2), np.float32), None, step=1)
    store.unmark()
    store.mark()
    store.apply(table, np.arange(10), np.ones((10, 2), np.float32), None, step=2)
    assert all((block.values == 2).all() for block in store.copy_rows(table))
    store.unmark()
    assert store.tables[table].memory_bytes == 10 * 4 * store.tables[table].width


def test_a_copy_under_concurrent_updates_is_the_cut() -> None:
    store, table = _filled(40 * BLOCK)
    stop = threading.Event()

    def train() -> None:
        rng = np.random.default_rng(0)
        while not stop.is_set():
            ids = np.unique(rng.integers(0, 41 * BLOCK, 500))
            store.apply(table, ids, np.ones((len(ids), 2), np.float32), None, step=1)

    thread = threading.Thread(target=train)
    store.mark()
    thread.start()
    try:
        blocks = list(store.copy_rows(table))
    finally:
        stop.set()
        thread.join()
    assert sum(len(block) for block in blocks) == 40 * BLOCK
    assert all((block.values == 1).all() for block in blocks)


def test_dense_chunks_keep_their_image_until_copied() -> None:
    store = Store()
    block = store.add_dense(DenseSchema("w", (20_000,), Optimizer("accumulate")))
    for chunk, size in enumerate((16_384, 3_616)):
        store.create_chunk(block, chunk, np.zeros(size, np.float32))
    store.mark()
    store.apply_dense([(block, 0, np.ones(16_384, np.float32))], step=0)
    store.apply_dense([(block, 0, np.ones(16_384, np.float32))], step=0)
    records = list(store.copy_dense(block))
    assert [(r.chunk, r.updates, float(r.values.max())) for r in records] == [(0, 0, 0.0), (1, 0, 0.0)]
    store.unmark()
    chunks, clock = store.pull_dense()
    assert [float(values.max()) for _, _, values in chunks] == [2.0, 0.0]
    assert store.pull_dense(since=clock) == ([], clock)


def test_saved_rows_load_as_they_were() -> None:
    store, table = _filled(3000)
    rows = _rows(store, table)
    twin = Store()
    number = twin.add_table(store.tables[table].schema)
    twin.load_rows(number, rows)
    again = _rows(twin, number)
    for ours, theirs in zip((rows.ids, rows.values, rows.updates, rows.frequency, rows.last_step),
                            (again.ids, again.values, again.updates, again.frequency, again.last_step),
                            strict=True):
        np.testing.assert_array_equal(ours, theirs)
    with pytest.raises(DataLoss, match="twice"):
        twin.load_rows(number, rows.select(rows.ids == 5))


def test_a_replaced_table_keeps_values_and_starts_its_state_anew() -> None:
    store = Store()
    old = store.add_table(TableSchema("t", 2, Optimizer("sgd", lr=1.0), Init("zeros")))
    store.apply(old, np.arange(5), np.ones((5, 2), np.float32), None, step=0)
    new = store.replace_table(old, TableSchema("t", 2, Optimizer("adagrad", initial_accumulator=0.5)))
    rows = _rows(store, new)
    assert (rows.values == -1).all() and (rows.state == 0.5).all() and not rows.updates.any()
    assert rows.frequency.tolist() == [1] * 5 and store.tables[old].rows == 0


def test_a_full_table_refuses_before_anything_changes() -> None:
    store = Store(memory_bytes=64 << 20)
    table = store.add_table(TableSchema("t", 16, Optimizer("adam")))
    capacity = store.tables[table].slab.capacity
    with pytest.raises(ResourceExhausted, match="is full"), store.reserved({table: capacity + 1}):
        pass
    with store.reserved({table: capacity // 2}), pytest.raises(ResourceExhausted), \
            store.reserved({table: capacity // 2 + BLOCK}):
        pass
    with store.reserved({table: capacity // 2}):
        pass


def test_slots_of_ids_are_checked_and_selected_as_the_format_says() -> None:
    ids = np.random.default_rng(0).integers(-(2**62), 2**62, 5000)
    slots = slots_of(ids, "item")
    salt = np.uint64(table_salt("item"))
    owned = np.zeros(4096, np.uint8)
    owned[:2048] = 1
    asked = np.zeros(4096, np.uint32)
    first = int(np.argmax(slots >= 2048))
    assert kernels.first_foreign(ids, salt, owned, asked) == first
    assert asked.tolist() == np.bincount(slots[:first], minlength=4096).tolist()
    places = np.empty(len(ids), np.int64)
    n = kernels.select(ids, salt, owned, places)
    assert places[:n].tolist() == np.flatnonzero(slots < 2048).tolist()
    assert kernels.first_foreign(ids[places[:n]], salt, owned, asked) == -1
    assert asked.sum() == first + n


def test_schemas_survive_json_and_name_what_is_wrong() -> None:
    table = TableSchema("t", 4, Optimizer("adam", schedule=((3, 0.5),)), Init("normal", 0.1, 7))
    dense = DenseSchema("w", (3, 4), Optimizer("sgd"))
    assert table_from_json(table_to_json(table)) == table and dense_from_json(dense_to_json(dense)) == dense
    with pytest.raises(InvalidArgument) as wrong:
        TableSchema("t", 0, Optimizer("lamb", lr=-1, beta2=1.0, schedule=((5, 1.0), (2, 1.0)))).check()
    assert [violation.path for violation in wrong.value.violations] == [
        "tables.t.optimizer.kind", "tables.t.optimizer.lr", "tables.t.optimizer.beta2",
        "tables.t.optimizer.schedule", "tables.t.dim"]
    with pytest.raises(InvalidArgument, match="for tables"):
        DenseSchema("w", (1,), Optimizer("rowwise_adagrad")).check()


def test_loaded_chunks_go_on_where_they_were() -> None:
    store = Store()
    block = store.add_dense(DenseSchema("w", (4,), Optimizer("adam", lr=0.1)))
    store.create_chunk(block, 0, np.zeros(4, np.float32))
    grad = np.ones(4, np.float32)
    store.apply_dense([(block, 0, grad)], step=0)
    store.mark()
    (record,) = store.copy_dense(block)
    store.unmark()
    twin = Store()
    twin.add_dense(DenseSchema("w", (4,), Optimizer("adam", lr=0.1)))
    twin.load_chunk(DenseRecord(0, 0, record.values, record.state, record.updates))
    for target in (store, twin):
        target.apply_dense([(0, 0, grad)], step=1)
    assert (store.pull_dense()[0][0][2] == twin.pull_dense()[0][0][2]).all()


def test_views_of_received_bytes_are_taken_as_they_are() -> None:
    store, table = _filled(4)
    ids: NDArray[np.int64] = np.frombuffer(np.arange(4).tobytes(), np.int64)
    grads = np.frombuffer(np.ones((4, 2), np.float32).tobytes(), np.float32).reshape(4, 2)
    store.apply(table, ids, grads, np.frombuffer(np.ones(4, np.uint32).tobytes(), np.uint32), step=0)
    assert (store.pull(table, ids) == 2).all()


def test_a_push_moves_few_partitions_of_the_index_while_it_grows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index_module, "_MOVED", 1 << 12)
    store = Store(memory_bytes=1 << 30)
    table = store.add_table(TableSchema("t", 1, Optimizer("sgd")))
    moved, gradient = [], np.zeros((200, 1), np.float32)
    for lo in range(0, 1_200_000, 200):
        before = store._index.memory_bytes
        with store.reserved({table: 200}):
            store.apply(table, np.arange(lo, lo + 200), gradient, None, step=1)
        moved.append((store._index.memory_bytes - before) // 16)
    largest = int(store._index.parts[PARTITIONS:2 * PARTITIONS].max()) + 1
    assert sum(moved) > 1_000_000, "it did grow"
    assert max(moved) < (1 << 12) + largest
    assert store.rows == 1_200_000


def test_ftrl_without_an_accumulator_leaves_a_value_without_gradient_as_it_is() -> None:
    store = Store()
    table = store.add_table(TableSchema("t", 2, Optimizer("ftrl", initial_accumulator=0.0), Init("uniform", 0.5)))
    before = store.pull(table, np.array([7]))
    store.apply(table, np.array([7]), np.array([[0.0, 1.0]], np.float32), None, step=1)
    after = store.pull(table, np.array([7]))
    assert after[0, 0] == before[0, 0] and np.isfinite(after).all() and after[0, 1] != before[0, 1]
