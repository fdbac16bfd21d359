"""Batches outside the mesh: order, shares, and states that any number of workers can go on from."""

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recmesh.data import Batch
from recmesh.data.loading import Loader, Share
from recmesh.runtime.errors import FailedPrecondition, InvalidArgument
from recmesh.spec.dataset import DatasetSpec
from tests.support.datasets import clicks, spec, write

ROWS = 530


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> DatasetSpec:
    folder = tmp_path_factory.mktemp("clicks")
    return spec(write(clicks(ROWS), folder / "a.parquet", row_group=100), task_rows=60)


def rows_of(batch: Batch) -> list[int]:
    return [int(row) for row in batch.dense[:, 1]]


def everything(loader: Loader) -> list[int]:
    return [row for batch in loader for row in rows_of(batch)]


def test_each_epoch_has_every_row_once_in_an_order_of_its_own_that_the_seed_decides(dataset: DatasetSpec) -> None:
    rows = everything(Loader(dataset, batch_size=64, epochs=2, seed=5))
    first, second = rows[:ROWS], rows[ROWS:]
    assert sorted(first) == sorted(second) == list(range(ROWS)) and first != second
    assert rows == everything(Loader(dataset, batch_size=100, epochs=2, seed=5))
    assert rows != everything(Loader(dataset, batch_size=64, epochs=2, seed=6))
    unshuffled = dataset.model_copy(update={"shuffle": False})
    assert everything(Loader(unshuffled, batch_size=64)) == list(range(ROWS))


@pytest.mark.parametrize("world", [1, 2, 3, 7, 20])
def test_workers_share_each_epoch_and_their_batches_differ_by_one_at_most(dataset: DatasetSpec, world: int) -> None:
    loaders = [Loader(dataset, batch_size=32, share=Share(rank, world)) for rank in range(world)]
    counts = [len(loader) for loader in loaders]
    assert max(counts) - min(counts) <= 1 and sum(counts) == -(-ROWS // 32)
    parts = [everything(loader) for loader in loaders]
    assert sorted(row for part in parts for row in part) == list(range(ROWS))


@settings(max_examples=40, deadline=None)
@given(
    worlds=st.lists(st.integers(1, 5), min_size=1, max_size=4), batch_size=st.integers(1, 90),
    stops=st.lists(st.integers(0, 12), min_size=20, max_size=20), epochs=st.integers(1, 2),
)
def test_whatever_number_of_workers_goes_on_no_row_is_lost_or_doubled(
    dataset: DatasetSpec, worlds: list[int], batch_size: int, stops: list[int], epochs: int
) -> None:
    seen: list[int] = []
    state = None
    for world in worlds:
        states = []
        for rank in range(world):
            loader = Loader(dataset, batch_size=batch_size, epochs=epochs, seed=3, share=Share(rank, world))
            if state is not None:
                loader.load_state_dict(state)
            for _, batch in zip(range(stops[rank]), loader, strict=False):
                seen += rows_of(batch)
            states.append(json.loads(json.dumps(loader.state_dict())))
        state = Loader.merge(states)
    last = Loader(dataset, batch_size=batch_size, epochs=epochs, seed=3)
    assert state is not None
    last.load_state_dict(state)
    left = len(last)
    batches = list(last)
    seen += [row for batch in batches for row in rows_of(batch)]
    assert sorted(seen) == sorted(list(range(ROWS)) * epochs)
    assert len(batches) == left and all(batch.size == batch_size for batch in batches[:-1] if epochs == 1)


@settings(max_examples=30, deadline=None)
@given(
    world=st.integers(1, 4), epochs=st.integers(1, 2),
    stops=st.lists(st.lists(st.integers(0, 6), min_size=4, max_size=4), min_size=1, max_size=4),
)
def test_each_worker_may_go_on_from_its_own_state(
    dataset: DatasetSpec, world: int, stops: list[list[int]], epochs: int
) -> None:
    seen: list[int] = []
    for rank in range(world):
        loader = Loader(dataset, batch_size=30, epochs=epochs, seed=3, share=Share(rank, world))
        for stop in stops:
            for _, batch in zip(range(stop[rank]), loader, strict=False):
                seen += rows_of(batch)
            state = json.loads(json.dumps(loader.state_dict()))
            loader = Loader(dataset, batch_size=30, epochs=epochs, seed=3, share=Share(rank, world))
            loader.load_state_dict(state)
            assert len(loader.fork()) == len(loader)
        seen += everything(loader.fork())
    assert sorted(seen) == sorted(list(range(ROWS)) * epochs)


def test_one_of_several_workers_states_is_no_other_s(dataset: DatasetSpec) -> None:
    loaders = [Loader(dataset, batch_size=30, share=Share(rank, 2)) for rank in (0, 1)]
    next(loaders[0])
    states = [loader.state_dict() for loader in loaders]
    for share, batch_size in ((Share(1, 2), 30), (Share(0, 3), 30), (Share(), 30), (Share(0, 2), 31)):
        with pytest.raises(FailedPrecondition, match=r"worker 0 of 2 with batches of 30.*Loader\.merge") as refused:
            Loader(dataset, batch_size=batch_size, share=share).load_state_dict(states[0])
        assert refused.value.reason == "UNMERGED"
    with pytest.raises(InvalidArgument, match=r"of 1 of 2 workers there is none: \[1\]"):
        Loader.merge(states[:1])
    with pytest.raises(FailedPrecondition, match="did not begin together"):
        Loader.merge([states[0], Loader(dataset, batch_size=30, share=Share(1, 3)).state_dict()])


def test_a_state_of_other_data_is_refused(dataset: DatasetSpec, tmp_path: Path) -> None:
    state = Loader(dataset, batch_size=10, seed=1).state_dict()
    other = spec(write(clicks(40), tmp_path / "b.parquet"))
    for loader in (Loader(dataset, batch_size=10, seed=2), Loader(other, batch_size=10, seed=1)):
        with pytest.raises(FailedPrecondition, match="other data"):
            loader.load_state_dict(state)
    Loader(dataset, batch_size=99, seed=1).load_state_dict(state)
    with pytest.raises(FailedPrecondition, match="no state"):
        Loader(dataset, batch_size=10).load_state_dict({"version": 7})
    with pytest.raises(FailedPrecondition, match="different data"):
        Loader.merge([state, Loader(other, batch_size=10).state_dict()])


@pytest.mark.parametrize(("wrong", "field"), [
    ({"batch_size": 0}, "batch_size"), ({"batch_size": 1, "epochs": 0}, "epochs"),
])
def test_wrong_numbers_are_named(dataset: DatasetSpec, wrong: dict[str, int], field: str) -> None:
    with pytest.raises(InvalidArgument) as refused:
        Loader(dataset, **wrong)  # type: ignore[arg-type]  # only numbers
    assert refused.value.violations[0].path == field
    with pytest.raises(InvalidArgument, match="0 to 2 of 3 workers"):
        Share(3, 3)
