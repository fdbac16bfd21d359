"""One suite for the store of jobs: over a bucket in memory, and over a real nats-server."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from recmesh.runtime.bus import Bus
from recmesh.runtime.errors import Aborted, AlreadyExists
from services.jobmaster.domain.job import AcceptedJob, Intent, JobStatus, RoleState, Transition
from services.jobmaster.domain.phase import Phase
from services.jobmaster.domain.record import Member, RunRecord, next_generation
from services.jobmaster.store import MAX_EVENTS, JobStore
from tests.support.job_fakes import FakeKeys
from tests.support.servers import nats_server

pytestmark = pytest.mark.asyncio


@pytest_asyncio.fixture(params=["memory", pytest.param("nats", marks=pytest.mark.integration)])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[JobStore]:
    if request.param == "memory":
        yield JobStore(FakeKeys())
        return
    with nats_server(tmp_path) as server:
        bus = Bus(server.url, "jobmaster")
        await bus.start()
        try:
            yield JobStore(bus.kv("jobs"))
        finally:
            await bus.stop()


def accepted(job_id: str = "ads") -> AcceptedJob:
    return AcceptedJob(job_id=job_id, spec_json='{"name": "ads"}', request_id=f"r-{job_id}", created=12.5)


async def test_documents_come_back_as_they_were_saved(store: JobStore) -> None:
    job = await store.create_job(accepted())
    assert await store.job("ads") == job
    status = JobStatus(
        job_id="ads", phase=Phase.RUNNING, roles=(RoleState(role="ps", index=0, incarnation="x"),),
        transitions=(Transition(source="Pending", target="Starting", reason="plan", at=1.0),),
        metrics={"auc": 0.7},
    )
    saved = await store.save_status(status)
    assert await store.status("ads") == saved
    record = next_generation(
        RunRecord(job_id="ads", term=1), term=1, members=[Member(ps=0, address="h:1", incarnation="i")]
    )
    kept = await store.save_record(record)
    assert await store.record("ads") == kept
    assert len(kept.owners_bytes) == 8192


async def test_what_is_not_there_is_none(store: JobStore) -> None:
    assert await store.job("no") is None
    assert await store.status("no") is None
    assert await store.record("no") is None
    assert await store.manifest("no", 1) is None
    assert await store.events("no") == []


async def test_an_id_is_given_once(store: JobStore) -> None:
    await store.create_job(accepted())
    with pytest.raises(AlreadyExists):
        await store.create_job(accepted())
    await store.create_job(accepted("other"))
    assert await store.job_ids() == ["ads", "other"]


async def test_an_old_document_cannot_overwrite_a_newer(store: JobStore) -> None:
    job = await store.create_job(accepted())
    await store.save_job(job.model_copy(update={"intent": Intent(stop=True)}))
    with pytest.raises(Aborted):
        await store.save_job(job.model_copy(update={"intent": Intent(finish=True)}))
    current = await store.job("ads")
    assert current is not None
    assert current.intent == Intent(stop=True)
    first = await store.save_record(RunRecord(job_id="ads"))
    with pytest.raises(Aborted):
        await store.save_record(RunRecord(job_id="ads", term=3))
    await store.save_record(first.model_copy(update={"term": 1}))
    with pytest.raises(Aborted):
        await store.save_record(first.model_copy(update={"term": 2}))


async def test_a_request_keeps_the_job_that_it_made(store: JobStore) -> None:
    assert await store.claim_request("r 1/ü", "ads") == "ads"
    assert await store.claim_request("r 1/ü", "ads-2") == "ads"
    assert await store.move_request("r 1/ü", "ads-3", taken="ads") == "ads-3"
    assert await store.move_request("r 1/ü", "ads-4", taken="ads") == "ads-3", "another has moved it"
    assert await store.claim_request("r 1/ü", "ads") == "ads-3"


async def test_a_version_is_given_once_and_above_what_the_registry_has(store: JobStore) -> None:
    assert await store.next_version("m", above=0) == 1
    assert await store.next_version("m", above=0) == 2
    assert await store.next_version("m", above=7) == 8
    assert await store.next_version("other", above=0) == 1


async def test_the_history_is_bounded(store: JobStore) -> None:
    await store.save_events("ads", [{"id": str(i)} for i in range(MAX_EVENTS + 5)])
    events = await store.events("ads")
    assert (len(events), events[0]["id"]) == (MAX_EVENTS, "5")


async def test_nothing_of_a_deleted_job_remains(store: JobStore) -> None:
    job = await store.create_job(accepted())
    await store.claim_request(job.request_id, "ads")
    await store.save_status(JobStatus(job_id="ads"))
    await store.save_manifest("ads", 4, {"ledger": []})
    await store.save_manifest("ads-2", 4, {"ledger": [[0, 0, 1]]})
    await store.delete("ads")
    assert await store.job_ids() == []
    assert await store.manifest("ads", 4) is None
    assert await store.manifest("ads-2", 4) == {"ledger": [[0, 0, 1]]}
    assert await store.claim_request(job.request_id, "new") == "new"
    await store.create_job(accepted())
