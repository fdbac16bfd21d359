"""How far a topic is trained: offsets that are committed, tasks that are let go of, and the lag."""

import threading
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from recmesh.data.topics import Partition
from recmesh.formats import IntervalSet
from recmesh.runtime.errors import DataLoss, Unavailable
from recmesh.runtime.events.catalog import RATES_OBSERVED, TOPIC_OBSERVED
from recmesh.spec.dataset import StreamSource
from services.shardsvc.app import Lags, offsets
from services.shardsvc.store.durable import task_subject
from tests.support.topics import MemoryTopic
from tests.unit.data.test_windows import BEGIN, HOUR, source
from tests.unit.shardsvc.test_app import JOB, request
from tests.unit.shardsvc.test_streams import PARTS, ROWS, Replica, items, train, write_hour
from tests.unit.shardsvc.topic_world import FIRST, SECOND, World, clicks, topic_source


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
async def test_a_group_of_two_sources_is_committed_where_the_one_that_is_behind_has_come_to(world: World) -> None:
    spec = clicks(topic_source(group="ads"), topic_source(jetstream="clicks-0", group="ads", start="latest"))
    world.send(20)
    await world.replicas[0].runs.open(request(spec, epochs=1))
    await world.write()
    await world.offsets.commit(JOB, IntervalSet())
    assert world.topic.committed("ads")[FIRST] == 1


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
async def test_replayed_events_lag_since_they_came_not_since_they_happened(world: World) -> None:
    spec, first = clicks(), world.replicas[0]
    lags = Lags(
        first.tasks, first.runs.latest, clock=world.clock, emit=world.house.events.append,
        opened=lambda source: world.topic,
    )
    world.send(20, time=BEGIN - 24 * HOUR)
    sent = world.clock.at
    await first.runs.open(request(spec, epochs=1))
    await world.write()
    await first.runs.progress(JOB)
    world.clock.at = sent + 40.0
    await lags.look()
    [told] = [event.data for event in world.house.events if event.type is TOPIC_OBSERVED]
    assert told.lag_s == 40.0


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


class SlowTopic(MemoryTopic):
    """Lists its partitions when it is let."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.may = threading.Event()

    def partitions(self) -> Sequence[Partition]:
        self.may.wait(10.0)
        return super().partitions()


class BusyTopic(MemoryTopic):
    """Has got a message more each time that it is asked."""

    asked = 0

    def partitions(self) -> Sequence[Partition]:
        self.asked += 1
        self.put(0, b"{}", time=1.0)
        return super().partitions()


@pytest.mark.asyncio
async def test_two_jobs_on_one_topic_measure_its_rate_though_one_of_them_waits_for_a_slow_topic(world: World) -> None:
    busy, slow = BusyTopic(), SlowTopic("slow")
    busy.messages, slow.messages = {FIRST: []}, {"jetstream:slow-0": []}
    begin = world.clock.at = BEGIN
    both = clicks(topic_source(), topic_source(jetstream="slow-*"))

    def opened(source: StreamSource) -> MemoryTopic:
        return slow if source.jetstream == "slow-*" else busy

    def emit(event: Any) -> None:
        world.house.events.append(event)
        if event.type is TOPIC_OBSERVED and event.entity_id == "b":
            slow.may.set()                      # no sooner than the other job has been looked at

    first = Replica(world.house, world.clock, opened=opened)
    lags = Lags(first.tasks, first.runs.latest, clock=world.clock, emit=emit, opened=opened)
    slow.may.set()
    await first.runs.open(replace(request(both, epochs=1), job_id="a"))
    await first.runs.open(replace(request(clicks(), epochs=1), job_id="b"))
    for job_id in "ab":
        await first.runs.progress(job_id)
    busy.asked = 0
    for step in range(5):
        slow.may.clear()
        await lags.look()
        assert busy.asked == step + 1
        world.clock.at += 10.0
    told = [event.data for event in world.house.events if event.type is RATES_OBSERVED]
    rates = [point for event in told for each in event.series if each.series == "topic/clicks" for point in each.points]
    assert rates == [(begin + 10.0 * step, 0.1) for step in range(4)]
    assert [lag.uri for lag in lags.known["a"]] == [FIRST, "jetstream:slow-0"]


@pytest.mark.asyncio
async def test_while_a_line_waits_for_files_messages_of_the_next_window_are_lag_and_rates_go_on(
    world: World, tmp_path: Path
) -> None:
    files = source(files=[f"{tmp_path}/{{YYYY}}{{MM}}{{DD}}/{{HH}}/*.parquet"], end=None, offset="1h")
    spec, first = clicks(files, topic_source(start=BEGIN + HOUR), task_rows=10), world.replicas[0]
    lags = Lags(
        first.tasks, first.runs.latest, clock=world.clock, emit=world.house.events.append,
        opened=lambda source: world.topic,
    )

    async def look() -> tuple[int, float, str]:
        await world.write()
        await train(first)
        await first.runs.progress(JOB)
        await lags.look()
        known = lags.known[JOB]
        behind = sum(lag.end - lag.offset for lag in known)
        return behind, max(lag.lag_s for lag in known), (await first.streams.state(JOB)).waits_for

    world.clock.at = BEGIN + HOUR + 1
    world.send(10)
    await first.runs.open(request(spec, epochs=1))
    behind, _, why = await look()
    assert behind == 0, "messages of the window do not wait for its files"
    assert "window 2024-01-01T01:00Z: no file of 2024-01-01T00:00Z matches" in why
    world.clock.at = later = BEGIN + 2 * HOUR
    for step in range(3):
        world.send(6)
        behind, age_s, why = await look()
        assert (behind, age_s) == (6 * (step + 1), world.clock.at - later) and why
    write_hour(tmp_path, 0)
    world.clock.at += 60.0
    looks = [await look() for _ in range(3)]
    assert looks[-1][:2] == (0, 0.0) and "2024-01-01T01:00Z" in looks[-1][2]
    told = [event.data for event in world.house.events if event.type is RATES_OBSERVED]
    rates = {at: rate for event in told for each in event.series if each.series == "topic/clicks"
             for at, rate in each.points}
    assert [rates[later + 10.0 * step] for step in (1, 2)] == [0.6, 0.6]
