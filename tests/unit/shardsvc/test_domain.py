from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recmesh.data.order import Plan, generate, row_seed
from recmesh.data.records import FileSlice, TaskRecord
from recmesh.formats import IntervalSet
from recmesh.runtime.errors import FailedPrecondition
from services.shardsvc.domain.cutting import kept_end, shard_batches, shard_end, stolen_from, suspect
from services.shardsvc.domain.line import Line
from services.shardsvc.domain.pace import Pace
from services.shardsvc.domain.run import EPOCHS_PER_LIFE, Run, life_above

COUNTS = st.lists(st.integers(1, 50), min_size=1, max_size=12)


def plan(rows: list[int], *, epochs: int = 2, seed: int = 7, shuffle: bool = True) -> Plan:
    return Plan(tuple(FileSlice(f"f{i}", 1, "t", 0, n) for i, n in enumerate(rows)), epochs, seed, shuffle)


def line(rows: list[int], **more: int | bool) -> Line:
    return Line([replace(record, sequence=3) for record in generate(plan(rows, **more))])  # type: ignore[arg-type]  # epochs, seed, shuffle


@given(COUNTS, st.integers(1, 4), st.integers(0, 2**63 - 1), st.booleans())
def test_the_records_number_every_row_of_every_epoch_once(
    rows: list[int], epochs: int, seed: int, shuffle: bool
) -> None:
    made = plan(rows, epochs=epochs, seed=seed, shuffle=shuffle)
    records = list(generate(made))
    assert len(records) == made.records
    at = 0
    for record in records[:-1]:
        assert record.base == at
        at += record.rows
    assert (records[-1].close, records[-1].base, at) == (True, made.total, made.total)
    for epoch in range(epochs):
        assert sorted(record.file.uri for record in records if record.file and record.epoch == epoch) == sorted(
            f"f{i}" for i in range(len(rows))
        )


def test_epochs_are_shuffled_each_in_its_own_way_and_rows_with_their_own_seeds() -> None:
    records = list(generate(plan([10] * 20)))[:-1]
    first, second = ([r.file for r in records if r.epoch == epoch] for epoch in (0, 1))
    assert first != second
    assert len({record.order_seed for record in records}) == len(records)
    assert all(record.order_seed for record in records)
    for record in records:
        assert record.file is not None
        assert record.order_seed == row_seed(7, record.epoch, int(record.file.uri[1:]))


def test_without_shuffling_files_and_rows_keep_their_order() -> None:
    records = list(generate(plan([10] * 5, shuffle=False)))[:-1]
    assert [record.file.uri for record in records if record.file] == [f"f{i}" for i in range(5)] * 2
    assert all(record.order_seed == 0 for record in records)


@given(COUNTS, st.data())
def test_a_line_finds_the_tasks_of_every_piece(rows: list[int], data: st.DataObject) -> None:
    found = line(rows)
    lo = data.draw(st.integers(0, found.end - 1))
    hi = data.draw(st.integers(lo + 1, found.end))
    tasks = found.tasks_of(lo, hi)
    assert tasks[0].base <= lo < tasks[0].base + tasks[0].rows
    assert tasks[-1].base < hi <= tasks[-1].base + tasks[-1].rows
    assert all(a.base + a.rows == b.base for a, b in pairwise(tasks))


@given(COUNTS, st.lists(st.tuples(st.integers(0, 400), st.integers(1, 50)), max_size=8))
def test_a_line_finds_the_tasks_of_many_pieces_each_once(rows: list[int], drawn: list[tuple[int, int]]) -> None:
    found = line(rows)
    pieces = [(lo, min(found.end, lo + size)) for lo, size in drawn if lo < found.end]
    wanted = {task.base: task for lo, hi in pieces for task in found.tasks_of(lo, hi)}
    assert found.tasks_of_all(pieces) == [wanted[base] for base in sorted(wanted)]


def test_a_log_without_its_close_record_is_no_closed_line() -> None:
    records = list(generate(plan([5, 5])))
    assert not Line(records[:-1]).closed
    assert not Line([]).closed
    assert Line(records).beyond(IntervalSet([(0, 21)]))
    assert not Line(records).beyond(IntervalSet([(0, 20)]))
    assert Line([TaskRecord(0, 0, 0, 0, 1, 0, None, close=True)]).to_do(IntervalSet()) == []


@given(st.integers(1, 10**9), st.integers(1, 500), st.integers(1, 4096), st.integers(1, 512))
def test_a_shard_is_never_empty_nor_larger_than_asked(queued: int, holders: int, batch: int, most: int) -> None:
    batches = shard_batches(queued, holders=holders, batch_size=batch, most=most)
    assert 1 <= batches <= most
    assert batches == most or queued < 2 * holders * batch * most


@given(st.integers(0, 10**6), st.integers(1, 10**6), st.integers(1, 4096), st.integers(1, 64))
def test_a_shard_ends_on_the_grid_or_with_its_piece(lo: int, size: int, batch: int, batches: int) -> None:
    end = shard_end(lo, lo + size, batch_size=batch, batches=batches)
    assert lo < end <= lo + size
    assert end == lo + size or end % batch == 0


@given(st.integers(0, 1000), st.integers(1, 500), st.integers(0, 500), st.integers(1, 64))
def test_the_suspect_is_the_first_batch_after_progress(lo: int, size: int, done: int, batch: int) -> None:
    hi, progress = lo + size, lo + min(done, size)
    found = suspect(lo, progress, hi, batch_size=batch)
    if progress == hi:
        assert found is None
    else:
        assert found is not None
        assert found[0] == progress < found[1] <= hi
        assert found[1] == hi or (found[1] - lo) % batch == 0
        assert found[1] - found[0] <= batch


def run(**more: object) -> Run:
    fields: dict[str, object] = {
        "job_id": "j", "gen": 1, "batch_size": 4, "shard_batches": 2, "ttl_s": 10.0, "done": IntervalSet(),
    }
    return Run(**(fields | more))  # type: ignore[arg-type]  # fields of Run by name


def test_a_newer_generation_takes_over_with_epochs_above_all_older_ones() -> None:
    newer = run(gen=2, done=IntervalSet([(0, 8)]))
    opened = run(life=5).opened(newer)
    assert (opened.gen, opened.life) == (2, 6)
    opening = opened.opening(line([20], epochs=1))
    assert opening.first_epoch == 6 * EPOCHS_PER_LIFE
    assert opening.to_do == ((8, 20),)


def test_opening_the_same_generation_again_keeps_what_was_reconciled_meanwhile() -> None:
    known = run(done=IntervalSet([(0, 12)]), life=3)
    assert known.opened(run()) == known


def test_an_older_generation_is_refused_with_the_current_one() -> None:
    with pytest.raises(FailedPrecondition) as caught:
        run(gen=4).opened(run(gen=3))
    assert (caught.value.reason, caught.value.metadata["gen"]) == ("STALE_GEN", "4")
    with pytest.raises(FailedPrecondition):
        run(gen=4).reconciled(3, IntervalSet())


@given(st.integers(0, 2**52))
def test_epochs_start_above_the_floor_that_parameter_servers_report(floor: int) -> None:
    assert life_above(floor) * EPOCHS_PER_LIFE > floor


def test_pace_is_of_the_last_window_and_forgets_what_a_rollback_took_back() -> None:
    pace = Pace(window_s=10)
    assert (pace.per_s, pace.eta_s(100)) == (0.0, None)
    for second in range(30):
        pace.observe(second * 50, now=float(second))
    assert pace.per_s == 50
    assert pace.eta_s(100) == 2
    pace.observe(10, now=31.0)
    assert pace.per_s == 0


@given(
    lo=st.integers(0, 10_000), length=st.integers(1, 5_000), done=st.integers(0, 4_999), size=st.integers(1, 300),
    batches=st.integers(1, 64),
)
def test_what_a_lease_keeps_or_loses_is_cut_on_its_own_grid(
    lo: int, length: int, done: int, size: int, batches: int
) -> None:
    hi, progress = lo + length, lo + min(done, length - 1)
    for border in (
        kept_end(lo, progress, hi, batch_size=size, batches=batches), stolen_from(lo, progress, hi, batch_size=size)
    ):
        assert progress <= border <= hi
        assert border in (progress, hi) or (border - lo) % size == 0
    stolen = stolen_from(lo, progress, hi, batch_size=size)
    assert stolen < hi, "a thief always gets something"
    assert kept_end(lo, progress, hi, batch_size=size, batches=batches) > progress, "a holder always keeps something"
