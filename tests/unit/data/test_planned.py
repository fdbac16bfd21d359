"""Tasks of a plan by their numbers and positions: those that the plan gives one after the other, in few bytes."""

import gc
import tracemalloc
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recmesh.data import index_dataset, planned
from recmesh.data import slices as slices_module
from recmesh.data.order import Plan, generate
from recmesh.data.planned import PlannedTasks, Shape
from recmesh.data.records import FileSlice, TaskRecord
from recmesh.data.slices import ROW, FileName, Slices
from recmesh.runtime.errors import ResourceExhausted
from tests.support.datasets import clicks, spec, write

NUMBER = st.integers(0, 2**61)
PIECE = st.builds(
    FileSlice, st.sampled_from(["a", "ü", "c/d"]), st.integers(0, 2), st.sampled_from(["x", ""]), NUMBER,
    st.integers(1, 99), NUMBER, NUMBER,
)


def cut(counts: list[int]) -> list[FileSlice]:
    """A file for each count, of so many slices of uneven rows."""
    return [
        FileSlice(f"f{number}", 9, "tag", at * 10, 1 + (number + at) % 10, at * 100, at * 100 + 90)
        for number, count in enumerate(counts) for at in range(count)
    ]


@settings(max_examples=30)
@given(st.lists(PIECE, max_size=30), st.integers(1, 7))
def test_slices_are_as_they_were_put_in_wherever_they_are_kept(pieces: list[FileSlice], block: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(slices_module, "KEPT_BYTES", 100)
        patch.setattr(slices_module, "BLOCK", block)
        found = Slices(pieces[:10])
        found.extend(pieces[10:])
        assert [*found] == pieces and found[:] == pieces and len(found) == len(pieces)
        assert found[3:20:2] == pieces[3:20:2] and found[::-1] == pieces[::-1]
        assert found.rows == sum(piece.rows for piece in pieces)
        if pieces:
            assert found[-1] == pieces[-1]
        assert Slices(pieces[:12]).begins(found)
        assert not Slices([*pieces[:12], FileSlice("z", 0, "", 0, 1)]).begins(found)
        for at in range(len(pieces)):
            other = replace(pieces[at], first_row=pieces[at].first_row + 1)
            assert not Slices([*pieces[:at], other, *pieces[at + 1 :]]).begins(found)


def test_slices_for_which_there_is_no_room_say_so(monkeypatch: pytest.MonkeyPatch) -> None:
    class Full:
        def __init__(self, **more: Any) -> None:
            pass

        def seek(self, at: int) -> None:
            pass

        def write(self, data: bytes) -> None:
            raise OSError(28, "No space left on device")

        def close(self) -> None:
            pass

    monkeypatch.setattr("tempfile.SpooledTemporaryFile", Full)
    with pytest.raises(ResourceExhausted, match="No space left"):
        Slices(cut([3]))


@settings(max_examples=30)
@given(
    st.lists(st.integers(1, 30), min_size=1, max_size=8), st.integers(1, 3), st.integers(0, 2**63 - 1), st.booleans(),
    st.integers(1, 40), st.data(),
)
def test_tasks_by_number_and_position_are_those_of_the_plan_in_its_order(
    counts: list[int], epochs: int, seed: int, shuffle: bool, page: int, data: Any
) -> None:
    pieces = cut(counts)
    want = [replace(each, sequence=7) for each in generate(Plan(pieces, epochs, seed, shuffle))]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(planned, "PAGE", page)
        patch.setattr(planned, "KEPT", 2 * page)
        patch.setattr(slices_module, "BLOCK", 16)
        tasks = PlannedTasks(Slices(pieces), Shape(epochs, seed, shuffle), sequence=7)
        assert (len(tasks), tasks.end) == (len(want) - 1, want[-1].base)
        assert tasks[:] == want[:-1]
        for _ in range(5):
            at = data.draw(st.integers(0, len(tasks) - 1))
            inside = data.draw(st.integers(0, want[at].rows - 1))
            assert tasks[at] == want[at] and tasks.place(want[at].base + inside) == at + 1
        assert (tasks.place(-1), tasks.place(tasks.end), tasks.place(tasks.end + 9)) == (0, len(tasks), len(tasks))


def test_what_is_at_hand_is_what_was_asked_for_last(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planned, "PAGE", 10)
    monkeypatch.setattr(planned, "KEPT", 200)
    tasks = PlannedTasks(Slices(cut([100])), Shape(4, 1, True))
    looked, blocks = list[int](), Slices.blocks

    def counted(self: Slices, *some: int) -> Any:
        looked.append(1)
        return blocks(self, *some)

    monkeypatch.setattr(Slices, "blocks", counted)
    assert not tasks.is_at_hand([(0, 1)]) and not looked, "whoever asks only wants to know"
    first = tasks[0]
    assert tasks.is_at_hand([(0, first.rows)])
    count = len(looked)
    assert tasks[0] == first and len(looked) == count
    last = tasks[-1]
    assert tasks.is_at_hand([(0, 1), (last.base, tasks.end)]) and not tasks.is_at_hand([(0, tasks.end)])
    for at in range(0, len(tasks), 5):
        _ = tasks[at]
    assert not tasks.is_at_hand([(0, 1)]), "pages of before make room"


def ten_files(slices: int) -> Slices:
    found, table = Slices(), np.zeros(slices, ROW)
    table["first_row"], table["rows"] = np.arange(slices) * 100, 100
    for number in range(10):
        found.add(FileName(f"s3://a-bucket/with/folders/part-{number:05}.parquet", 1, "tag"), table)
    return found


@pytest.mark.parametrize("shuffle", [False, True])
def test_the_memory_of_tasks_does_not_grow_with_their_number(shuffle: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of an epoch with ten times as many, and of twenty epochs."""
    monkeypatch.setattr(slices_module, "KEPT_BYTES", 1 << 16)
    monkeypatch.setattr(planned, "PAGE", 1024)
    monkeypatch.setattr(planned, "KEPT", 2048)

    def held_bytes(slices: int, epochs: int) -> int:
        tracemalloc.start()
        try:
            tasks = PlannedTasks(ten_files(slices // 10), Shape(epochs, 1, shuffle))
            for at in range(0, len(tasks), len(tasks) // 5):
                _ = tasks[at]
            gc.collect()                        # free lists, too
            return tracemalloc.get_traced_memory()[0]
        finally:
            tracemalloc.stop()

    few, many, often = held_bytes(10_000, 1), held_bytes(100_000, 1), held_bytes(10_000, 20)
    assert many < 1.1 * few + 50_000 and often < 1.1 * few + 50_000


def test_an_index_holds_slices_by_columns_and_shares_of_them(tmp_path: Path) -> None:
    data = spec(write(clicks(1000), tmp_path / "a.csv"), format="csv", task_rows=64)
    index = index_dataset(data)
    assert isinstance(index.slices, Slices) and index.rows == 1000 and len(index.slices) == 16
    source = data.views()[0].source
    parts = [
        index_dataset(data.model_copy(update={"source": source.model_copy(update={"rows": share})}))
        for share in ((0.0, 0.3), (0.3, 1.0))
    ]
    assert [part.rows for part in parts] == [300, 700]
    assert [piece.first_row for part in parts for piece in part.slices] == sorted(
        {*range(0, 1000, 64), 300}
    )
    task = PlannedTasks(index.slices, Shape(1, 0, False))[15]
    assert task == TaskRecord(0, 0, 960, 40, 0, 0, index.slices[-1])
