"""Parameter servers come, go and are replaced while a job trains; every server is a fake that keeps the real rules."""

import asyncio
from typing import Any

import pytest

from recmesh.runtime.errors import InvalidArgument
from services.jobmaster.domain.placement import counts_of
from tests.support.job_world import JobWorld, spec

pytestmark = [pytest.mark.asyncio, pytest.mark.looptime]


async def training(world: JobWorld, *, ps: int = 1, **changes: Any) -> str:
    """A job that trains on so many parameter servers."""
    world.shards.total = 100_000
    roles = {"ps": {"replicas": ps}, "worker": {"replicas": 2}}
    job_id = await world.submit(spec(roles=roles, checkpoint={"every_s": 1000.0}) | changes)
    await world.until(lambda: world.phase(job_id) == "Running")
    return job_id


async def scaled(world: JobWorld, job_id: str, count: int) -> None:
    await world.jobs.scale(job_id, role="ps", replicas=count, clear=False)
    await until_settled(world, job_id, count)


async def until_settled(world: JobWorld, job_id: str, count: int) -> None:
    def is_settled() -> bool:
        run = world.jobs.run_of(job_id)
        return (
            run.status.phase == "Running" and len(run.record.members) == len(run.record.owning) == count
            and len(world.cluster.alive(job_id, "ps")) == count and not run.record.move
            and run.status.settled_ps == tuple(member.ps for member in run.record.members)
        )

    await world.until(is_settled)


def slots_per_server(world: JobWorld, job_id: str) -> list[int]:
    return sorted(counts_of(world.jobs.run_of(job_id).record.owner_of).values())


async def finished(world: JobWorld, job_id: str) -> None:
    """The job ends with every sample in one snapshot, and no slot was ever wrong."""
    run = world.jobs.run_of(job_id)
    world.servers.check_truth(run.record)
    world.shards.to_do[job_id] = world.shards.to_do[job_id][:200]
    world.shards.total = 1 + max(
        world.shards.to_do[job_id] + [p for chunk in world.shards.leased[job_id].values() for p in chunk]
    )
    await world.until_phase(job_id, "Succeeded")
    assert world.jobs.run_of(job_id).status.samples == world.shards.total


async def test_parameter_servers_come_and_go_while_training_goes_on(world: JobWorld) -> None:
    job_id = await training(world)
    for count, slots in ((2, [2048, 2048]), (3, [1365, 1365, 1366]), (1, [4096])):
        await scaled(world, job_id, count)
        assert slots_per_server(world, job_id) == slots
        world.servers.check_truth(world.jobs.run_of(job_id).record)
    run = world.jobs.run_of(job_id)
    assert run.record.gen == 1 and run.status.rollbacks == run.status.failures == 0
    moved = [(data.source, data.target, data.slots) for data in world.told("job.slots_moved")]
    assert moved == [(0, 1, 2048), (0, 2, 682), (1, 2, 683), (1, 0, 1365), (2, 0, 1365)]
    scalings = [(data.from_replicas, data.to_replicas) for data in world.told("job.scaled")]
    assert scalings == [(1, 2), (2, 3), (3, 1)]
    assert all(data.expected for data in world.told("job.role_exited"))
    assert all(data.pause_ms < 50 for data in world.told("job.slots_moved"))
    await finished(world, job_id)


async def test_many_slots_go_in_several_handoffs(world: JobWorld) -> None:
    world.limits = world.limits.model_copy(update={"move_slots": 600})
    await world.restart_jobmaster()
    job_id = await training(world)
    await scaled(world, job_id, 2)
    assert [data.slots for data in world.told("job.slots_moved")] == [600, 600, 600, 248]
    assert slots_per_server(world, job_id) == [2048, 2048]
    await finished(world, job_id)


async def test_a_server_that_is_too_slow_for_a_handoff_gets_smaller_ones(world: JobWorld) -> None:
    job_id = await training(world)
    world.servers.most_slots = 300
    await scaled(world, job_id, 2)
    moved = [data.slots for data in world.told("job.slots_moved")]
    assert moved[0] == 256 and max(moved) <= 300 and sum(moved) == 2048
    assert slots_per_server(world, job_id) == [2048, 2048]
    world.servers.most_slots = 4096
    await scaled(world, job_id, 3)
    moved = [data.slots for data in world.told("job.slots_moved")]
    assert max(moved) > 300, "handoffs grow again"
    await finished(world, job_id)


async def test_a_server_whose_machine_goes_away_is_replaced_without_a_rollback(world: JobWorld) -> None:
    job_id = await training(world, ps=2)
    world.draining.add("ps-0-1")
    await world.until(lambda: "ps-0-1" not in world.cluster.alive(job_id, "ps"))
    await until_settled(world, job_id, 2)
    run = world.jobs.run_of(job_id)
    assert [member.ps for member in run.record.members] == [1, 2]
    assert run.status.rollbacks == 0
    assert [data.slots for data in world.told("job.slots_moved")] == [2048]
    assert [(data.matter, data.place) for data in world.told("job.decided")] == [("termination", "ps 0")]
    await world.until(lambda: bool(world.told("job.effect_observed")))
    assert world.told("job.effect_observed")[0].done == "slots were placed on PS 1, 2"
    await finished(world, job_id)


class Blow(Exception):
    """The step at which the jobmaster dies was reached."""


class Fuse:
    """Counts the steps of moves, and stops the jobmaster for good at one of them, before its next step."""

    def __init__(self, world: JobWorld, at: int) -> None:
        self.left, self.blown, self.where = at, asyncio.Event(), ""
        world.servers.gate = world.keys.gate = self.passed

    async def passed(self, step: str) -> None:
        if self.blown.is_set():
            return
        self.left -= 1
        if self.left < 0:
            self.where = step
            self.blown.set()
            await asyncio.Event().wait()   # until its tasks are cancelled


async def killed_at_step(world: JobWorld, job_id: str, fuse: Fuse) -> bool:
    """False: there are fewer steps than that."""
    waiting = asyncio.create_task(fuse.blown.wait())
    settled = asyncio.create_task(until_settled(world, job_id, 3))
    await asyncio.wait([waiting, settled], return_when=asyncio.FIRST_COMPLETED)
    for task in (waiting, settled):
        task.cancel()
    if fuse.blown.is_set():
        await world.restart_jobmaster()
    return fuse.blown.is_set()


@pytest.mark.parametrize("at", range(42))
async def test_a_jobmaster_may_be_killed_between_any_two_steps_of_a_move(world: JobWorld, at: int) -> None:
    job_id = await training(world, ps=2)
    fuse = Fuse(world, at)
    await world.jobs.scale(job_id, role="ps", replicas=3, clear=False)
    assert await killed_at_step(world, job_id, fuse), "there are fewer steps than that"
    await until_settled(world, job_id, 3)
    run = world.jobs.run_of(job_id)
    assert run.status.rollbacks == 0, f"killed at {fuse.where}"
    assert slots_per_server(world, job_id) == [1365, 1365, 1366]
    assert not any(server.sending for server in world.servers.by_address.values() if server.alive)
    await finished(world, job_id)


LOSSES = [(call, kind) for call in ("join", "migrate", "freeze", "free") for kind in ("lost", "undelivered")]


@pytest.mark.parametrize(("call", "kind"), LOSSES)
async def test_a_message_of_a_move_may_be_lost_on_its_way_there_or_back(
    world: JobWorld, call: str, kind: str
) -> None:
    job_id = await training(world)
    getattr(world.servers, kind)[call] = 3
    await scaled(world, job_id, 2)
    assert world.jobs.run_of(job_id).status.rollbacks == 0
    assert slots_per_server(world, job_id) == [2048, 2048]
    await finished(world, job_id)


@pytest.mark.parametrize("lost", ["lost", "undelivered"])
async def test_an_install_that_comes_after_the_move_was_taken_back_has_no_effect(world: JobWorld, lost: str) -> None:
    job_id = await training(world)
    held = world.servers.held_installs = []
    getattr(world.servers, lost).update(abort_install=2, resume=2)
    await world.jobs.scale(job_id, role="ps", replicas=2, clear=False)
    await world.until(lambda: world.servers.calls.count("resume") >= 1 + 2 * (lost == "lost"))
    world.servers.held_installs = None
    assert not any(install() for install in held)
    run = world.jobs.run_of(job_id)
    await world.until(lambda: not run.record.pending)
    world.servers.check_truth(run.record)
    await until_settled(world, job_id, 2)
    assert run.status.rollbacks == 0 and world.retries > 0
    await finished(world, job_id)


async def test_a_move_whose_target_installed_and_could_not_say_so_is_done(world: JobWorld) -> None:
    job_id = await training(world)
    world.servers.lost["freeze"] = 1000
    await scaled(world, job_id, 2)
    assert "resume" not in world.servers.calls
    assert len(world.told("job.slots_moved")) == 1
    await finished(world, job_id)


STEPS = ["after join", "after migrate", "before freeze", "after freeze", "before free", "after free"]


@pytest.mark.parametrize("victim", ["source", "target"])
@pytest.mark.parametrize("when", STEPS)
async def test_a_server_may_die_at_any_step_of_a_move(world: JobWorld, when: str, victim: str) -> None:
    job_id = await training(world)
    await world.jobs.checkpoint(job_id)
    await world.until(lambda: world.phase(job_id) == "Running")
    struck: list[str] = []

    async def strike(step: str) -> None:
        if step == when and not struck:
            struck.append(step)
            world.cluster.kill(job_id, "ps-0-1" if victim == "source" else "ps-1-1")
            await asyncio.sleep(0.1)   # its end is known before the answer

    world.servers.gate = strike
    await world.jobs.scale(job_id, role="ps", replicas=2, clear=False)
    await until_settled(world, job_id, 2)
    run = world.jobs.run_of(job_id)
    assert struck
    # The target owned nothing until it had installed: without it training goes on where it was.
    spared = victim == "target" and when not in ("after freeze", "before free", "after free")
    assert run.status.rollbacks == (0 if spared else 1)
    assert slots_per_server(world, job_id) == [2048, 2048]
    await finished(world, job_id)


async def test_a_target_that_dies_with_the_install_on_its_way_costs_nothing(world: JobWorld) -> None:
    job_id = await training(world)
    world.servers.held_installs = []

    async def strike(step: str) -> None:
        if step == "after freeze" and world.servers.held_installs is not None:
            world.servers.held_installs = None
            world.cluster.kill(job_id, "ps-1-1")

    world.servers.gate = strike
    await scaled(world, job_id, 2)
    run = world.jobs.run_of(job_id)
    assert run.status.rollbacks == 0 and "ps-1-2" in world.cluster.alive(job_id, "ps")
    await finished(world, job_id)


async def test_a_source_that_dies_after_its_last_slots_were_installed_costs_nothing(world: JobWorld) -> None:
    job_id = await training(world)
    died: list[str] = []

    async def strike(step: str) -> None:
        if step == "after freeze" and not died:
            died.append(step)
            world.cluster.kill(job_id, "ps-0-1")
            await asyncio.sleep(0.1)

    world.servers.gate = strike
    world.draining.add("ps-0-1")
    await world.until(lambda: bool(died))
    await until_settled(world, job_id, 1)
    run = world.jobs.run_of(job_id)
    assert [member.ps for member in run.record.members] == [1]
    assert run.status.rollbacks == 0
    await finished(world, job_id)


async def test_a_snapshot_goes_on_while_slots_are_copied_and_the_freeze_waits_for_its_commit(world: JobWorld) -> None:
    job_id = await training(world)
    world.servers.copy_s = 1.0
    world.checkpoints.hold = asyncio.Event()
    await world.jobs.scale(job_id, role="ps", replicas=2, clear=False)
    await world.until(lambda: "migrate" in world.servers.calls)
    asked = asyncio.create_task(world.jobs.checkpoint(job_id))
    await world.clock.sleep(5.0)
    assert "freeze" not in world.servers.calls
    world.checkpoints.hold.set()
    number = await asked
    await until_settled(world, job_id, 2)
    assert (job_id, number) in world.checkpoints.committed
    await finished(world, job_id)


async def test_a_snapshot_that_is_asked_for_between_freeze_and_install_waits_for_the_map(world: JobWorld) -> None:
    job_id = await training(world)
    asked: list[asyncio.Task[int]] = []

    async def ask(step: str) -> None:
        if step == "after freeze" and not asked:
            asked.append(asyncio.create_task(world.jobs.checkpoint(job_id)))
            await asyncio.sleep(0.5)

    world.servers.gate = ask
    await scaled(world, job_id, 2)
    number = await asked[0]
    run = world.jobs.run_of(job_id)
    document = await run.context.store.manifest(job_id, number)
    assert document is not None and document["map_version"] == run.record.map_version
    assert [part["ps"] for part in document["ps"]] == [0, 1]
    assert not run.status.message.endswith("is tried again")
    await finished(world, job_id)


async def test_a_snapshot_of_places_with_holes_is_restored_on_another_number_of_servers(world: JobWorld) -> None:
    job_id = await training(world, ps=2)
    world.draining.add("ps-0-1")
    await world.until(lambda: "ps-0-1" not in world.cluster.alive(job_id, "ps"))
    await until_settled(world, job_id, 2)
    number = await world.jobs.checkpoint(job_id)
    document = await world.jobs.context.store.manifest(job_id, number)
    assert document is not None and [part["ps"] for part in document["ps"]] == [1, 2]
    assert [uri.rpartition("/")[2] for uri in document["parts"]] == ["ps-001", "ps-002"]
    world.cluster.kill(job_id, "ps-2-1")
    await world.jobs.scale(job_id, role="ps", replicas=3, clear=False)
    await until_settled(world, job_id, 3)
    assert world.jobs.run_of(job_id).record.gen == 2
    await finished(world, job_id)


async def test_a_rollback_during_a_copy_forgets_the_move_and_places_the_slots_itself(world: JobWorld) -> None:
    job_id = await training(world, ps=2)
    await world.jobs.checkpoint(job_id)
    world.servers.copy_s = 1000.0
    await world.jobs.scale(job_id, role="ps", replicas=3, clear=False)
    await world.until(lambda: "migrate" in world.servers.calls)
    world.cluster.kill(job_id, "ps-1-1")
    await until_settled(world, job_id, 3)
    assert world.jobs.run_of(job_id).record.gen == 2
    assert slots_per_server(world, job_id) == [1365, 1365, 1366]
    assert not world.told("job.slots_moved")
    await finished(world, job_id)


async def test_a_former_jobmaster_that_wakes_in_a_move_changes_nothing(world: JobWorld) -> None:
    job_id = await training(world)
    former, hold = world.jobs, asyncio.Event()
    frozen: list[str] = []

    async def stop(step: str) -> None:
        if step == "after freeze" and not frozen:
            frozen.append(step)
            await hold.wait()

    world.servers.gate = stop
    await world.jobs.scale(job_id, role="ps", replicas=2, clear=False)
    await world.until(lambda: bool(frozen))
    world.jobs, world.roles = world._jobmaster()
    await world.jobs.lead()
    await until_settled(world, job_id, 2)
    record = world.jobs.run_of(job_id).record
    former.buckets = frozenset()
    hold.set()
    await world.until(lambda: job_id not in former.runners)
    assert world.jobs.run_of(job_id).record == record
    await former.follow()
    await finished(world, job_id)


async def test_a_size_that_running_servers_can_be_given_is_given_to_them_and_told(world: JobWorld) -> None:
    job_id = await training(world, ps=2)
    await world.jobs.resize(job_id, role="ps", cpu=2.0, memory_bytes=0)
    await world.until(lambda: len(world.told("job.role_resized")) == 2)
    assert [(data.role, data.index, data.cpu) for data in world.told("job.role_resized")] == [
        ("ps", 0, 2.0), ("ps", 1, 2.0)
    ]
    assert len([name for name in world.cluster.started if name.startswith("ps-")]) == 2
    await finished(world, job_id)


async def test_servers_of_another_size_take_over_one_after_another(world: JobWorld) -> None:
    world.cluster.resizes = False
    job_id = await training(world, ps=2)
    await world.jobs.resize(job_id, role="ps", cpu=2.0, memory_bytes=0)
    await world.until(lambda: len([name for name in world.cluster.started if name.startswith("ps-")]) == 4)
    await until_settled(world, job_id, 2)
    orders = world.cluster.processes_of[job_id]
    assert {orders[name].order.cpu for name in world.cluster.alive(job_id, "ps")} == {2.0}
    run = world.jobs.run_of(job_id)
    assert run.status.rollbacks == 0
    assert [(data.place, data.seen) for data in world.told("job.decided")] == [
        ("ps 0", "another size is wanted"), ("ps 1", "another size is wanted")
    ]
    assert sum(data.slots for data in world.told("job.slots_moved")) == 4096
    await finished(world, job_id)


@pytest.mark.parametrize(
    ("wish", "path"),
    [
        ({"role": "ps", "cpu": 0.0}, "cpu"), ({"role": "ps", "cpu": -1.0}, "cpu"),
        ({"role": "finisher", "cpu": 1.0}, "role"),
    ],
)
async def test_a_size_that_cannot_be_had_is_refused_by_its_field(
    world: JobWorld, wish: dict[str, Any], path: str
) -> None:
    job_id = await training(world)
    with pytest.raises(InvalidArgument) as refused:
        await world.jobs.resize(job_id, memory_bytes=0, **wish)
    assert path in [item.path for item in refused.value.violations]
    with pytest.raises(InvalidArgument) as refused:
        await world.jobs.scale(job_id, role="ps", replicas=9, clear=False)
    assert [item.path for item in refused.value.violations] == ["replicas"]
