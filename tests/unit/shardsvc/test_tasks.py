"""Records in columns: what went in comes out, and few bytes are held."""

import tracemalloc
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from recmesh.data.order import Plan, generate
from recmesh.data.records import FileSlice, TaskRecord
from services.shardsvc import wire
from services.shardsvc.domain.journal import Journal
from services.shardsvc.domain.tasks import Tasks

NUMBER = st.integers(0, 2**62)
PIECE = st.builds(
    FileSlice, st.sampled_from("abc"), st.integers(0, 2), st.sampled_from("xy"), NUMBER, NUMBER, NUMBER, NUMBER,
    st.integers(0, 2),
)
RECORD = st.builds(
    TaskRecord, NUMBER, st.just(0), NUMBER, NUMBER, st.integers(0, 2**31), st.integers(0, 2**64 - 1), st.none() | PIECE,
)


@given(st.lists(RECORD, max_size=20), st.data())
def test_what_went_in_comes_out_also_after_the_first_were_forgotten(records: list[TaskRecord], data: Any) -> None:
    tasks = Tasks()
    for record in records:
        tasks.append(record)
    assert list(tasks) == records and len(tasks) == len(records)
    count = data.draw(st.integers(0, len(records)))
    tasks.forget(count)
    assert list(tasks) == records[count:]
    for record in records:
        tasks.append(record)
    assert tasks[:] == [*records[count:], *records]
    files = {(each.file.uri, each.file.size_bytes, each.file.etag, each.file.view) for each in tasks if each.file}
    assert len(tasks._files) == len(files), "files of forgotten tasks are forgotten"


def test_a_task_takes_a_hundred_bytes_of_memory_at_most() -> None:
    """Of a line that is read from its log, as shardsvc reads it."""
    names = [f"s3://a-bucket/with/folders/day=2026-11-23/part-{number:05}.parquet" for number in range(20)]
    slices = tuple(FileSlice(name, 1 << 30, "a-tag-of-the-store", 100 * at, 100) for name in names for at in range(50))
    log = list(wire.chunks(generate(Plan(slices, epochs=10, seed=1, shuffle=True))))
    journal = Journal()
    tracemalloc.start()
    try:
        for sequence, message in enumerate(log, start=1):
            journal.take(sequence, wire.message_of(sequence, message))
        held_bytes, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert journal.line.tasks == 10_000
    assert held_bytes / journal.line.tasks < 100 + 2000 * len(names) / journal.line.tasks
