"""Two jobmasters on the same stores share the jobs: either answers for all, and takes over what the other leaves."""

import itertools
import os
import signal
import threading
import time
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import orjson
import pytest

from recmesh.pb import jobmaster_pb2 as pb
from recmesh.pb.jobmaster_pb2_grpc import JobsStub
from recmesh.runtime.errors import MeshError, NotFound, Unavailable
from recmesh.runtime.rpc import sync_channel
from services.jobmaster.domain.shards import BUCKETS
from services.jobmaster.rpc.front import PASSED_ON
from tests.support.servers import free_port
from tests.support.service_process import ServiceProcess
from tests.support.tiny_jobs import ROWS, tiny_job
from tests.support.training_mesh import TrainingMesh
from tests.support.waiting import until

pytestmark = [pytest.mark.integration, pytest.mark.long]

EPOCHS = 40
"""At two workers and a twentieth of a second for each step: more than half a minute."""


class Pair:
    """A mesh whose two jobmasters have addresses of their own; `jobs` calls whichever lives."""

    def __init__(self, folder: Path) -> None:
        self.mesh = TrainingMesh(folder)
        self.addresses = [self.mesh.env["RECMESH_JOBMASTER_RPC"], f"127.0.0.1:{free_port()}"]
        self.both = f"ipv4:{','.join(self.addresses)}"
        env = self.mesh.env | {"RECMESH_JOBMASTER_RPC": self.both, "RECMESH_DATA_DIR": str(folder)}
        homes = [folder, folder / "second"]
        homes[1].mkdir()
        self.processes = [
            ServiceProcess("jobmaster", home, env=env | {"RECMESH_RPC_ADDRESS": address})
            for home, address in zip(homes, self.addresses, strict=True)
        ]
        self.mesh.services["jobmaster"] = self.processes[0]
        self.channels = [sync_channel(address) for address in (*self.addresses, self.both)]
        self.each: Sequence[Any] = [JobsStub(channel) for channel in self.channels[:2]]
        self.jobs: Any = JobsStub(self.channels[2])

    def buckets(self, number: int) -> frozenset[int]:
        """Held by one of them, as it says; none while it does not answer."""
        request = pb.ListRequest(limit=1)
        try:
            reply = self.each[number].List(request, timeout=2.0, metadata=((PASSED_ON, "1"),))
        except MeshError:
            return frozenset()
        return frozenset(reply.buckets)

    def until_shared(self) -> None:
        """Half of the buckets each."""
        until(lambda: [len(self.buckets(number)) for number in (0, 1)] == [BUCKETS // 2] * 2, timeout_s=60.0)
        assert not self.buckets(0) & self.buckets(1)

    def holder(self, job_id: str) -> int:
        """Which of them runs the job: the one that answers a call which may not be passed on."""
        found = []
        for number, jobs in enumerate(self.each):
            try:
                jobs.Get(pb.JobRequest(job_id=job_id), timeout=5.0, metadata=((PASSED_ON, "1"),))
                found.append(number)
            except Unavailable as error:
                assert error.reason == "NOT_HELD", error
        assert len(found) == 1, f"{job_id} is run by {found}"
        return found[0]

    def close(self) -> None:
        for channel in self.channels:
            channel.close()
        self.processes[1].kill()
        self.mesh.close()


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    made = Pair(tmp_path)
    try:
        made.mesh.start()
        made.processes[1].start()
        made.until_shared()
        yield made
    finally:
        made.close()


def suspended(pair: Pair, name: str) -> str:
    """A job without processes."""
    return submit(pair.jobs, waiting_job(pair, name), name)


def waiting_job(pair: Pair, name: str) -> dict[str, Any]:
    return job_of(pair, name) | {"suspend": True}


def job_of(pair: Pair, name: str, **training: Any) -> dict[str, Any]:
    """Without a gateway there is nowhere to upload code: workers find it where it lies."""
    spec = tiny_job(pair.mesh, name, **training)
    path = os.pathsep.join([spec["model"].pop("code"), os.environ.get("PYTHONPATH", "")])
    spec["roles"]["worker"]["env"] = {"STEP_S": "0.05", "PYTHONPATH": path}
    return spec


def submit(jobs: Any, spec: dict[str, Any], request_id: str) -> str:
    request = pb.SubmitRequest(spec_json=orjson.dumps(spec).decode(), request_id=request_id)
    job: pb.Job = jobs.Submit(request, timeout=60.0)
    return job.job_id


def until_trained(pair: Pair, job_id: str, before: pb.Job) -> None:
    """To its end, by the processes that it had, in one generation: nothing was lost, doubled or begun anew."""

    def job() -> pb.Job:
        found: pb.Job = pair.jobs.Get(pb.JobRequest(job_id=job_id), timeout=30.0)
        return found

    until(lambda: job().phase not in ("Running", "Finishing", "Starting"), timeout_s=300.0, poll_s=0.5)
    last = job()
    assert last.phase == "Succeeded", f"{last}\n{pair.mesh.logs(job_id)}"
    assert last.progress.samples == last.progress.total == ROWS * EPOCHS
    assert last.gen == before.gen == 1
    assert {role.handle for role in last.roles} == {role.handle for role in before.roles}
    assert all(role.restarts == 0 for role in last.roles)


def test_either_answers_for_all_jobs_and_one_that_stops_hands_over_at_once(pair: Pair) -> None:
    ids = [suspended(pair, f"job-{number}") for number in range(12)]
    assert {pair.holder(job_id) for job_id in ids} == {0, 1}
    for jobs in pair.each:
        listed = jobs.List(pb.ListRequest(), timeout=10.0)
        assert [job.job_id for job in listed.jobs] == ids[::-1] and not listed.next_page_token
        pages: list[list[str]] = []
        token = ""
        while token or not pages:
            page = jobs.List(pb.ListRequest(limit=5, page_token=token), timeout=10.0)
            pages.append([job.job_id for job in page.jobs])
            token = page.next_page_token
        assert list(itertools.chain(*pages)) == ids[::-1] and [len(page) for page in pages] == [5, 5, 2]
        assert [jobs.Get(pb.JobRequest(job_id=job_id), timeout=10.0).job_id for job_id in ids] == ids
        with pytest.raises(NotFound):
            jobs.Get(pb.JobRequest(job_id="nobodys"), timeout=10.0)
    for jobs, name in itertools.product(pair.each, ids[:2]):        # a repeated request is answered by either
        assert submit(jobs, waiting_job(pair, name), name) == name
    assert submit(pair.each[1], waiting_job(pair, ids[0]), "another").startswith(f"{ids[0]}-")
    for number, job_id in enumerate(ids):
        pair.each[number % 2].Stop(pb.StopRequest(job_id=job_id, reason="enough"), timeout=30.0)

    assert pair.processes[1].stop() == 0
    until(lambda: len(pair.buckets(0)) == BUCKETS)
    assert "cannot be read" not in pair.processes[0].log_path.read_text()
    assert len(pair.each[0].List(pb.ListRequest(), timeout=10.0).jobs) == 13
    listed = pb.ListRequest(phase="Stopped")
    until(lambda: {job.job_id for job in pair.each[0].List(listed, timeout=10.0).jobs} == set(ids))


@pytest.mark.parametrize("how", ["killed", "stopped"])
def test_a_jobmaster_that_is_gone_costs_its_jobs_nothing(pair: Pair, how: str) -> None:
    """Killed: its machine says so at once. Stopped beyond its lease: it wakes, and writes nothing of what it held."""
    job_id = submit(pair.jobs, job_of(pair, "contested", epochs=EPOCHS), "once")
    pair.mesh.until_job(job_id, lambda job: job.phase == "Running" and job.progress.samples > 0)
    before: pb.Job = pair.jobs.Get(pb.JobRequest(job_id=job_id), timeout=10.0)
    held = pair.holder(job_id)
    other, victim = pair.each[1 - held], pair.processes[held]
    if how == "killed":
        victim.kill()
    else:
        os.kill(victim.pid, signal.SIGSTOP)
    try:
        taken: pb.Job = other.Get(pb.JobRequest(job_id=job_id), timeout=30.0)       # waits for whoever takes over
        assert taken.phase == "Running" and taken.gen == before.gen
        until(lambda: len(pair.buckets(1 - held)) == BUCKETS)
        other.Scale(pb.ScaleRequest(job_id=job_id, role="worker", replicas=2), timeout=30.0)
    finally:
        if how == "stopped":
            os.kill(victim.pid, signal.SIGCONT)
    if how == "killed":
        victim.start()
    pair.until_shared()
    assert pair.holder(job_id) in (0, 1)
    until_trained(pair, job_id, before)


def test_both_restarted_in_turn_under_load_lose_no_job_and_no_request(pair: Pair) -> None:
    job_id = submit(pair.jobs, job_of(pair, "steady", epochs=EPOCHS), "once")
    pair.mesh.until_job(job_id, lambda job: job.phase == "Running" and job.progress.samples > 0)
    before: pb.Job = pair.jobs.Get(pb.JobRequest(job_id=job_id), timeout=10.0)
    done, failed, made = threading.Event(), [], []

    def ask() -> None:
        for number in itertools.count():
            if done.is_set():
                return
            began = time.monotonic()
            try:
                made.append(suspended(pair, f"load-{number}"))
                pair.jobs.Get(pb.JobRequest(job_id=made[number // 2]), timeout=20.0)
                listed = pair.jobs.List(pb.ListRequest(), timeout=20.0)
                assert {job.job_id for job in listed.jobs} >= {*made, job_id}
            except (MeshError, AssertionError) as error:
                failed.append((number, time.monotonic() - began, error, traceback.format_exc()))
            time.sleep(0.05)

    asker = threading.Thread(target=ask)
    asker.start()
    try:
        for process in pair.processes:
            assert process.stop() == 0
            process.start()
            pair.until_shared()
        until(lambda: len(made) > 20 or failed, timeout_s=120.0)
    finally:
        done.set()
        asker.join(timeout=120.0)
    assert not failed, f"{len(failed)} of {len(made)}: {failed[:3]}"
    assert made == [f"load-{number}" for number in range(len(made))]
    until_trained(pair, job_id, before)
