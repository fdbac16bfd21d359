"""Lines of topics: messages as they come, window by window with files beside them, through every interruption."""

import asyncio
import contextlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recmesh.data.records import FileSlice, TaskRecord
from recmesh.formats import IntervalSet
from recmesh.runtime.errors import DataLoss, FailedPrecondition, InvalidArgument, NotFound, Unavailable
from recmesh.runtime.events.catalog import TOPIC_OBSERVED
from recmesh.spec.dataset import DatasetSpec
from services.shardsvc import wire
from services.shardsvc.app import Datasets, Indexer, Lags, Offsets, offsets
from services.shardsvc.domain import alignment
from services.shardsvc.domain.journal import Message
from services.shardsvc.domain.line import Line
from services.shardsvc.store.durable import task_subject
from tests.support.topics import MemoryTopic
from tests.unit.data.test_windows import BEGIN, HOUR, dataset, source
from tests.unit.shardsvc.test_app import JOB, House, request
from tests.unit.shardsvc.test_streams import PARTS, ROWS, HandClock, Replica, items, train, write_hour

TYPES = {"item": "int", "label": "float"}
FIRST, SECOND = "jetstream:clicks-0", "jetstream:clicks-1"


def topic_source(**more: Any) -> dict[str, Any]:
    return {"jetstream": "clicks-*", "start": "earliest", "types": TYPES} | more


def clicks(*sources: dict[str, Any], **more: Any) -> DatasetSpec:
    return dataset(list(sources or [topic_source()]), **({"shuffle": False} | more))


class World:
    """A house, its clock, a topic of two partitions, and two replicas."""

    def __init__(self) -> None:
        self.house, self.clock, self.topic = House(), HandClock(BEGIN + 100.0), MemoryTopic()
        self.replicas = [Replica(self.house, self.clock, opened=lambda source: self.topic) for _ in range(2)]
        self.offsets = Offsets(self.replicas[0].tasks, opened=lambda source: self.topic)
        self.sent: list[int] = []
        self.topic.messages = {FIRST: [], SECOND: []}

    def send(self, count: int, *, partition: int = 0, time: float | None = None) -> None:
        """So many events, each with a number of its own."""
        for _ in range(count):
            number = len(self.sent)
            value = json.dumps({"item": number, "label": 0.0, "beside": "x"}).encode()
            self.topic.put(partition, value, time=self.clock.at if time is None else time)
            self.sent.append(number)

    async def write(self, replica: int = 0, *, after_s: float = 10.0) -> None:
        """Looks of the writer, so much later: none of what was sent lingers any more."""
        for _ in range(2):
            self.clock.at += after_s / 2
            await self.replicas[replica].streams._kept(JOB)


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    made = World()
    for module in ("recmesh.data.topics.reader", "recmesh.data.index"):
        monkeypatch.setattr(f"{module}.topic_of", lambda source: made.topic)
    yield made
    for replica in made.replicas:
        asyncio.run(replica.streams.stop())


@pytest.mark.asyncio
async def test_what_comes_is_trained_once_in_the_order_of_each_partition(world: World) -> None:
    spec, first = clicks(), world.replicas[0]
    world.send(25)
    world.send(5, partition=1)
    await first.runs.open(request(spec, epochs=1))
    await world.write()
    done = await train(first)
    world.send(40, partition=1)
    await world.write()
    more = await train(first)
    assert (done.size, more.size) == (30, 40)
    found = await items(first, spec, done.union(more))
    assert sorted(found) == world.sent
    for own in (set(range(25)), set(range(25, 70))):
        assert [item for item in found if item in own] == sorted(own)
    assert not (await first.runs.progress(JOB)).line.closed


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("start", "wanted"),
    [("earliest", range(30)), ("latest", range(20, 30)), (BEGIN + 5.0, range(10, 30)), ("group", range(7, 30))],
)
async def test_a_job_begins_where_it_is_told_to(world: World, start: Any, wanted: range) -> None:
    world.send(10, time=BEGIN + 1.0)
    world.send(10, time=BEGIN + 5.0)
    world.topic.commit("ads", {FIRST: 8})
    await world.replicas[0].runs.open(request(spec := clicks(topic_source(start=start, group="ads")), epochs=1))
    world.send(10, time=BEGIN + 90.0)
    await world.replicas[1].runs.progress(JOB)
    world.replicas[1].runs.active[JOB] = 1
    await world.write(1)                        # whoever writes it, it begins where it was when the job was opened
    done = await train(world.replicas[0])
    assert await items(world.replicas[0], spec, done) == list(wanted)


@pytest.mark.asyncio
async def test_a_topic_with_an_end_closes_its_line_after_the_last_window(world: World) -> None:
    spec = clicks(topic_source(start=BEGIN, end=BEGIN + 2 * HOUR, lateness="5m"))
    world.send(10, time=BEGIN + 10.0)
    await world.replicas[0].runs.open(request(spec, epochs=1))
    await world.write()
    world.clock.at = BEGIN + HOUR + 60
    world.send(10)
    await world.write()
    world.clock.at = BEGIN + 2 * HOUR + 10
    world.send(10, time=BEGIN + 2 * HOUR)       # behind the end
    await world.write()
    assert not (await world.replicas[0].tasks.line(JOB)).closed, "the other partition may still get late messages"
    world.clock.at = BEGIN + 2 * HOUR + 301
    await world.write()
    done = await train(world.replicas[0])
    assert (await world.replicas[0].tasks.line(JOB)).closed
    assert await items(world.replicas[0], spec, done) == list(range(20))


@pytest.mark.asyncio
@pytest.mark.parametrize("stored", [False, True])
@pytest.mark.parametrize("fail_at", range(1, 8))
async def test_whoever_goes_on_after_an_interruption_misses_no_message_and_takes_none_twice(
    world: World, fail_at: int, stored: bool
) -> None:
    spec = clicks()
    world.send(20)
    world.house.log.fail_at, world.house.log.fail_after_storing = fail_at, stored
    for attempt in range(8):
        with contextlib.suppress(Unavailable):
            await world.replicas[attempt % 2].runs.open(request(spec, epochs=1))
        await world.write(attempt % 2)
        world.send(3, partition=attempt % 2)
    await world.write()
    done = await train(world.replicas[0])
    assert sorted(await items(world.replicas[0], spec, done)) == world.sent


@pytest.mark.asyncio
async def test_two_replicas_at_once_write_one_line_of_a_topic(world: World) -> None:
    spec = clicks()
    await asyncio.gather(*(replica.runs.open(request(spec, epochs=1)) for replica in world.replicas))
    for _ in range(10):
        world.send(7)
        world.send(2, partition=1)
        world.clock.at += 5.0
        await asyncio.gather(*(replica.streams._kept(JOB) for replica in world.replicas * 2))
    await world.write()
    done = await train(world.replicas[1])
    assert sorted(await items(world.replicas[0], spec, done)) == world.sent


@pytest.mark.asyncio
async def test_files_and_messages_advance_over_the_same_time(world: World, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr("recmesh.data.taskgraph.GROUP_FILES", 1)
    for hour in range(3):
        write_hour(tmp_path, hour)
    files = source(files=[f"{tmp_path}/{{YYYY}}{{MM}}{{DD}}/{{HH}}/*.parquet"], end=None, offset="1h", kind=None)
    files = {key: value for key, value in files.items() if key != "kind"}
    spec = clicks(files, topic_source(start=BEGIN + HOUR), task_rows=10)
    first = world.replicas[0]
    world.clock.at = BEGIN + HOUR + 1
    world.send(10)
    world.send(10, partition=1)
    await first.runs.open(request(spec, epochs=1))
    await world.write()

    async def files_and_messages() -> tuple[int, int]:
        records = (await first.tasks.line(JOB)).records
        of_files = [record for record in records if record.file is not None and not record.file.view]
        return sum(record.rows for record in of_files), sum(record.rows for record in records) - sum(
            record.rows for record in of_files)

    assert await files_and_messages() == (ROWS, 20), "one group of yesterday's hour, as hardly any time has passed"
    world.clock.at = BEGIN + HOUR + 2000
    world.send(5)
    world.send(5, partition=1)
    await world.write()
    assert await files_and_messages() == (2 * ROWS, 30)
    world.clock.at = BEGIN + 2 * HOUR + 5
    for _ in range(6):
        await world.write()
    assert (await files_and_messages())[0] == PARTS * ROWS + ROWS, "the window is over: all of it, and the next begins"
    done = await train(first)
    of_files = [
        hour * 1_000 + part * 100 + row for hour in range(2) for part in range(PARTS) for row in range(ROWS)
    ][: PARTS * ROWS]
    found = sorted(await items(first, spec, done))
    for item in [*of_files, *world.sent]:
        found.remove(item)
    assert len(found) == ROWS and {item // 1_000 for item in found} == {1}


@pytest.mark.asyncio
async def test_offsets_are_committed_up_to_the_first_task_that_a_rollback_trains_again(world: World) -> None:
    spec, first = clicks(topic_source(group="ads")), world.replicas[0]
    world.send(25)
    world.send(15, partition=1)
    await first.runs.open(request(spec, epochs=1))
    await world.write()                         # [0, 25) and [25, 40)
    world.send(10)
    await world.write()                         # [40, 50)
    assert await world.offsets.commit(JOB, IntervalSet([(0, 24), (25, 45)])) == 2
    assert world.topic.committed("ads") == {FIRST: 1, SECOND: 16}
    await world.offsets.commit(JOB, IntervalSet([(0, 45)]))
    assert world.topic.committed("ads") == {FIRST: 26, SECOND: 16}
    await world.offsets.commit(JOB, IntervalSet([(0, 50)]))
    assert world.topic.committed("ads") == {FIRST: 36, SECOND: 16}


@pytest.mark.asyncio
@pytest.mark.parametrize("fails", [False, True])
async def test_what_is_done_for_ever_leaves_the_log_and_whoever_reads_it_then_goes_on(
    world: World, monkeypatch: pytest.MonkeyPatch, fails: bool
) -> None:
    monkeypatch.setattr(offsets, "TRIM_TASKS", 5)
    spec, (first, second) = clicks(), world.replicas
    await first.runs.open(request(spec, epochs=1))
    for _ in range(12):
        world.send(10)
        await world.write()
    await train(first)
    before = len(world.house.log.messages[task_subject(JOB)])
    done = IntervalSet([(0, 95), (100, 110)])
    if fails:                                   # the trim is written down, and what it trims stays
        async def away(*args: object, **more: object) -> None:
            raise Unavailable("away")

        monkeypatch.setattr(world.house.log, "purge", away)
        with pytest.raises(Unavailable):
            await world.offsets.trim(JOB, done)
    else:
        await world.offsets.trim(JOB, done)
        assert len(world.house.log.messages[task_subject(JOB)]) < before - 5
    for replica in (first, second):
        journal = await replica.tasks.journal(JOB, fresh=True)
        assert journal.line.tasks == 3 and journal.line.end == 120
        assert journal.offsets == {(0, FIRST): 121, (0, SECOND): 1}
    with pytest.raises(DataLoss, match="from position 40 on, and what stands before 95 was let go of"):
        await second.runs.open(request(spec, epochs=1, gen=2, done=IntervalSet([(0, 40)])))
    line, to_do = await second.runs.open(request(spec, epochs=1, gen=2, done=done))
    assert (line.end, to_do) == (120, 15)
    world.send(10)
    await second.streams._kept(JOB)
    world.clock.at += 10
    await second.streams._kept(JOB)
    redone = await train(second, gen=2)
    assert redone == IntervalSet([(95, 100), (110, 130)])
    assert await items(second, spec, redone) == [*range(95, 100), *range(110, 130)]


@pytest.mark.asyncio
async def test_trimming_leaves_the_files_of_the_open_window_so_that_none_is_written_twice(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(offsets, "TRIM_TASKS", 2)
    for hour in range(2):
        write_hour(tmp_path, hour)
    files = source(files=[f"{tmp_path}/{{YYYY}}{{MM}}{{DD}}/{{HH}}/*.parquet"], end=None, offset="1h")
    spec = clicks(files, topic_source(start=BEGIN + HOUR), task_rows=10)
    first, second = world.replicas
    world.clock.at = BEGIN + HOUR + 3000
    await first.runs.open(request(spec, epochs=1))
    for _ in range(5):
        world.send(10)
        await world.write()
    line = await first.tasks.line(JOB)
    written = PARTS * ROWS + len(world.sent)
    assert line.end == written
    await train(first)
    await world.offsets.trim(JOB, IntervalSet([(0, line.end - 5)]))
    await second.runs.open(request(spec, epochs=1, gen=2, done=IntervalSet([(0, line.end)])))
    world.clock.at += 60
    await second.streams._kept(JOB)
    assert (await second.tasks.line(JOB)).end == written
    world.clock.at = BEGIN + 2 * HOUR + 1       # the window is over; the next one's files may push it out
    for _ in range(3):
        world.send(10)
        await world.write(1)
    await train(second, gen=2)
    end = (await second.tasks.line(JOB)).end
    await world.offsets.trim(JOB, IntervalSet([(0, end)]))
    assert (await first.tasks.journal(JOB, fresh=True)).line.base >= written


@pytest.mark.asyncio
async def test_files_go_before_messages_that_are_later_than_they_are(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("recmesh.data.taskgraph.GROUP_FILES", 1)
    monkeypatch.setattr(alignment, "MOST_ROWS", 10)
    monkeypatch.setattr(alignment.shares, "__kwdefaults__", {"most": 10})
    monkeypatch.setattr(alignment, "LEAST_ROWS", 1)
    write_hour(tmp_path, 0)
    files = source(files=[f"{tmp_path}/{{YYYY}}{{MM}}{{DD}}/{{HH}}/*.parquet"], end=BEGIN + HOUR, offset="1h")
    spec = clicks(files, topic_source(start=BEGIN + HOUR, end=BEGIN + 2 * HOUR), task_rows=ROWS)
    for minute in range(60):                    # partition 1 stays without messages, and holds nothing up
        world.send(1, time=BEGIN + HOUR + 60 * minute)
    world.clock.at = BEGIN + 3 * HOUR
    await world.replicas[0].runs.open(request(spec, epochs=1))
    for _ in range(8):
        await world.write()
    kinds = "".join(
        "m" if record.file and record.file.view else "f" for record in (await world.replicas[0].tasks.line(JOB)).records
    )
    assert sorted(kinds) == sorted("fffmmmmmm") and (await world.replicas[0].tasks.line(JOB)).closed
    assert kinds in ("fmmfmmfmm", "fmmfmmmfm", "fmmmfmfmm", "fmmmfmmfm"), "a group at each third of the hour"


@pytest.mark.asyncio
async def test_a_group_of_two_sources_is_committed_where_the_one_that_is_behind_has_come_to(world: World) -> None:
    spec = clicks(topic_source(group="ads"), topic_source(jetstream="clicks-0", group="ads", start="latest"))
    world.send(20)
    await world.replicas[0].runs.open(request(spec, epochs=1))
    await world.write()
    await world.offsets.commit(JOB, IntervalSet())
    assert world.topic.committed("ads")[FIRST] == 1


@pytest.mark.asyncio
async def test_tasks_of_large_messages_hold_few_of_them(world: World) -> None:
    world.topic.mean_bytes = float(2 << 20)
    world.send(20)
    await world.replicas[0].runs.open(request(clicks(), epochs=1))
    for _ in range(3):
        await world.write()
    records = (await world.replicas[0].tasks.line(JOB)).records
    assert [record.rows for record in records] == [8, 8, 4]


@pytest.mark.asyncio
async def test_windows_in_which_nothing_happened_are_passed_at_once(world: World) -> None:
    world.send(5, time=BEGIN - 1000 * HOUR)
    world.send(5, time=BEGIN + 10)
    await world.replicas[0].runs.open(request(spec := clicks(), epochs=1))
    await world.write()
    done = await train(world.replicas[0])
    assert await items(world.replicas[0], spec, done) == world.sent
    assert len(world.house.log.messages[task_subject(JOB)]) < 10
    served = (await world.replicas[0].tasks.journal(JOB)).served
    assert served is not None and served.turn.begin == BEGIN and not served.complete


@pytest.mark.asyncio
async def test_a_window_ends_where_it_should_though_the_last_offset_has_no_message(world: World) -> None:
    for hour in range(3):
        world.send(4, time=BEGIN + hour * HOUR + 10)
    world.topic.put(0, b"", time=BEGIN + 3 * HOUR)
    world.topic.hidden.add((FIRST, 13))
    world.clock.at = BEGIN + 50 * HOUR
    await world.replicas[0].runs.open(request(clicks(), epochs=1))
    await world.write()
    served = [message.served for message in await logged(world) if message.records]
    assert [each.turn.begin for each in served if each] == [BEGIN, BEGIN + HOUR, BEGIN + 2 * HOUR]


async def logged(world: World) -> list[Message]:
    return [wire.message_of(*each) for each in world.house.log.messages[task_subject(JOB)]]


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda topic: topic.tags.update({FIRST: "other"}), "was made again"),
        (lambda topic: topic.messages.update({FIRST: []}), "was made again, or cut"),
        (lambda topic: topic.messages.pop(SECOND), f"{SECOND} was deleted"),
        (lambda topic: topic.let_go(FIRST, 25), "begins at offset 25 now, and 21 is to come"),
    ],
    ids=["made again", "cut", "deleted", "let go"],
)
async def test_a_partition_that_is_not_what_it_was_stops_the_line_and_says_so(
    world: World, change: Callable[[MemoryTopic], object], why: str
) -> None:
    first = world.replicas[0]
    world.send(20)
    await first.runs.open(request(clicks(), epochs=1))
    await world.write()
    world.send(10)
    change(world.topic)
    await world.write()
    assert why in (await first.streams.state(JOB)).waits_for
    assert (await first.tasks.line(JOB)).end == 20


@pytest.mark.asyncio
async def test_the_lag_of_each_partition_is_measured_and_told(world: World) -> None:
    spec, first = clicks(), world.replicas[0]
    lags = Lags(
        first.tasks, first.runs.latest, clock=world.clock, emit=world.house.events.append,
        opened=lambda source: world.topic,
    )
    world.send(20)
    await first.runs.open(request(spec, epochs=1))
    await world.write()
    await train(first)
    world.send(6)
    world.send(4, partition=1)
    sent = world.clock.at
    await world.write()
    held = await first.runs.lease(JOB, 1, worker="w", shards=1, request_id="")
    await first.runs.progress(JOB)
    world.clock.at = sent + 60.0
    await lags.look()
    [told] = [event.data for event in world.house.events if event.type is TOPIC_OBSERVED]
    by_name = {each.partition: each for each in told.partitions}
    assert (by_name[FIRST].end, by_name[SECOND].end) == (27, 5)
    behind = sum(each.end - each.offset for each in told.partitions)
    assert behind == 10 and told.lag_s == 60.0
    assert {each.state for each in told.partitions} <= {"assigned", "unassigned"}
    told_of = [(lease.epoch, lease.hi, True, 0) for lease in held.leases]
    await first.runs.renew(JOB, 1, worker="w", progress=told_of)
    await train(first)
    await first.runs.progress(JOB)
    await lags.look()
    last = [event.data for event in world.house.events if event.type is TOPIC_OBSERVED][-1]
    found = [(each.end - each.offset, each.lag_s, each.state) for each in last.partitions]
    assert found == 2 * [(0, 0.0, "unassigned")]


@pytest.mark.asyncio
async def test_the_lag_is_told_after_the_line_is_closed_and_after_a_rollback(world: World) -> None:
    spec, first = clicks(topic_source(start=BEGIN, end=BEGIN + HOUR)), world.replicas[0]
    lags = Lags(
        first.tasks, first.runs.latest, clock=world.clock, emit=world.house.events.append,
        opened=lambda source: world.topic,
    )
    world.send(20, time=BEGIN + 5)
    world.send(20, partition=1, time=BEGIN + 5)
    world.clock.at = BEGIN + 2 * HOUR
    await first.runs.open(request(spec, epochs=1))
    await world.write()
    assert (await first.tasks.line(JOB)).closed
    await first.runs.open(request(spec, epochs=1, gen=2, done=IntervalSet([(0, 5), (10, 40)])))
    await first.runs.progress(JOB)
    await lags.look()
    assert [(lag.uri, lag.end - lag.offset) for lag in lags.known[JOB]] == [(FIRST, 15), (SECOND, 20)]
    await train(first, gen=2)
    await first.runs.progress(JOB)
    await lags.look()
    assert [lag.end - lag.offset for lag in lags.known[JOB]] == [0, 0]


@pytest.mark.asyncio
async def test_deleted_and_unreadable_messages_are_positions_without_rows(world: World, tmp_path: Path) -> None:
    spec = clicks(bad_records={"limit": 5, "folder": str(tmp_path)})
    world.send(10)
    world.topic.put(0, b"{no json", time=world.clock.at)
    world.send(5)
    await world.replicas[0].runs.open(request(spec, epochs=1))
    world.topic.without(FIRST, 3)
    await world.write()
    done = await train(world.replicas[0])
    assert done == IntervalSet([(0, 16)])
    assert await items(world.replicas[0], spec, done) == [0, 1, *range(3, 15)]
    [letter] = map(json.loads, _lines(tmp_path))
    assert (letter["uri"], letter["row"]) == (FIRST, 11)


def _lines(folder: Path) -> list[str]:
    return [line for path in folder.iterdir() for line in path.read_text().splitlines()]


@pytest.mark.asyncio
async def test_messages_that_were_let_go_before_they_were_trained_are_an_error_that_says_so(world: World) -> None:
    spec, first = clicks(), world.replicas[0]
    world.send(10)
    await first.runs.open(request(spec, epochs=1))
    await world.write()
    done = await train(first)
    world.topic.let_go(FIRST, 6)
    with pytest.raises(DataLoss, match=r"begins at offset 6 now, and 1 is to be trained: its retention is too short"):
        await items(first, spec, done)
    world.topic.tags[FIRST] = "made again"
    with pytest.raises(DataLoss, match="was deleted"):
        await items(first, spec, done)


@pytest.mark.asyncio
async def test_a_topic_that_is_missing_or_lacks_a_column_is_refused_by_its_place(world: World) -> None:
    indexer = Indexer(clock=world.clock)
    index = await indexer.index(clicks())
    assert dict(index.columns) == TYPES
    with pytest.raises(InvalidArgument, match="do not fit") as caught:
        await indexer.index(clicks(topic_source(types={"item": "int"})))
    assert [item.path for item in caught.value.violations] == ["data.label"]
    world.topic.messages.clear()
    with pytest.raises(NotFound, match="clicks"):
        await indexer.index(clicks())


@pytest.mark.asyncio
async def test_a_topic_that_does_not_answer_is_told_at_once_by_its_place(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not as an outage, which callers would ask about again and again while somebody waits."""
    def silent() -> None:
        raise Unavailable("Kafka: no answer within 10 s", reason="KAFKA_AWAY")

    monkeypatch.setattr(world.topic, "partitions", silent)
    indexer = Indexer(clock=world.clock)
    datasets = Datasets(world.house.datasets_store, indexer, clock=world.clock, emit=lambda event: None)
    with pytest.raises(FailedPrecondition, match="no answer within 10 s") as refused:
        await datasets.inspect(clicks())
    assert [item.path for item in refused.value.violations] == ["data.streams.0.sources.0"]


# ---- the rules alone


@given(st.dictionaries(st.text(max_size=3), st.integers(0, 100_000), max_size=8), st.integers(1, 5000))
def test_shares_are_bounded_proportional_and_never_idle(waiting: dict[str, int], most: int) -> None:
    taken = alignment.shares(waiting, most=most)
    assert all(0 < taken[key] <= min(waiting[key], most) for key in taken)
    assert set(taken) == {key for key, count in waiting.items() if count}
    longest = max(waiting.values(), default=0)
    for key, count in taken.items():
        share = waiting[key] * min(1.0, most / longest)
        assert share - 1e-6 <= count <= max(share + 1, alignment.LEAST_ROWS)


def test_a_topic_of_twice_the_weight_gives_twice_as_much_of_what_waits() -> None:
    taken = alignment.shares({"a": 50_000, "b": 50_000, "c": 300}, {"a": 2.0, "b": 1.0}, most=4_000)
    assert taken == {"a": 4_000, "b": 2_000, "c": alignment.LEAST_ROWS}
    assert alignment.shares({"a": 100, "b": 50_000}, {"a": 1e6}, most=4_000) == {"a": 100, "b": 100}


def line_of(*rows: tuple[str, int, int]) -> Line:
    """Tasks one after another: partition, first offset, rows."""
    records, base = [], 0
    for uri, first, count in rows:
        records.append(TaskRecord(0, 0, base, count, 0, 0, FileSlice(uri, 0, "", first, count, view=1)))
        base += count
    return Line(records)


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(1, 9)), max_size=12), st.data())
def test_nothing_before_a_committed_offset_is_ever_trained_again(pieces: list[tuple[int, int]], data: Any) -> None:
    ends = [1, 1, 1]
    rows = []
    for partition, count in pieces:
        rows.append((f"kafka:t/{partition}", ends[partition], count))
        ends[partition] += count
    line = line_of(*rows)
    done = IntervalSet()
    for lo in data.draw(st.lists(st.integers(0, line.end), max_size=6)):
        hi = min(line.end, lo + data.draw(st.integers(1, 20)))
        if lo < hi:
            done.add(lo, hi)
    kept = alignment.unfinished(line, done)
    offsets: dict[tuple[int, str], list[int]] = {}
    known = {position for lo, hi in done.pairs() for position in range(lo, hi)}
    for record in line.records:
        assert record.file is not None
        for row in range(record.rows):
            if record.base + row not in known:
                offsets.setdefault((1, record.file.uri), []).append(record.file.first_row)
    assert kept == {place: min(found) for place, found in offsets.items()}


def test_files_are_released_with_the_time_that_topics_have_passed() -> None:
    assert alignment.is_released(0, 100, elapsed=0.0), "the first group is not held back"
    assert not alignment.is_released(30, 100, elapsed=0.2) and alignment.is_released(30, 100, elapsed=0.3)
    assert alignment.is_released(99, 100, elapsed=1.0)
