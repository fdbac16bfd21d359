"""Loans over the wire: what a job and a gateway are told, before and after brain was killed."""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import TypeAlias

import pytest

from recmesh.pb import brain_pb2 as pb
from recmesh.pb import brain_pb2_grpc as pb_grpc
from recmesh.runtime.errors import InvalidArgument
from recmesh.runtime.rpc import channel
from tests.support.servers import NatsServer, nats
from tests.support.service_process import ServiceProcess, service

__all__ = ["nats"]
pytestmark = [pytest.mark.integration, pytest.mark.asyncio]
POOL = {"own": 1, "most": 2, "most_draining": 2, "step_s": 0.1}
WAIT_S = 60.0
Stub: TypeAlias = "pb_grpc.BrainAsyncStub"  # it exists for the type checker only


@pytest.fixture
def brain(nats: NatsServer, tmp_path: Path) -> Iterator[ServiceProcess]:
    env = {"RECMESH_NATS_URL": nats.url, "RECMESH_LOANS": json.dumps(POOL)}
    with service("brain", tmp_path / "brain", env=env) as process:
        yield process


def served(replicas: int) -> pb.PlanServingRequest:
    """160 requests per second, of which one HN bears 50."""
    hn = pb.ServingKind(name="hn", replicas=replicas, min=1, max=3, busy=0.8 / replicas, answered_per_s=80.0)
    return pb.PlanServingRequest(
        model="ctr", asker="gw", step_s=10, arrivals_per_s=160, window_s=10, kinds=[hn], target_utilisation=0.5,
        quantile=0.9, hold_s=10,
    )  # fmt: skip


def lending(workers: int, lent: int) -> pb.LendRequest:
    worker = pb.RolePlan(role="worker", replicas=workers, cpu=1)
    return pb.LendRequest(job=pb.JobMeta(job_id="ads"), worker=worker, least=1, lent=lent, settled=True)


async def asked_until(stub: Stub, lent: int, workers: int, *, replicas: int) -> pb.LendReply:
    """The job and the gateway ask until the job is told so many."""
    async with asyncio.timeout(WAIT_S):
        while True:
            await stub.PlanServing(served(replicas))
            reply = await stub.Lend(lending(4 - lent, lent))
            if reply.workers == workers:
                return reply
            await asyncio.sleep(0.05)


async def test_a_loan_goes_on_over_the_death_of_brain(brain: ServiceProcess) -> None:
    async with channel(brain.address()) as link:
        stub = pb_grpc.BrainStub(link)
        [bound] = (await stub.PlanServing(served(1))).decisions
        assert (bound.replicas, bound.reason) == (1, "ROOM") and "room for 1" in bound.explanation
        owed = await asked_until(stub, 0, 2, replicas=1)
        assert "are needed now" in owed.explanation and owed.again_s == pytest.approx(0.1)
        assert (await stub.Lend(lending(2, 2))).workers == 2
        [free] = (await stub.PlanServing(served(1))).decisions
        assert free.replicas == 3
    brain.kill()
    brain.start()
    async with channel(brain.address()) as link:
        stub = pb_grpc.BrainStub(link)
        told = await stub.Loans(pb.LoansRequest(open=True))
        assert told.enabled and [loan.state for loan in told.loans] == ["lent", "lent"]
        assert (told.pool.own, told.pool.lent, told.pool.most) == (1, 2, 2)
        assert (await stub.Lend(lending(2, 2))).workers == 2
        [still] = (await stub.PlanServing(served(3))).decisions
        assert still.replicas == 3
        await stub.RecordJob(pb.JobHistory(job=pb.JobMeta(job_id="ads", owner="me"), outcome="Succeeded", ended=1.0))
        assert {loan.state for loan in (await stub.Loans(pb.LoansRequest())).loans} == {"lent"}
        assert (await stub.Lend(lending(4, 0))).workers == 0, "another life of the job owes nothing"


async def test_a_wrong_ask_is_refused_by_field(brain: ServiceProcess) -> None:
    async with channel(brain.address()) as link:
        with pytest.raises(InvalidArgument) as refused:
            await pb_grpc.BrainStub(link).Lend(pb.LendRequest(job=pb.JobMeta(job_id="ads")))
    assert [each.path for each in refused.value.violations] == ["worker.replicas"]
