import asyncio
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from recmesh.data.index import Index
from recmesh.data.order import Plan, generate
from recmesh.data.planned import PlannedTasks
from recmesh.data.records import FileSlice
from recmesh.data.slices import FileName, Slices, Table
from recmesh.formats import IntervalSet
from recmesh.runtime.clock import system_clock
from recmesh.runtime.errors import (
    DataLoss,
    FailedPrecondition,
    InvalidArgument,
    NotFound,
    ResourceExhausted,
    Unavailable,
)
from recmesh.spec.dataset import DatasetSpec
from services.shardsvc import wire
from services.shardsvc.app import Datasets, Indexer, OpenRun, Runs, TaskLog
from services.shardsvc.app.tasklog import _fingerprint
from services.shardsvc.domain.journal import Journal
from services.shardsvc.domain.lease import Released, State
from services.shardsvc.store.durable import task_subject
from tests.support.datasets import clicks, spec, write
from tests.support.shard_bus import MemoryBucket, MemoryLog
from tests.support.shard_queue import MemoryQueue

JOB = "job-1"
ROWS = 1_000


class House:
    """shardsvc on memory; `replica()` is another process over the same stores."""

    def __init__(self) -> None:
        self.queue, self.runs_store, self.log = MemoryQueue(), MemoryBucket(), MemoryLog()
        self.datasets_store = MemoryBucket()
        self.events: list[Any] = []
        self.runs = self.replica()
        self.datasets = Datasets(
            self.datasets_store, Indexer(), clock=system_clock, emit=self.events.append
        )

    def replica(self) -> Runs:
        tasks = TaskLog(self.log, Indexer())
        return Runs(self.queue, self.runs_store, tasks, clock=system_clock, emit=self.events.append)

    def told(self, name: str) -> list[Any]:
        return [event.data for event in self.events if event.type.name == name]


@pytest.fixture
def data(tmp_path: Path) -> DatasetSpec:
    return spec(write(clicks(ROWS), tmp_path / "a.parquet", row_group=100), task_rows=100)


def request(data: DatasetSpec, **more: Any) -> OpenRun:
    fields: dict[str, Any] = {
        "job_id": JOB, "gen": 1, "spec": data, "epochs": 2, "seed": 3, "shuffle": True, "batch_size": 10,
        "shard_batches": 4, "ttl_s": 30.0, "done": IntervalSet(),
    }
    return OpenRun(**(fields | more))


async def train(runs: Runs, *, gen: int = 1, stop_after: int = 10**9) -> list[tuple[int, int]]:
    """Leases and completes until the queue is drained."""
    done: list[tuple[int, int]] = []
    while len(done) < stop_after:
        answer = await runs.lease(JOB, gen, worker="w0", shards=2, request_id="")
        if answer.state is not State.GRANTED:
            assert answer.state is State.DRAINED
            break
        assert [task.base for task in answer.tasks] == sorted({task.base for task in answer.tasks})
        covered = IntervalSet((task.base, task.base + task.rows) for task in answer.tasks)
        for lease in answer.leases:
            assert covered.covers(lease.lo, lease.hi)
            done.append((lease.lo, lease.hi))
        progress = [(lease.epoch, lease.hi, True, 0) for lease in answer.leases]
        await runs.renew(JOB, gen, worker="w0", progress=progress)
    return done


@pytest.mark.asyncio
async def test_a_run_leases_every_position_of_all_epochs_once(data: DatasetSpec) -> None:
    house = House()
    line, to_do = await house.runs.open(request(data))
    assert (line.end, to_do) == (2 * ROWS, 2 * ROWS)
    done = await train(house.runs)
    assert sum(hi - lo for lo, hi in done) == 2 * ROWS
    assert IntervalSet(done) == IntervalSet([(0, 2 * ROWS)])
    assert house.told("run.opened")[0].total == 2 * ROWS
    assert (await house.runs.progress(JOB)).drained


@pytest.mark.asyncio
@pytest.mark.parametrize("stored", [False, True])
async def test_a_log_interrupted_at_any_append_is_completed_without_gap_or_overlap(
    data: DatasetSpec, stored: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wire, "MOST_SLICES", 3)                 # 10 slices: 4 messages, and the plan
    want = (await House().runs.open(request(data)))[0]
    for fail_at in range(1, 6):
        house = House()
        house.log.fail_at, house.log.fail_after_storing = fail_at, stored
        with pytest.raises(Unavailable):
            await house.runs.open(request(data))
        line, _ = await house.replica().open(request(data))
        assert [task.base for task in line.tasks_of(0, line.end)] == [task.base for task in want.tasks_of(0, want.end)]
        assert [t.file for t in line.tasks_of(0, line.end)] == [t.file for t in want.tasks_of(0, want.end)]
        assert line.closed


@pytest.mark.asyncio
async def test_two_replicas_that_open_at_once_write_one_log(
    data: DatasetSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wire, "MOST_SLICES", 2)
    house = House()
    replicas = [house.replica() for _ in range(4)]
    opened = await asyncio.gather(*(replica.open(request(data)) for replica in replicas))
    assert {(line.end, line.tasks, to_do) for line, to_do in opened} == {(2 * ROWS, 20, 2 * ROWS)}
    done = await train(replicas[2])
    assert IntervalSet(done) == IntervalSet([(0, 2 * ROWS)])


@pytest.mark.asyncio
@pytest.mark.parametrize("uri", ["a", "a-bucket/" + 900 * "x"])
async def test_no_message_of_the_log_exceeds_its_limits_and_all_say_what_was_put_in(uri: str) -> None:
    pieces = [
        FileSlice(f"{uri}-{number}", 1 << 40, "tag", at << 50, 1 << 40, at << 50, at << 49)
        for number in range(700) for at in range(30)
    ]
    messages = list(wire.listing(Slices(pieces), first=0, fingerprint="print"))
    assert len(messages) > 2 and max(map(len, messages)) <= 512 * 1024
    journal = Journal()
    for sequence, message in enumerate(messages, start=1):
        journal.take(sequence, wire.message_of(sequence, message))
    assert [*journal.slices] == pieces and not journal.line.closed


@pytest.mark.asyncio
async def test_what_is_logged_before_the_first_lease_does_not_grow_with_epochs(data: DatasetSpec) -> None:
    logged = []
    for epochs in (1, 1_000):
        house = House()
        line, _ = await house.runs.open(request(data, epochs=epochs))
        assert (line.end, line.tasks, line.closed) == (epochs * ROWS, epochs * 10, True)
        logged.append(sum(len(message) for _, message in house.log.messages[task_subject(JOB)]))
        assert (await house.runs.progress(JOB)).view.total == epochs * ROWS
    assert logged[1] - logged[0] < 10


@pytest.mark.asyncio
async def test_a_log_of_records_is_read_as_it_was_and_one_without_its_end_is_refused(data: DatasetSpec) -> None:
    """As releases wrote it that wrote every task."""
    records = list(generate(Plan((await Indexer().index(data)).slices, epochs=2, seed=3, shuffle=True)))
    print_ = _fingerprint(data, epochs=2, seed=3, shuffle=True)
    for is_whole in (True, False):
        house = House()
        for message in wire.chunks(records if is_whole else records[:7], fingerprint=print_):
            await house.log.append(task_subject(JOB), message)
        if is_whole:
            line, to_do = await house.runs.open(request(data, done=IntervalSet([(0, 100)])))
            assert (line.end, to_do, line.tasks) == (2 * ROWS, 2 * ROWS - 100, 20)
            planned = (await House().runs.open(request(data)))[0]
            assert [replace(task, sequence=2) for task in line.records] == [*planned.records]
            assert IntervalSet(await train(house.runs)) == IntervalSet([(100, 2 * ROWS)])
        else:
            with pytest.raises(FailedPrecondition, match="older release"):
                await house.runs.open(request(data))


class Gated(Indexer):
    """Each call is answered when its turn has come."""

    def __init__(self, turns: int) -> None:
        super().__init__()
        self.asked, self.turns = ([asyncio.Event() for _ in range(turns)] for _ in range(2))
        self._free = iter(range(turns))

    async def index(self, spec: DatasetSpec) -> Index:
        turn = next(self._free)
        self.asked[turn].set()
        found = await super().index(spec)
        await self.turns[turn].wait()
        return found


@pytest.mark.asyncio
@pytest.mark.parametrize("epochs", [1, 2])
async def test_a_plan_that_another_call_wrote_meanwhile_stands(data: DatasetSpec, epochs: int) -> None:
    """Of two calls of one replica: the later one read the log first, and sees in memory what the other one wrote."""
    log, indexer = MemoryLog(), Gated(2)
    tasks = TaskLog(log, indexer)
    first = asyncio.create_task(tasks.ensure(JOB, data, epochs=1, seed=3, shuffle=True, fresh=True))
    await indexer.asked[0].wait()
    second = asyncio.create_task(tasks.ensure(JOB, data, epochs=epochs, seed=3, shuffle=True, fresh=True))
    await indexer.asked[1].wait()
    indexer.turns[0].set()
    line = await first
    written = list(log.messages[task_subject(JOB)])
    indexer.turns[1].set()
    if epochs == 1:
        assert (await second).end == line.end == ROWS
    else:
        with pytest.raises(FailedPrecondition, match="other data, epochs"):
            await second
    assert log.messages[task_subject(JOB)] == written


@pytest.mark.asyncio
async def test_a_job_cannot_go_on_with_other_data_than_it_began_with(data: DatasetSpec) -> None:
    house = House()
    await house.runs.open(request(data))
    for other in (request(data, seed=4), request(data, epochs=3), request(data, shuffle=False)):
        with pytest.raises(FailedPrecondition, match="begun with other"):
            await house.runs.open(other)


@pytest.mark.asyncio
async def test_files_that_change_while_the_log_is_written_are_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wire, "MOST_SLICES", 3)
    house = House()
    data = spec(write(clicks(ROWS), tmp_path / "a.csv"), format="csv", task_rows=100)
    house.log.fail_at = 3
    with pytest.raises(Unavailable):
        await house.runs.open(request(data))
    write(clicks(ROWS + 1), tmp_path / "a.csv")
    with pytest.raises(FailedPrecondition, match="changed while"):
        await house.runs.open(request(data))


@pytest.mark.asyncio
async def test_a_ledger_beyond_the_log_means_the_log_lost_its_end(data: DatasetSpec) -> None:
    house = House()
    await house.runs.open(request(data))
    with pytest.raises(DataLoss) as caught:
        await house.runs.open(request(data, gen=2, done=IntervalSet([(0, 2 * ROWS + 1)])))
    assert caught.value.reason == "LOG_SHORT"
    house.log.messages.clear()
    with pytest.raises(DataLoss):
        await house.replica().open(request(data, gen=2, done=IntervalSet([(0, 10)])))


@pytest.mark.asyncio
@pytest.mark.parametrize("lost", [-1, 1])
async def test_a_log_that_lost_a_message_gives_no_lease_of_it(
    data: DatasetSpec, lost: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its plan, or slices within it."""
    monkeypatch.setattr(wire, "MOST_SLICES", 3)
    house = House()
    await house.runs.open(request(data))
    house.log.messages[task_subject(JOB)].pop(lost)
    for call in (
        house.replica().open(request(data, gen=2, done=IntervalSet([(0, 10)]))),
        house.replica().lease(JOB, 1, worker="w0", shards=1, request_id=""),
    ):
        with pytest.raises(DataLoss) as caught:
            await call
        assert caught.value.reason == "LOG_SHORT"


@pytest.mark.asyncio
async def test_a_log_that_could_not_be_read_for_want_of_room_is_read_anew(
    data: DatasetSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And not taken for one that lost a part, which would roll its job back."""
    monkeypatch.setattr(wire, "MOST_SLICES", 3)
    house = House()
    reader = TaskLog(house.log, Indexer())
    await reader.journal(JOB, fresh=True)
    line, _ = await house.runs.open(request(data))
    added, calls = Slices.add, list[int]()

    def full(self: Slices, name: FileName, table: Table) -> None:
        calls.append(1)
        if len(calls) == 2:
            raise ResourceExhausted("no space", reason="NO_SPACE")
        added(self, name, table)

    monkeypatch.setattr(Slices, "add", full)
    with pytest.raises(ResourceExhausted):
        await reader.line(JOB)
    assert [*(await reader.line(JOB)).records] == [*line.records]


@pytest.mark.asyncio
async def test_a_rollback_queues_what_the_snapshot_lacks_and_refuses_the_older_generation(data: DatasetSpec) -> None:
    house = House()
    await house.runs.open(request(data))
    await train(house.runs, stop_after=20)
    done = IntervalSet([(0, 300), (400, 450)])
    _, to_do = await house.runs.open(request(data, gen=2, done=done))
    assert to_do == 2 * ROWS - 350
    assert (await house.runs.lease(JOB, 1, worker="w0", shards=1, request_id="")).state is State.STALE_GEN
    assert (await house.runs.renew(JOB, 1, worker="w0", progress=[])).state is State.STALE_GEN
    with pytest.raises(FailedPrecondition):
        await house.runs.open(request(data, gen=1))
    again = IntervalSet(await train(house.runs, gen=2))
    assert again == IntervalSet([(300, 400), (450, 2 * ROWS)])


@pytest.mark.asyncio
@pytest.mark.parametrize("befall", [MemoryQueue.lose_everything, MemoryQueue.restart])
async def test_a_queue_that_was_lost_is_built_again_from_log_and_ledger(
    data: DatasetSpec, befall: Callable[[MemoryQueue], None]
) -> None:
    house = House()
    await house.runs.open(request(data))
    first = await train(house.runs, stop_after=20)
    snapshot = IntervalSet(first[:10])
    await house.runs.reconcile(JOB, 1, done=snapshot)
    before = await house.runs.lease(JOB, 1, worker="w1", shards=1, request_id="")
    befall(house.queue)
    after = await house.replica().lease(JOB, 1, worker="w2", shards=1, request_id="")
    assert after.state is State.GRANTED
    assert after.leases[0].epoch > before.leases[0].epoch
    await house.runs.release(JOB, 1, worker="w1", crashed=False)
    await house.runs.release(JOB, 1, worker="w2", crashed=False)
    rest = IntervalSet(await train(house.runs))
    assert rest.union(IntervalSet(first)) == IntervalSet([(0, 2 * ROWS)])
    assert rest.intersect(snapshot) == IntervalSet()


@pytest.mark.asyncio
async def test_a_generation_that_is_not_open_yet_waits_and_is_never_drained(data: DatasetSpec) -> None:
    house = House()
    with pytest.raises(NotFound):
        await house.runs.lease(JOB, 1, worker="w0", shards=1, request_id="")
    await house.runs.open(request(data))
    early = await house.runs.lease(JOB, 2, worker="w0", shards=1, request_id="")
    assert early.state is State.WAIT
    assert early.retry_after_s > 0


@pytest.mark.asyncio
async def test_the_end_is_not_believed_until_a_snapshot_has_everything(data: DatasetSpec) -> None:
    house = House()
    await house.runs.open(request(data))
    await train(house.runs)
    orphans, missing = await house.runs.reconcile(JOB, 1, done=IntervalSet([(0, 1990)]))
    assert (orphans, missing) == (10, 10)
    assert await train(house.runs) == [(1990, 2000)]
    assert await house.runs.reconcile(JOB, 1, done=IntervalSet([(0, 2000)])) == (0, 0)


@pytest.mark.asyncio
async def test_a_sweep_queues_what_expired_and_tells_it(data: DatasetSpec) -> None:
    house = House()
    await house.runs.open(request(data))
    await house.runs.lease(JOB, 1, worker="w0", shards=1, request_id="")
    house.queue.pass_time(31)
    other = house.replica()
    await other.resume()
    await other.sweep(look=True)
    assert [(told.worker, told.reason) for told in house.told("lease.requeued")] == [("w0", "expired")]
    assert other.latest[JOB].view.queued == 2 * ROWS


@pytest.mark.asyncio
async def test_a_job_that_cannot_be_swept_keeps_no_other_from_it(
    data: DatasetSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    house = House()
    await house.runs_store.create("job-0", b"no run")
    await house.runs.open(request(data))
    await house.runs.lease(JOB, 1, worker="w0", shards=1, request_id="")
    house.queue.pass_time(31)
    other = house.replica()
    await other.resume()
    assert other.active == {JOB: 1}
    other.active = {"job-0": 1, JOB: 1}
    sweep = house.queue.sweep

    async def broken(job_id: str, gen: int) -> Released:
        if job_id == "job-0":
            raise DataLoss("its queue cannot be read")
        return await sweep(job_id, gen)

    monkeypatch.setattr(house.queue, "sweep", broken)
    await other.sweep(look=True)
    assert len(house.told("lease.requeued")) == 1 and JOB in other.latest


@pytest.mark.asyncio
async def test_a_default_that_is_written_out_makes_no_other_dataset(data: DatasetSpec) -> None:
    house = House()
    await house.runs.open(request(data))
    spelled = DatasetSpec.parse(data.model_dump(mode="json"))
    assert spelled.model_fields_set != data.model_fields_set
    await house.replica().open(request(spelled))


@pytest.mark.asyncio
async def test_a_closed_run_tells_everybody_that_it_is_over(data: DatasetSpec) -> None:
    house = House()
    await house.runs.open(request(data))
    await house.runs.close(JOB, forget=False)
    assert not house.runs._tasks._journals, "nothing is held of it"
    assert (await house.replica().lease(JOB, 1, worker="w0", shards=1, request_id="")).state is State.STALE_GEN
    await house.runs.close(JOB, forget=False)
    await house.runs.close(JOB, forget=True)
    assert house.log.messages == {}
    with pytest.raises(NotFound):
        await house.runs.progress(JOB)
    await house.runs.close(JOB, forget=True)


@pytest.mark.asyncio
async def test_registering_an_equal_dataset_again_changes_nothing(data: DatasetSpec) -> None:
    house = House()
    first = await house.datasets.register("clicks", data)
    assert (first.revision, first.rows, first.files, first.spec.name) == (1, ROWS, 1, "clicks")
    assert await house.datasets.register("clicks", data) == first
    other = data.model_copy(update={"label_above": 0.5})
    assert (await house.datasets.register("clicks", other)).revision == 2
    assert [dataset.revision for dataset in await house.datasets.list()] == [2]
    assert [told.rows for told in house.told("dataset.registered")] == [ROWS, ROWS]
    with pytest.raises(NotFound):
        await house.datasets.get("views")
    with pytest.raises(InvalidArgument):
        await house.datasets.register("views", data.model_copy(update={"name": "clicks"}))


@pytest.mark.asyncio
async def test_a_dataset_with_a_wrong_column_is_not_registered(data: DatasetSpec) -> None:
    house = House()
    with pytest.raises(InvalidArgument, match=r"data\.label"):
        await house.datasets.register("clicks", data.model_copy(update={"label": "nosuch"}))
    assert await house.datasets.list() == []


@pytest.mark.asyncio
async def test_records_survive_the_wire(data: DatasetSpec) -> None:
    house = House()
    line, _ = await house.runs.open(request(data))
    records = line.tasks_of(0, line.end)
    assert [wire.task_from_pb(wire.task_to_pb(record)) for record in records] == records
    journal = Journal()
    for message in wire.chunks(generate(Plan((await Indexer().index(data)).slices, 2, 3, True))):
        journal.take(7, wire.message_of(7, message))
    assert journal.line.closed and journal.line.tasks_of(0, line.end) == [replace(each, sequence=7) for each in records]


@pytest.mark.asyncio
async def test_what_takes_time_is_done_once_and_holds_up_nobody(
    data: DatasetSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Many workers that come to tasks whose page is not there make it once, in a thread."""
    house = House()
    await house.runs.open(request(data))
    made, page = list[object](), PlannedTasks._made_page

    def slowly(self: PlannedTasks, epoch: int, number: int) -> object:
        made.append(threading.current_thread())
        return page(self, epoch, number)

    monkeypatch.setattr(PlannedTasks, "_made_page", slowly)
    workers = [house.runs.lease(JOB, 1, worker=f"w{k}", shards=1, request_id="") for k in range(8)]
    answers = await asyncio.gather(*workers)
    assert all(answer.state is State.GRANTED for answer in answers)
    assert len(made) == 1 and made[0] is not threading.main_thread()


@pytest.mark.asyncio
async def test_a_removed_dataset_is_gone_and_its_name_free(data: DatasetSpec) -> None:
    house = House()
    registered = await house.datasets.register("clicks", data)
    assert registered.size_bytes > 0 and registered.tasks > 0 and registered.columns > 0
    assert await house.datasets.remove("clicks") and not await house.datasets.remove("clicks")
    assert await house.datasets.list() == []
    assert (await house.datasets.register("clicks", data.model_copy(update={"label_above": 0.5}))).revision == 1


@pytest.mark.asyncio
async def test_each_removal_of_a_dataset_is_told_once(data: DatasetSpec) -> None:
    house = House()
    await house.datasets.remove("clicks")
    assert house.told("dataset.removed") == [], "there was none"
    for label_above in (0.5, 0.6):
        await house.datasets.register("clicks", data.model_copy(update={"label_above": label_above}))
    await house.datasets.remove("clicks")
    await house.datasets.remove("clicks")
    await house.datasets.register("clicks", data)
    await house.datasets.remove("clicks")
    assert [(told.name, told.revision) for told in house.told("dataset.removed")] == [("clicks", 2), ("clicks", 1)]
    assert len({event.id for event in house.events}) == len(house.events), "the bus takes none for a repetition"
