"""Lines of topics: messages as they come, window by window with files beside them, through every interruption."""

import asyncio
import contextlib
from pathlib import Path
from typing import Any

import pytest

from recmesh.runtime.errors import Unavailable
from services.shardsvc import wire
from services.shardsvc.domain import alignment
from services.shardsvc.domain.journal import Message
from services.shardsvc.store.durable import task_subject
from tests.unit.data.test_windows import BEGIN, HOUR, source
from tests.unit.shardsvc.test_app import JOB, request
from tests.unit.shardsvc.test_streams import PARTS, ROWS, items, train, write_hour
from tests.unit.shardsvc.topic_world import FIRST, World, clicks, topic_source


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
@pytest.mark.parametrize("is_there", [True, False])
async def test_how_far_the_data_have_come_is_told_by_when_messages_happened(world: World, is_there: bool) -> None:
    """As of a replay: its events are old, and come after the job began, or after their window was over by the clock."""
    world.clock.at = BEGIN + 1000 * HOUR
    if is_there:
        world.send(5, time=BEGIN + 10)
    await world.replicas[0].runs.open(request(clicks(), epochs=1))
    await world.write()
    assert await told(world) == (2 * [BEGIN] if is_there else [0, 0])
    world.send(5, time=BEGIN + 3 * HOUR + 10)
    await world.write()
    world.send(5, partition=1, time=BEGIN + 4 * HOUR + 10)
    world.send(9, time=BEGIN + 4 * HOUR + 20)
    await world.write()
    assert await told(world) == 2 * [BEGIN + 4 * HOUR]
    world.replicas[1].runs.active[JOB] = 1
    for _ in range(3):
        world.clock.at += HOUR                  # windows pass in which nothing happens
        await world.write(1)
    assert await told(world) == 2 * [BEGIN + 4 * HOUR]
    world.send(5)
    await world.write(1)
    [first, second] = await told(world)
    assert first == second == world.clock.at // HOUR * HOUR


async def told(world: World) -> list[float]:
    """By each replica, which reads the log anew."""
    for replica in world.replicas:
        await replica.tasks.journal(JOB, fresh=True)
    return [(await replica.streams.state(JOB)).event_time for replica in world.replicas]


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
