"""Lines of streams: written ahead, window by window, by any replica, through every interruption."""

import asyncio
import contextlib
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from recmesh.data import TaskReader, TaskRecord
from recmesh.data.records import kind_borders
from recmesh.data.topics import topic_of
from recmesh.formats import IntervalSet
from recmesh.runtime.errors import InvalidArgument, Unavailable
from recmesh.spec.dataset import DatasetSpec
from services.shardsvc.app import Indexer, Runs, Streams, TaskLog, streaming
from services.shardsvc.app.following import Opened
from services.shardsvc.domain.lease import State
from tests.unit.data.test_windows import BEGIN, HOUR, dataset, source
from tests.unit.shardsvc.test_app import JOB, House, request

pytestmark = pytest.mark.asyncio
ROWS, PARTS = 30, 3


class HandClock:
    """Stands still until it is set."""

    def __init__(self, at: float) -> None:
        self.at = at

    def now(self) -> float:
        return self.at

    def monotonic(self) -> float:
        return self.at

    async def sleep(self, delay_s: float) -> None:
        await asyncio.sleep(0)


class Replica:
    """A process of shardsvc over the stores of a house."""

    def __init__(self, house: House, clock: HandClock, *, opened: Opened = topic_of) -> None:
        self.tasks = TaskLog(house.log, Indexer(), clock=clock, opened=opened)
        self.runs = Runs(house.queue, house.runs_store, self.tasks, clock=clock, emit=house.events.append)
        self.streams = Streams(self.tasks, house.queue, active=self.runs.active, clock=clock, opened=opened)


@pytest.fixture
def house() -> House:
    return House()


@pytest.fixture
def clock() -> HandClock:
    return HandClock(BEGIN + 100 * HOUR)


@pytest.fixture
def replicas(house: House, clock: HandClock) -> Iterator[list[Replica]]:
    made = [Replica(house, clock) for _ in range(2)]
    yield made
    for replica in made:
        asyncio.run(replica.streams.stop())


def write_hour(root: Path, hour: int) -> None:
    folder = root / "20240101" / f"{hour:02}"
    folder.mkdir(parents=True)
    for part in range(PARTS):
        items = [hour * 1_000 + part * 100 + row for row in range(ROWS)]
        pq.write_table(pa.table({"item": items, "label": [0.0] * ROWS}), folder / f"{part}.parquet")


def hourly(root: Path, hours: int = 3, **more: Any) -> DatasetSpec:
    """A dataset of so many hours of files; `end` None: an endless one."""
    for hour in range(hours):
        write_hour(root, hour)
    files = [f"{root}/{{YYYY}}{{MM}}{{DD}}/{{HH}}/*.parquet"]
    end = BEGIN + hours * HOUR
    return dataset([source(files=files, **({"end": end} | more))], task_rows=10)


async def items(replica: Replica, spec: DatasetSpec, done: IntervalSet) -> list[int]:
    """What stands at the positions."""
    line, reader = await replica.tasks.line(JOB), TaskReader(spec)
    found: list[int] = []
    for lo, hi in done.pairs():
        tasks = line.tasks_of(lo, hi)
        borders = [at for at in kind_borders(tasks, spec.kinds) if lo < at < hi]
        for first, last in pairwise([lo, *borders, hi]):
            batch = reader.batch(tasks, first, last)
            found += batch.ids["item"].values.tolist()
    return found


async def train(replica: Replica, *, gen: int = 1, most: int = 10**9) -> IntervalSet:
    """Leases and completes until nothing is given any more."""
    done = IntervalSet()
    while done.size < most:
        answer = await replica.runs.lease(JOB, gen, worker="w", shards=2, request_id="")
        if answer.state is not State.GRANTED:
            break
        for lease in answer.leases:
            done.add(lease.lo, lease.hi)
        told = [(lease.epoch, lease.hi, True, 0) for lease in answer.leases]
        await replica.runs.renew(JOB, gen, worker="w", progress=told)
    return done


async def test_a_line_is_written_window_by_window_and_closed_after_the_last(
    house: House, replicas: list[Replica], tmp_path: Path
) -> None:
    spec, first = hourly(tmp_path), replicas[0]
    line, to_do = await first.runs.open(request(spec, epochs=2))
    assert (line.end, to_do, line.closed) == (0, 0, False)
    assert (await first.runs.lease(JOB, 1, worker="w", shards=1, request_id="")).state is State.WAIT
    await first.streams.write(JOB, 1)
    done = await train(first)
    assert done == IntervalSet([(0, 2 * 3 * PARTS * ROWS)])
    assert (await first.runs.lease(JOB, 1, worker="w", shards=1, request_id="")).state is State.DRAINED
    progress = await first.runs.progress(JOB)
    assert progress.drained and progress.line.epochs == 2
    found = await items(first, spec, done)
    half = len(found) // 2
    assert [item // 1_000 for item in found] == 2 * [hour for hour in range(3) for _ in range(PARTS * ROWS)]
    assert sorted(found[:half]) == sorted(found[half:]) and found[:half] != found[half:]


async def test_no_more_is_written_than_a_bound_ahead_of_what_is_leased(
    replicas: list[Replica], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streaming, "AHEAD_TASKS", 5)
    monkeypatch.setattr("recmesh.data.taskgraph.GROUP_FILES", 1)
    spec, first = hourly(tmp_path, 4), replicas[0]
    await first.runs.open(request(spec, epochs=1))
    seen = IntervalSet()
    for _ in range(100):
        await first.streams.write(JOB, 1)
        progress = await first.runs.progress(JOB)
        assert progress.view.queued <= (5 + 3) * 10         # the bound, and one file of three tasks
        if progress.line.closed:
            break
        before = seen.size
        for lo, hi in await train(first, most=20):
            seen.add(lo, hi)
        assert seen.size > before
    for lo, hi in await train(first):
        seen.add(lo, hi)
    assert seen == IntervalSet([(0, 4 * PARTS * ROWS)])


@pytest.mark.parametrize("is_other", [False, True])
@pytest.mark.parametrize("stored", [False, True])
@pytest.mark.parametrize("fail_at", range(1, 12))
async def test_whoever_goes_on_after_an_interruption_leaves_no_gap_and_writes_nothing_twice(
    house: House, replicas: list[Replica], clock: HandClock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    fail_at: int, stored: bool, is_other: bool,
) -> None:
    monkeypatch.setattr("recmesh.data.taskgraph.GROUP_FILES", 1)
    monkeypatch.setattr("services.shardsvc.wire.MOST_RECORDS", 2)       # a file's three tasks are two messages
    spec = hourly(tmp_path, 2)
    house.log.fail_at, house.log.fail_after_storing = fail_at, stored
    for attempt in range(50):
        replica = replicas[attempt % 2 if is_other else 0]
        with contextlib.suppress(Unavailable):
            await replica.runs.open(request(spec, epochs=1))
        await replica.streams._kept(JOB)
        clock.at += streaming.PATIENCE_S
        if not is_other and attempt < 5:
            house.log.fail_at = house.log.appends + 1 + attempt % 2          # again and again
        if (await replica.tasks.journal(JOB)).line.closed:
            break
    done = await train(replicas[0])
    assert done == IntervalSet([(0, 2 * PARTS * ROWS)])
    found = await items(replicas[1], spec, done)
    assert sorted(found) == sorted(h * 1_000 + p * 100 + r for h in range(2) for p in range(PARTS) for r in range(ROWS))


async def test_two_replicas_at_once_write_one_line(
    replicas: list[Replica], clock: HandClock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("recmesh.data.taskgraph.GROUP_FILES", 1)
    monkeypatch.setattr("services.shardsvc.wire.MOST_RECORDS", 2)
    spec = hourly(tmp_path)
    await asyncio.gather(*(replica.runs.open(request(spec, epochs=1)) for replica in replicas * 2))
    for _ in range(200):
        looks = [replica.tasks.journal(JOB, fresh=True) for replica in replicas]
        await asyncio.gather(*(replica.streams._kept(JOB) for replica in replicas), *looks)
        clock.at += streaming.PATIENCE_S
        if (await replicas[0].tasks.line(JOB)).closed:
            break
    done = await train(replicas[1])
    assert done == IntervalSet([(0, 3 * PARTS * ROWS)])
    assert len(set(await items(replicas[0], spec, done))) == 3 * PARTS * ROWS


async def test_an_endless_line_waits_for_its_next_window_and_says_so(
    replicas: list[Replica], clock: HandClock, tmp_path: Path
) -> None:
    spec, first = hourly(tmp_path, 1, end=None, lateness="10m"), replicas[0]
    clock.at = BEGIN + HOUR
    await first.runs.open(request(spec, epochs=1))
    await first.streams.write(JOB, 1)
    state = await first.streams.state(JOB)
    assert state.waits_for == "stream 0, window 2024-01-01T00:00Z: source 0 is complete at 2024-01-01T01:10Z"
    clock.at += 600
    await first.streams.write(JOB, 1)
    assert (await train(first)).size == PARTS * ROWS
    assert (await first.runs.lease(JOB, 1, worker="w", shards=1, request_id="")).state is State.WAIT
    state = await first.streams.state(JOB)
    assert state.event_time == BEGIN and "window 2024-01-01T01:00Z" in state.waits_for
    write_hour(tmp_path, 1)
    clock.at += HOUR
    await replicas[1].streams.write(JOB, 1)                 # another replica goes on
    assert (await train(first)).size == PARTS * ROWS


async def test_a_window_without_files_is_waited_for(replicas: list[Replica], clock: HandClock, tmp_path: Path) -> None:
    spec, first = hourly(tmp_path, 1, end=BEGIN + 2 * HOUR), replicas[0]
    await first.runs.open(request(spec, epochs=1))
    first.runs.active[JOB] = 1
    await first.streams._kept(JOB)
    assert "no file of 2024-01-01T01:00Z matches" in (await first.streams.state(JOB)).waits_for
    write_hour(tmp_path, 1)
    await first.streams._kept(JOB)                          # not looked for again at once
    assert not (await first.tasks.line(JOB)).closed
    clock.at += streaming.PATIENCE_S
    await first.streams._kept(JOB)
    assert (await first.tasks.line(JOB)).closed and (await first.streams.state(JOB)).waits_for == ""
    assert (await train(first)).size == 2 * PARTS * ROWS


async def test_a_rollback_queues_what_the_snapshot_lacks_of_a_line_that_goes_on(
    replicas: list[Replica], tmp_path: Path
) -> None:
    spec, first = hourly(tmp_path), replicas[0]
    await first.runs.open(request(spec, epochs=1))
    await first.streams.write(JOB, 1)
    await train(first, most=60)
    line, to_do = await replicas[1].runs.open(request(spec, epochs=1, gen=2, done=IntervalSet([(0, 40)])))
    assert (line.end, to_do) == (3 * PARTS * ROWS, 3 * PARTS * ROWS - 40)
    assert await train(replicas[1], gen=2) == IntervalSet([(40, 3 * PARTS * ROWS)])


async def test_a_dataset_of_streams_is_inspected_by_its_first_windows(tmp_path: Path, house: House) -> None:
    spec = hourly(tmp_path, 1, end=None)
    assert (await house.datasets.inspect(spec)).index.rows == PARTS * ROWS
    nowhere = hourly(tmp_path / "other", 0, end=None)
    with pytest.raises(InvalidArgument, match="no file of"):
        await house.datasets.inspect(nowhere)


async def test_records_say_which_source_reads_them(replicas: list[Replica], tmp_path: Path) -> None:
    one = hourly(tmp_path / "a", 1).streams[0].sources[0]
    two = hourly(tmp_path / "b", 1).streams[0].sources[0]
    spec = dataset([one.model_dump(), two.model_dump()], task_rows=10)
    await replicas[0].runs.open(request(spec, epochs=1))
    await replicas[0].streams.write(JOB, 1)
    records: list[TaskRecord] = list((await replicas[1].tasks.line(JOB)).records)
    assert {record.file.view for record in records if record.file} == {0, 1}


async def test_a_step_that_another_replica_overtook_writes_nothing(
    house: House, replicas: list[Replica], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("recmesh.data.taskgraph.GROUP_FILES", 1)
    spec, (slow, fast) = hourly(tmp_path, 2), replicas
    for replica in replicas:
        await replica.runs.open(request(spec, epochs=1))
    threaded = slow.streams._threaded
    overtaken = 0

    async def late(call: Any) -> Any:
        """Its answer comes when the other has written all, and this one has read it."""
        nonlocal overtaken
        answer = await threaded(call)
        if not overtaken:
            overtaken = 1
            await fast.streams.write(JOB, 1)
            await slow.tasks.line(JOB, to=2 * PARTS * ROWS)
        return answer

    monkeypatch.setattr(slow.streams, "_threaded", late)
    await slow.streams.write(JOB, 1)
    assert overtaken
    done = await train(slow)
    assert done == IntervalSet([(0, 2 * PARTS * ROWS)])
    assert len(set(await items(slow, spec, done))) == 2 * PARTS * ROWS


async def test_a_reader_who_is_late_does_not_take_the_log_back(
    house: House, replicas: list[Replica], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec, (first, other) = hourly(tmp_path, 2), replicas
    await first.runs.open(request(spec, epochs=1))
    read, began, may_end = house.log.read, asyncio.Event(), asyncio.Event()

    async def slowly(subject: str, from_seq: int = 1) -> Any:
        """What there was when it began."""
        there = [item async for item in read(subject, from_seq)]
        if not began.is_set():
            began.set()
            await may_end.wait()
        for item in there:
            yield item

    monkeypatch.setattr(house.log, "read", slowly)
    first.tasks._journals.clear()
    late = asyncio.create_task(first.tasks.journal(JOB))
    await began.wait()
    await other.runs.open(request(spec, epochs=1))
    await other.streams.write(JOB, 1)
    assert (await first.tasks.journal(JOB)).line.closed
    may_end.set()
    assert (await late).line.closed and (await first.tasks.journal(JOB)).line.closed
