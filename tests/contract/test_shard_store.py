"""What every store of queues promises. The in-memory one runs always, Valkey's where its server starts."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import replace

import pytest
import pytest_asyncio

from recmesh.formats import IntervalSet
from services.shardsvc.domain.lease import Granted, Lease, Opening, State, View
from services.shardsvc.store.queue import MOST_HELD, MOST_SHARDS, QueueStore
from services.shardsvc.store.valkey import ValkeyQueue, connect
from tests.support.servers import ValkeyServer, valkey_server
from tests.support.shard_queue import MemoryQueue

JOB = "job-1"
TTL_S = 0.4
BATCH = 10


class Harness:
    """A store, and what may befall it."""

    def __init__(
        self, store: QueueStore, pass_ttl: Callable[[], Awaitable[None]], lose: Callable[[], Awaitable[None]],
        restart: Callable[[], Awaitable[None]],
    ) -> None:
        self.store = store
        self.pass_ttl = pass_ttl
        self.lose = lose
        self.restart = restart

    async def view(self, gen: int = 1) -> View:
        view = (await self.store.look(JOB, gen))[1]
        assert view is not None
        return view

    async def lease(
        self, worker: str = "w0", shards: int = 1, request_id: str = "", gen: int = 1, below: int = 0
    ) -> Granted:
        return await self.store.lease(JOB, gen, worker=worker, shards=shards, request_id=request_id, below=below)


@pytest.fixture(scope="module")
def valkey(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ValkeyServer]:
    with valkey_server(tmp_path_factory.mktemp("valkey")) as server:
        yield server


@pytest_asyncio.fixture(params=["memory", pytest.param("valkey", marks=pytest.mark.integration)])
async def harness(request: pytest.FixtureRequest) -> AsyncIterator[Harness]:
    if request.param == "memory":
        memory = MemoryQueue()

        async def pass_ttl() -> None:
            memory.pass_time(TTL_S)

        async def lose() -> None:
            memory.lose_everything()

        async def restart() -> None:
            memory.restart()

        yield Harness(memory, pass_ttl, lose, restart)
        return
    server: ValkeyServer = request.getfixturevalue("valkey")
    client = connect(server.url)
    await client.flushall()
    store = ValkeyQueue(client)

    async def over() -> None:
        await asyncio.sleep(TTL_S + 0.01)       # the clock is the server's own: nothing else ends a lease

    async def flush() -> None:
        await client.flushall()
        await client.script_flush()

    async def kill() -> None:
        await asyncio.to_thread(server.restart)

    yield Harness(store, over, flush, kill)
    await store.stop()


def opening(
    *, gen: int = 1, total: int = 100, to_do: tuple[tuple[int, int], ...] = (), shard_batches: int = 1,
    ttl_s: float = 60.0, first_epoch: int = 1 << 32,
) -> Opening:
    return Opening(gen, total, BATCH, shard_batches, ttl_s, first_epoch, to_do or ((0, total),))


def pieces(granted: Granted) -> list[tuple[int, int]]:
    return [(lease.lo, lease.hi) for lease in granted.leases]


async def drain(harness: Harness, gen: int = 1) -> list[tuple[int, int]]:
    """Leases and completes all there is; the pieces in the order they came."""
    seen: list[tuple[int, int]] = []
    while (granted := await harness.lease(shards=3, gen=gen)).state is State.GRANTED:
        seen += pieces(granted)
        await harness.store.renew(
            JOB, gen, worker="w0", progress=[(lease.epoch, lease.hi, True, 0) for lease in granted.leases]
        )
    assert granted.state is State.DRAINED
    return seen


async def drain_queue(harness: Harness) -> None:
    """Somebody trains all that is queued."""
    while (await harness.view()).queued:
        [lease] = (await harness.lease("other")).leases
        await harness.store.renew(JOB, 1, worker="other", progress=[(lease.epoch, lease.hi, True, lease.hi)])


@pytest.mark.asyncio
async def test_a_queue_that_was_never_opened_asks_to_be_opened(harness: Harness) -> None:
    assert (await harness.lease()).state is State.REOPEN
    assert (await harness.store.renew(JOB, 1, worker="w0", progress=[(1, 1, False, 0)])).state is State.REOPEN
    assert (await harness.store.release(JOB, 1, worker="w0", crashed=True)).state is State.REOPEN
    assert (await harness.store.reconcile(JOB, 1, done=IntervalSet())).state is State.REOPEN
    assert (await harness.store.look(JOB, 1))[1] is None


@pytest.mark.asyncio
async def test_pieces_come_in_ascending_order_and_cover_what_is_to_do_exactly_once(harness: Harness) -> None:
    await harness.store.open(JOB, opening(total=95, to_do=((3, 41), (60, 95)), shard_batches=2))
    seen = await drain(harness)
    assert seen == sorted(seen)
    assert IntervalSet(seen) == IntervalSet([(3, 41), (60, 95)])
    assert sum(hi - lo for lo, hi in seen) == 38 + 35


@pytest.mark.asyncio
async def test_shards_end_on_the_grid_of_batches(harness: Harness) -> None:
    await harness.store.open(JOB, opening(total=1000, to_do=((7, 1000),), shard_batches=3))
    granted = await harness.lease(shards=3)
    assert pieces(granted) == [(7, 30), (30, 60), (60, 90)]


@pytest.mark.asyncio
async def test_below_a_position_only_what_begins_before_it_is_leased(harness: Harness) -> None:
    await harness.store.open(JOB, opening(to_do=((8, 40), (60, 95)), shard_batches=1))
    assert pieces(await harness.lease(shards=9, below=30)) == [(8, 10), (10, 20), (20, 30)]
    assert (await harness.lease(below=30)).state is State.WAIT
    assert pieces(await harness.lease(below=31)) == [(30, 40)]
    assert (await harness.lease(below=60)).state is State.WAIT
    await harness.store.release(JOB, 1, worker="w0", crashed=False)
    assert pieces(await harness.lease(worker="w1", below=10)) == [(8, 10)]
    await harness.store.release(JOB, 1, worker="w1", crashed=False)
    nothing_below = await harness.lease(below=8)
    assert nothing_below.state is State.WAIT and nothing_below.retry_after_s > 0
    assert len(pieces(await harness.lease(shards=20))) == 8


@pytest.mark.asyncio
async def test_below_a_position_a_slow_worker_gets_what_is_queued_and_nobody_takes_over(harness: Harness) -> None:
    """A synchronous step waits for what is below: were it kept from the only worker there is, nothing would go on."""
    await harness.store.open(JOB, opening(total=100, shard_batches=1))
    await harness.store.size(JOB, 1, worker="slow", shard_batches=1)
    assert pieces(await harness.lease("slow")) == [(0, 10)]
    assert (await harness.lease("slow")).state is State.WAIT
    assert pieces(await harness.lease("slow", below=20)) == [(10, 20)]
    assert len(pieces(await harness.lease("w1", shards=9))) == 8
    assert (await harness.lease("w2", below=100)).state is State.WAIT
    assert (await harness.lease("w2")).state is State.GRANTED


@pytest.mark.asyncio
async def test_shards_shrink_near_the_end_so_that_workers_end_together(harness: Harness) -> None:
    await harness.store.open(JOB, opening(total=1600, shard_batches=80))
    lengths: list[int] = []
    while (granted := await harness.lease(f"w{len(lengths) % 4}")).state is State.GRANTED:
        lengths.append(granted.leases[0].hi - granted.leases[0].lo)
    assert lengths[0] == 800
    assert lengths == sorted(lengths, reverse=True)
    assert min(lengths[:-1]) == 100             # an eighth at the least
    assert sum(lengths) == 1600


@pytest.mark.asyncio
async def test_epochs_are_unique_and_grow(harness: Harness) -> None:
    await harness.store.open(JOB, opening(first_epoch=7 << 32))
    epochs = [lease.epoch for _ in range(5) for lease in (await harness.lease(shards=2)).leases]
    assert epochs == list(range(7 << 32, (7 << 32) + 10))


@pytest.mark.asyncio
async def test_a_repeated_request_gets_the_same_leases(harness: Harness) -> None:
    await harness.store.open(JOB, opening())
    first = await harness.lease(shards=3, request_id="r1")
    again = await harness.lease(shards=3, request_id="r1")
    other = await harness.lease(shards=3, request_id="r2")
    assert [lease.epoch for lease in again.leases] == [lease.epoch for lease in first.leases]
    assert pieces(again) == pieces(first)
    assert not set(pieces(other)) & set(pieces(first))


@pytest.mark.asyncio
async def test_all_leased_means_wait_and_all_complete_means_drained(harness: Harness) -> None:
    await harness.store.open(JOB, opening(total=10))
    granted = await harness.lease()
    waiting = await harness.lease("w1")
    assert waiting.state is State.WAIT
    assert 0 < waiting.retry_after_s <= 1
    await harness.store.renew(JOB, 1, worker="w0", progress=[(granted.leases[0].epoch, 10, True, 0)])
    assert (await harness.lease("w1")).state is State.DRAINED


@pytest.mark.asyncio
async def test_an_expired_lease_gives_back_what_lies_beyond_its_progress(harness: Harness) -> None:
    await harness.store.open(JOB, opening(total=50, shard_batches=8, ttl_s=TTL_S, to_do=((0, 50),)))
    lease = (await harness.lease(shards=1)).leases[0]
    await harness.store.renew(JOB, 1, worker="w0", progress=[(lease.epoch, lease.lo + 10, False, 0)])
    await harness.pass_ttl()
    granted = await harness.lease("w1", shards=50)
    assert [(gone.worker, gone.lo, gone.hi) for gone in granted.requeued] == [("w0", lease.lo + 10, lease.hi)]
    assert IntervalSet(pieces(granted)) == IntervalSet([(lease.lo + 10, 50)])
    lost = await harness.store.renew(JOB, 1, worker="w0", progress=[(lease.epoch, lease.hi, True, 0)])
    assert lost.lost == (lease.epoch,)
    assert (await harness.view()).done == 10


@pytest.mark.asyncio
async def test_a_renewed_lease_does_not_expire(harness: Harness) -> None:
    await harness.store.open(JOB, opening(total=10, ttl_s=TTL_S))
    lease = (await harness.lease()).leases[0]
    await harness.pass_ttl()
    renewed = await harness.store.renew(JOB, 1, worker="w0", progress=[(lease.epoch, 0, False, 0)])
    assert renewed.lost == ()
    view = await harness.view()
    assert [held.worker for held in view.leases] == ["w0"] and view.expirations == 0


@pytest.mark.asyncio
async def test_progress_never_goes_back_nor_beyond_the_lease(harness: Harness) -> None:
    await harness.store.open(JOB, opening(total=100, shard_batches=3))
    lease = (await harness.lease()).leases[0]
    for done_to in (lease.lo + 20, lease.lo + 10, lease.hi + 500):
        await harness.store.renew(JOB, 1, worker="w0", progress=[(lease.epoch, done_to, False, 0)])
        held = (await harness.view()).leases[0]
        assert lease.lo + 20 <= held.progress <= lease.hi


@pytest.mark.asyncio
async def test_a_lease_completed_and_renewed_in_one_call_ends_once(harness: Harness) -> None:
    await harness.store.open(JOB, opening(total=100))
    first, second = (await harness.lease(shards=2)).leases
    both = [(first.epoch, first.hi, True, 0), (first.epoch, first.hi, True, 0), (second.epoch, second.lo, False, 0)]
    assert (await harness.store.renew(JOB, 1, worker="w0", progress=both)).lost == ()
    view = await harness.view()
    assert [lease.epoch for lease in view.leases] == [second.epoch]
    assert view.done == 10


@pytest.mark.asyncio
async def test_no_worker_hoards_leases(harness: Harness) -> None:
    await harness.store.open(JOB, opening(total=BATCH * (MOST_HELD + 500)))
    got = 0
    while (granted := await harness.lease(shards=MOST_SHARDS)).state is State.GRANTED:
        got += len(granted.leases)
    assert granted.state is State.WAIT
    assert got == MOST_HELD
    assert (await harness.lease("w1")).state is State.GRANTED
    released = await harness.store.release(JOB, 1, worker="w0", crashed=False)
    assert len(released.requeued) == MOST_HELD


@pytest.mark.asyncio
async def test_another_worker_cannot_complete_a_lease(harness: Harness) -> None:
    await harness.store.open(JOB, opening(total=10))
    lease = (await harness.lease()).leases[0]
    stolen = await harness.store.renew(JOB, 1, worker="w1", progress=[(lease.epoch, 10, True, 0)])
    assert stolen.lost == (lease.epoch,)
    assert (await harness.view()).leased == 10


@pytest.mark.asyncio
async def test_an_older_generation_is_told_so_by_every_call(harness: Harness) -> None:
    await harness.store.open(JOB, opening(gen=1))
    await harness.lease(gen=1)
    assert await harness.store.open(JOB, opening(gen=2)) == "opened"
    assert await harness.store.open(JOB, opening(gen=1)) == "stale"
    assert (await harness.lease(gen=1)).state is State.STALE_GEN
    assert (await harness.store.renew(JOB, 1, worker="w0", progress=[])).state is State.STALE_GEN
    assert (await harness.store.release(JOB, 1, worker="w0", crashed=False)).state is State.STALE_GEN
    assert (await harness.store.reconcile(JOB, 1, done=IntervalSet())).state is State.STALE_GEN
    assert (await harness.lease(gen=3)).state is State.REOPEN
    assert (await harness.view(2)).queued == 100


@pytest.mark.asyncio
async def test_opening_a_generation_again_keeps_its_leases(harness: Harness) -> None:
    await harness.store.open(JOB, opening())
    await harness.lease(shards=2)
    assert await harness.store.open(JOB, opening(first_epoch=9 << 32)) == "exists"
    assert len((await harness.view()).leases) == 2


@pytest.mark.asyncio
async def test_release_queues_the_rest_at_once_and_names_no_suspect(harness: Harness) -> None:
    await harness.store.open(JOB, opening(shard_batches=2))
    lease = (await harness.lease()).leases[0]
    await harness.store.renew(JOB, 1, worker="w0", progress=[(lease.epoch, 10, False, 0)])
    released = await harness.store.release(JOB, 1, worker="w0", crashed=False)
    assert [(one.lo, one.hi, one.cause) for one in released.requeued] == [(10, 20, "released")]
    assert released.suspects == ()
    assert released.deaths == 0
    assert (await harness.view()).leased == 0


@pytest.mark.asyncio
async def test_deaths_are_counted_per_position_over_generations(harness: Harness) -> None:
    for gen in (1, 2, 3):
        await harness.store.open(JOB, opening(gen=gen, total=1000, shard_batches=3, to_do=((30, 1000),)))
        first, second = (await harness.lease(f"w{gen}", shards=2, gen=gen)).leases
        await harness.store.renew(JOB, gen, worker=f"w{gen}", progress=[(first.epoch, 45, False, 0)])
        released = await harness.store.release(JOB, gen, worker=f"w{gen}", crashed=True)
        assert released.suspects == ((45, 50), (second.lo, second.lo + 10))
        assert released.deaths == gen
    again = await harness.store.release(JOB, 3, worker="w3", crashed=True)      # its answer may be lost
    assert again.suspects[0] == (45, 50)
    assert again.deaths == 3
    assert again.requeued == ()


@pytest.mark.asyncio
async def test_a_crash_that_is_told_after_the_lease_expired_still_names_the_suspect(harness: Harness) -> None:
    await harness.store.open(JOB, opening(total=1000, ttl_s=TTL_S))
    lease = (await harness.lease()).leases[0]
    await harness.pass_ttl()
    await harness.store.sweep(JOB, 1)
    released = await harness.store.release(JOB, 1, worker="w0", crashed=True)
    assert released.suspects == ((lease.lo, lease.lo + BATCH),)
    assert released.deaths == 1


@pytest.mark.asyncio
async def test_reconcile_queues_exactly_what_nobody_has(harness: Harness) -> None:
    await harness.store.open(JOB, opening(total=100, to_do=((40, 100),)))
    held = (await harness.lease()).leases[0]                                # [40, 50)
    found = await harness.store.reconcile(JOB, 1, done=IntervalSet([(0, 20), (30, 40)]))
    assert found.orphans == ((20, 30),)
    again = await harness.store.reconcile(JOB, 1, done=IntervalSet([(0, 20), (30, 40)]))
    assert again.orphans == ()
    assert (await harness.view()).queued == 60
    await harness.store.renew(JOB, 1, worker="w0", progress=[(held.epoch, held.hi, True, 0)])
    assert IntervalSet(await drain(harness)) == IntervalSet([(20, 30), (50, 100)])


@pytest.mark.asyncio
async def test_reconcile_takes_done_pieces_out_of_the_queue(harness: Harness) -> None:
    await harness.store.open(JOB, opening(total=100))
    await harness.store.reconcile(JOB, 1, done=IntervalSet([(0, 5), (20, 30), (90, 100)]))
    assert IntervalSet(await drain(harness)) == IntervalSet([(5, 20), (30, 90)])


@pytest.mark.asyncio
async def test_what_was_trained_after_the_snapshot_is_not_trained_again(harness: Harness) -> None:
    await harness.store.open(JOB, opening(total=100))
    lease = (await harness.lease()).leases[0]
    await harness.store.renew(JOB, 1, worker="w0", progress=[(lease.epoch, lease.hi, True, 0)])
    assert (await harness.store.reconcile(JOB, 1, done=IntervalSet())).orphans == ()
    # the next snapshot was cut after that completion: now it is truly missing
    assert (await harness.store.reconcile(JOB, 1, done=IntervalSet())).orphans == ((lease.lo, lease.hi),)


@pytest.mark.asyncio
async def test_at_the_end_all_that_a_snapshot_lacks_is_queued(harness: Harness) -> None:
    await harness.store.open(JOB, opening(total=30))
    await drain(harness)
    assert (await harness.store.reconcile(JOB, 1, done=IntervalSet([(0, 10)]))).orphans == ((10, 30),)
    assert IntervalSet(await drain(harness)) == IntervalSet([(10, 30)])


@pytest.mark.asyncio
async def test_a_lost_store_asks_to_be_reopened_and_never_says_drained(harness: Harness) -> None:
    await harness.store.open(JOB, opening())
    await harness.lease()
    await harness.lose()
    assert (await harness.lease()).state is State.REOPEN
    assert await harness.store.open(JOB, opening(first_epoch=2 << 32)) == "opened"
    assert (await harness.lease()).leases[0].epoch == 2 << 32


@pytest.mark.asyncio
async def test_after_a_restart_of_the_server_leases_live_on_and_epochs_jump(harness: Harness) -> None:
    await harness.store.open(JOB, opening())
    before = (await harness.lease(shards=2)).leases
    await harness.restart()
    assert (await harness.lease()).state is State.REOPEN
    assert await harness.store.open(JOB, opening(first_epoch=5 << 32)) == "adopted"
    assert [(x.epoch, x.lo, x.hi) for x in (await harness.view()).leases] == [
        (x.epoch, x.lo, x.hi) for x in before
    ]
    assert (await harness.lease()).leases[0].epoch == 5 << 32


@pytest.mark.asyncio
async def test_a_forgotten_job_leaves_nothing(harness: Harness) -> None:
    await harness.store.open(JOB, opening())
    await harness.lease()
    await harness.store.forget(JOB, 1)
    assert (await harness.lease()).state is State.REOPEN


@pytest.mark.asyncio
async def test_positions_and_epochs_beyond_a_million_million_stay_exact(harness: Harness) -> None:
    far = 1 << 50
    await harness.store.open(JOB, opening(total=far + 100, to_do=((far + 1, far + 99),), first_epoch=1 << 51))
    granted = await harness.lease(shards=2)
    assert granted.leases[0].lo == far + 1
    assert granted.leases[0].hi == (far + 1) // BATCH * BATCH + BATCH
    assert granted.leases[0].epoch == 1 << 51
    await harness.store.release(JOB, 1, worker="w0", crashed=False)
    assert IntervalSet(await drain(harness)) == IntervalSet([(far + 1, far + 99)])


@pytest.mark.asyncio
async def test_a_slow_worker_keeps_one_small_shard_and_the_rest_is_queued_at_once(harness: Harness) -> None:
    await harness.store.open(JOB, opening(total=1000, shard_batches=16))
    first, second = (await harness.lease(shards=2)).leases
    await harness.store.renew(JOB, 1, worker="w0", progress=[(first.epoch, 10, False, first.hi)])
    sized = await harness.store.size(JOB, 1, worker="w0", shard_batches=4)
    assert [(one.lo, one.hi) for one in sized.requeued] == [(50, 160), (160, 320)]
    renewed = await harness.store.renew(
        JOB, 1, worker="w0", progress=[(first.epoch, 20, False, first.hi), (second.epoch, second.lo, False, second.hi)]
    )
    assert renewed.cuts == ((first.epoch, 50),) and renewed.lost == (second.epoch,)
    view = await harness.view()
    assert (view.queued, view.done) == (950, 20)


@pytest.mark.asyncio
async def test_a_slow_worker_never_holds_more_than_its_size_until_it_is_fast_again(harness: Harness) -> None:
    await harness.store.open(JOB, opening(total=1000, shard_batches=16))
    await harness.store.size(JOB, 1, worker="w0", shard_batches=4)
    assert pieces(await harness.lease(shards=3)) == [(0, 40)]
    assert (await harness.lease()).state is State.WAIT
    assert pieces(await harness.lease("w1")) == [(40, 200)]
    [held] = (await harness.view()).leases[:1]
    await harness.store.renew(JOB, 1, worker="w0", progress=[(held.epoch, 20, False, held.hi)])
    assert pieces(await harness.lease()) == [(200, 220)]
    await harness.store.size(JOB, 1, worker="w0", shard_batches=0)
    assert pieces(await harness.lease()) == [(220, 380)]


@pytest.mark.asyncio
async def test_at_the_end_idle_workers_take_what_a_slow_one_holds_by_halves_and_then_double_its_last_batch(
    harness: Harness,
) -> None:
    await harness.store.open(JOB, opening(total=80, shard_batches=32))
    await harness.store.size(JOB, 1, worker="slow", shard_batches=4)
    [slow] = (await harness.lease("slow")).leases
    assert (slow.lo, slow.hi) == (0, 40)
    await drain_queue(harness)
    taken: list[Lease] = []
    for helper in ("w1", "w2", "w3"):
        taken += (await harness.lease(helper)).leases
    assert [(lease.lo, lease.hi) for lease in taken] == [(20, 40), (10, 20), (0, 10)]
    assert (await harness.lease("w4")).state is State.WAIT, "two hold the last batch; a third would not help"
    view = await harness.view()
    assert (view.leased, view.done) == (40, 40), "what two hold is counted once"
    for lease in taken:
        await harness.store.renew(JOB, 1, worker=lease.worker, progress=[(lease.epoch, lease.hi, True, lease.hi)])
    assert (await harness.lease("w1")).state is State.DRAINED, "the slow worker is not waited for"
    renewed = await harness.store.renew(JOB, 1, worker="slow", progress=[(slow.epoch, 0, False, 40)])
    assert renewed.lost == (slow.epoch,)
    assert (await harness.store.reconcile(JOB, 1, done=IntervalSet([(0, 80)]))).orphans == ()


@pytest.mark.parametrize("first", ["slow", "helper"])
@pytest.mark.asyncio
async def test_of_two_that_hold_the_same_batch_either_may_go_and_it_is_queued_when_both_have(
    harness: Harness, first: str
) -> None:
    await harness.store.open(JOB, opening(total=10))
    await harness.store.size(JOB, 1, worker="slow", shard_batches=1)
    await harness.lease("slow")
    assert pieces(await harness.lease("helper")) == [(0, 10)]
    second = "helper" if first == "slow" else "slow"
    assert (await harness.store.release(JOB, 1, worker=first, crashed=False)).requeued == ()
    view = await harness.view()
    assert (view.queued, view.leased) == (0, 10)
    [back] = (await harness.store.release(JOB, 1, worker=second, crashed=False)).requeued
    assert (back.lo, back.hi) == (0, 10)


@pytest.mark.asyncio
async def test_a_lease_that_its_holder_ends_itself_ends_the_other_over_the_same_positions(harness: Harness) -> None:
    await harness.store.open(JOB, opening(total=10))
    await harness.store.size(JOB, 1, worker="slow", shard_batches=1)
    [slow] = (await harness.lease("slow")).leases
    [other] = (await harness.lease("helper")).leases
    await harness.store.renew(JOB, 1, worker="slow", progress=[(slow.epoch, 10, True, 10)])
    assert (await harness.store.renew(JOB, 1, worker="helper", progress=[(other.epoch, 0, False, 10)])).lost
    assert (await harness.lease("slow")).state is State.DRAINED


@pytest.mark.asyncio
async def test_a_fresh_lease_of_a_worker_that_is_not_slow_is_left_to_it(harness: Harness) -> None:
    await harness.store.open(JOB, opening(total=40, shard_batches=32, ttl_s=60.0))
    while (await harness.lease("w0")).state is State.GRANTED:
        pass
    assert (await harness.lease("w1")).state is State.WAIT


@pytest.mark.asyncio
async def test_a_line_that_goes_on_is_not_drained_until_it_is_closed(harness: Harness) -> None:
    await harness.store.open(JOB, replace(opening(total=0), to_do=(), more=True))
    waiting = await harness.lease()
    assert waiting.state is State.WAIT and waiting.retry_after_s >= 0.05
    assert (await harness.store.extend(JOB, 1, total=20, closed=False)).queued == 20
    assert (await harness.lease(shards=2)).state is State.GRANTED
    await harness.store.extend(JOB, 1, total=20, closed=True)
    assert (await harness.lease("w1")).state is State.WAIT          # the other holds all of it
    await harness.store.release(JOB, 1, worker="w0", crashed=False)
    assert IntervalSet(await drain(harness)) == IntervalSet([(0, 20)])


@pytest.mark.asyncio
async def test_what_a_line_gains_is_queued_once_however_often_and_in_which_order_it_is_told(harness: Harness) -> None:
    await harness.store.open(JOB, replace(opening(total=10, shard_batches=8), more=True))
    told = [await harness.store.extend(JOB, 1, total=total, closed=False) for total in (30, 30, 15, 45)]
    assert (told[-1].state, told[-1].queued) == (State.GRANTED, 45)
    assert (await harness.view()).total == 45
    # It is one piece: no shard ends where the line grew.
    assert pieces(await harness.lease())[0] != (0, 10)
    await harness.store.release(JOB, 1, worker="w0", crashed=False)
    await harness.store.extend(JOB, 1, total=45, closed=True)
    assert IntervalSet(await drain(harness)) == IntervalSet([(0, 45)])


@pytest.mark.asyncio
async def test_a_line_is_extended_in_its_own_generation_alone(harness: Harness) -> None:
    assert (await harness.store.extend(JOB, 1, total=20, closed=False)).state is State.REOPEN
    await harness.store.open(JOB, opening(gen=2, total=10))
    assert (await harness.store.extend(JOB, 1, total=20, closed=False)).state is State.STALE_GEN
    assert (await harness.store.extend(JOB, 3, total=20, closed=False)).state is State.REOPEN
    assert (await harness.view(2)).total == 10


@pytest.mark.asyncio
@pytest.mark.parametrize("more", [True, False])
async def test_a_queue_that_a_restart_took_back_learns_how_far_its_line_goes(harness: Harness, more: bool) -> None:
    await harness.store.open(JOB, replace(opening(total=20), more=True))
    await harness.restart()
    assert await harness.store.open(JOB, replace(opening(total=50), more=more)) == "adopted"
    assert (await harness.view()).total == 50
    await harness.store.extend(JOB, 1, total=50, closed=True)
    await harness.store.extend(JOB, 1, total=50, closed=False)          # told late, by another replica
    assert IntervalSet(await drain(harness)) == IntervalSet([(0, 50)])
