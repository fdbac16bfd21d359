"""After a rollback the events of a topic come again at the same positions, in the same batches, bit for bit: from a
real server, while others arrive, whoever reads them; and what the topic has let go of is told."""

import asyncio
import json
import uuid
from collections.abc import AsyncIterator, Iterator

import nats as client
import pytest
import pytest_asyncio

from recmesh.data import Batch, TaskReader
from recmesh.data.topics import topic_of
from recmesh.formats import IntervalSet
from recmesh.runtime.errors import DataLoss
from recmesh.spec.dataset import DatasetSpec
from services.shardsvc.domain.lease import State
from tests.contract.test_topics import World, _broker, _in_jetstream, _in_kafka
from tests.support.servers import NatsServer, nats_server
from tests.unit.data.test_windows import BEGIN
from tests.unit.shardsvc.test_app import JOB, House, request
from tests.unit.shardsvc.test_streams import HandClock, Replica
from tests.unit.shardsvc.topic_world import clicks
from tests.unit.trainer.test_rows_wire import same

pytestmark = [pytest.mark.integration, pytest.mark.asyncio]
BATCH = 8
Batches = dict[tuple[int, int], Batch]
"""By their positions."""


@pytest.fixture(scope="module")
def jetstream(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsServer]:
    with nats_server(tmp_path_factory.mktemp("nats")) as server:
        yield server


class Line:
    """A job's line of a topic with two partitions, and two replicas of shardsvc that may write and lease it."""

    def __init__(self, world: World, source: dict[str, object]) -> None:
        self.world, self.sent = world, 0
        types = {"item": "int", "tags": "list<string>", "number": "float", "label": "float"}
        self.spec: DatasetSpec = clicks(
            {"start": "earliest", "types": types, **source},
            features=[{"name": "item"}, {"name": "tags", "kind": "bag"}, {"name": "number", "kind": "dense"}],
        )
        self.clock, house = HandClock(BEGIN + 100.0), House()
        self.replicas = [Replica(house, self.clock, opened=topic_of) for _ in range(2)]

    async def send(self, count: int, *, partition: int) -> None:
        for number in range(self.sent, self.sent + count):
            value = {"item": number, "tags": ["a", "b", "c"][: number % 4], "number": number / 7, "label": number % 2}
            await asyncio.to_thread(self.world.put, partition, json.dumps(value).encode(), BEGIN + 1.0)
        self.sent += count

    async def open(self, replica: int, *, gen: int, done: IntervalSet) -> None:
        opening = request(self.spec, epochs=1, gen=gen, done=done, batch_size=BATCH, shuffle=True)
        await self.replicas[replica].runs.open(opening)

    async def write(self, replica: int) -> None:
        """Looks of the writer, so much later that none of what was sent lingers any more."""
        self.replicas[replica].runs.active.setdefault(JOB, 1)
        for _ in range(2):
            self.clock.at += 5.0
            await self.replicas[replica].streams._kept(JOB)

    async def train(self, replica: int, *, gen: int, worker: str) -> Batches:
        """All that is given, by a worker that has read nothing before."""
        reader, found, runs = TaskReader(self.spec), Batches(), self.replicas[replica].runs
        while True:
            answer = await runs.lease(JOB, gen, worker=worker, shards=1, request_id="")
            if answer.state is not State.GRANTED:
                return found
            for lease in answer.leases:
                for lo in range(lease.lo, lease.hi, BATCH):
                    hi = min(lease.hi, (lo // BATCH + 1) * BATCH)
                    found[lo, hi] = await asyncio.to_thread(reader.batch, answer.tasks, lo, hi)
            told = [(each.epoch, each.hi, True, 0) for each in answer.leases]
            await runs.renew(JOB, gen, worker=worker, progress=told)

    async def close(self) -> None:
        for replica in self.replicas:
            await replica.streams.stop()


@pytest_asyncio.fixture(params=["jetstream", "kafka"])
async def line(
    request: pytest.FixtureRequest, jetstream: NatsServer, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Line]:
    name = f"t{uuid.uuid4().hex[:8]}"
    if request.param == "jetstream":
        world = await asyncio.to_thread(_in_jetstream, name, jetstream.url)
        made = Line(world, {"jetstream": f"{name}-*", "servers": jetstream.url})
        yield made
        await made.close()
        return
    with _broker(tmp_path_factory.mktemp("kafka")) as servers:
        made = Line(await asyncio.to_thread(_in_kafka, name, servers), {"kafka": name, "servers": servers})
        yield made
        await made.close()


def items(batches: Batches) -> list[int]:
    return [int(item) for _, batch in sorted(batches.items()) for item in batch.ids["item"].values]


async def test_after_a_rollback_the_same_events_come_in_the_same_batches_though_others_arrive(line: Line) -> None:
    await line.send(20, partition=0)
    await line.send(9, partition=1)
    await line.open(0, gen=1, done=IntervalSet())
    await line.write(0)
    first = await line.train(0, gen=1, worker="w0")
    await line.send(13, partition=1)
    await line.write(0)
    first |= await line.train(0, gen=1, worker="w1")
    assert sorted(items(first)) == list(range(line.sent))   # each once
    assert len(first) > 5

    await line.send(11, partition=0)            # unwritten when the job goes back to its snapshot
    snapshot = IntervalSet([(0, BATCH), (2 * BATCH, 3 * BATCH)])
    await line.open(1, gen=2, done=snapshot)
    await line.write(1)                         # another replica goes on with the line
    again = await line.train(1, gen=2, worker="w2")

    lost = {place: batch for place, batch in first.items() if not snapshot.covers(*place)}
    assert len(lost) == len(first) - 2
    # A batch that ended where the line did goes on now; all others are the very same.
    ends = (29, 42)
    assert {(lo, hi) for lo, hi in lost if lo not in ends and hi not in ends} <= again.keys()
    for (lo, hi), batch in lost.items():
        [(begin, whole)] = [(begin, found) for (begin, end), found in again.items() if begin <= lo and hi <= end]
        same(whole.rows(lo - begin, hi - begin), batch)
    assert sorted(items(again) + items({place: first[place] for place in first.keys() - lost.keys()})) == list(
        range(line.sent)), "and what came meanwhile, all of it once"


@pytest.mark.parametrize("line", ["jetstream"], indirect=True)
@pytest.mark.parametrize("how", ["purged", "max_bytes", "made again"])
async def test_events_that_are_gone_when_they_are_to_be_read_again_are_an_error(
    line: Line, jetstream: NatsServer, how: str
) -> None:
    await line.send(20, partition=0)
    await line.open(0, gen=1, done=IntervalSet())
    await line.write(0)
    assert items(await line.train(0, gen=1, worker="w0")) == list(range(20))
    connection = await client.connect(jetstream.url)
    stream, name = connection.jetstream(), line.spec.streams[0].sources[0].jetstream.replace("*", "0")
    if how == "purged":
        await stream.purge_stream(name, seq=5)
    elif how == "max_bytes":
        config = (await stream.stream_info(name)).config
        config.max_bytes = 1024
        await stream.update_stream(config)
    else:
        config = (await stream.stream_info(name)).config
        await stream.delete_stream(name)
        await stream.add_stream(config)
        for _ in range(20):
            await stream.publish(name.replace("-", "."), b'{"item": 0, "tags": [], "number": 0, "label": 0}')
    await connection.close()
    await line.open(1, gen=2, done=IntervalSet())
    with pytest.raises(DataLoss, match="was deleted" if how == "made again" else "its retention is too short"):
        await line.train(1, gen=2, worker="w1")


@pytest.mark.parametrize("line", ["jetstream"], indirect=True)
async def test_an_event_that_somebody_deletes_between_two_readings_leaves_its_batch_and_moves_no_other(
    line: Line, jetstream: NatsServer
) -> None:
    await line.send(20, partition=0)
    await line.open(0, gen=1, done=IntervalSet())
    await line.write(0)
    first = await line.train(0, gen=1, worker="w0")
    connection = await client.connect(jetstream.url)
    await connection.jetstream().delete_msg(line.spec.streams[0].sources[0].jetstream.replace("*", "0"), 11)
    await connection.close()
    await line.open(1, gen=2, done=IntervalSet())
    again = await line.train(1, gen=2, worker="w1")
    assert again.keys() == first.keys()
    for place, batch in first.items():
        kept = [int(item) for item in batch.ids["item"].values if item != 10]
        assert [int(item) for item in again[place].ids["item"].values] == kept
