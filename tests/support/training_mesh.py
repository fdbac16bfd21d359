"""The part of a mesh that training needs: real servers, services as processes, and a client of jobmaster."""

import contextlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson

from recmesh.pb import jobmaster_pb2 as pb
from recmesh.pb.jobmaster_pb2_grpc import JobsStub
from recmesh.runtime.errors import MeshError
from recmesh.runtime.process import find
from recmesh.runtime.rpc import Tls, sync_channel
from tests.support.servers import NatsServer, ValkeyServer, free_port
from tests.support.service_process import ServiceProcess
from tests.support.waiting import until

SERVICES = ("shardsvc", "ckptcache", "jobmaster")


class TrainingMesh:
    """Everything on one machine; every part can be killed and started again in its place."""

    def __init__(
        self, folder: Path, *, services: tuple[str, ...] = SERVICES, tls: Tls | None = None, **settings: str
    ) -> None:
        """`tls`: certificates of all services, and of the roles of jobs."""
        if tls is not None:
            paths = {"CERT": tls.cert, "KEY": tls.key, "CA": tls.ca, "SERVER_NAME": tls.server_name}
            settings |= {f"RECMESH_TLS_{name}": str(value) for name, value in paths.items()}
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self.nats = NatsServer(folder / "nats")
        self.valkey = ValkeyServer(folder / "valkey")
        ports = {name: free_port() for name in ("brain", "gateway", *SERVICES, *services)}
        self.storage = folder / "storage"
        shm = folder / "shm"
        shm.mkdir(exist_ok=True)
        self.env = {
            "RECMESH_NATS_URL": self.nats.url, "RECMESH_VALKEY_URL": self.valkey.url,
            "RECMESH_STORAGE_URI": str(self.storage), "RECMESH_SHM_DIR": str(shm),
            **{f"RECMESH_{name.upper()}_RPC": f"127.0.0.1:{port}" for name, port in ports.items()},
            **settings,
        }
        self.services = {
            name: ServiceProcess(
                name, folder, env=self.env | {"RECMESH_RPC_ADDRESS": f"127.0.0.1:{ports[name]}"}
            )
            for name in services
        }
        self._channel = sync_channel(f"127.0.0.1:{ports['jobmaster']}", tls=tls)
        self.jobs: Any = JobsStub(self._channel)

    def start(self) -> None:
        """Servers first, then services."""
        self.nats.start()
        self.valkey.start()
        for item in self.services.values():
            item.start()

    def close(self) -> None:
        """Kills everything, the roles of all jobs included."""
        for item in self.services.values():
            item.kill()
        for handle in find(self.folder / "run" / "jobs", recursive=True):
            handle.kill()
        self._channel.close()
        self.nats.kill()
        self.valkey.kill()

    def submit(self, spec: dict[str, Any], **options: Any) -> str:
        """The job's id."""
        request = pb.SubmitRequest(spec_json=orjson.dumps(spec).decode(), **options)
        job: pb.Job = self.jobs.Submit(request, timeout=60.0)
        return job.job_id

    def job(self, job_id: str) -> pb.Job:
        """The job now."""
        job: pb.Job = self.jobs.Get(pb.JobRequest(job_id=job_id), timeout=10.0)
        return job

    def until_job(self, job_id: str, what: Any, *, timeout_s: float = 180.0) -> pb.Job:
        """The job as soon as the condition holds; jobmaster may be away meanwhile."""
        last: list[pb.Job] = []

        def holds() -> bool:
            try:
                last[:] = [self.job(job_id)]
            except MeshError:
                return False
            return bool(what(last[0]))

        try:
            until(holds, timeout_s=timeout_s, poll_s=0.1)
        except AssertionError:
            raise AssertionError(f"not within {timeout_s:g} s; the job is\n{last}\n{self.logs(job_id)}") from None
        return last[0]

    def until_phase(self, job_id: str, phase: str, *, timeout_s: float = 180.0) -> pb.Job:
        """The job once it is there; an end elsewhere fails at once."""
        job = self.until_job(
            job_id, lambda job: job.phase in (phase, "Succeeded", "Failed", "Stopped"), timeout_s=timeout_s
        )
        assert job.phase == phase, f"{job.phase}: {job.reason} {job.message}\n{self.logs(job_id)}"
        return job

    def logs(self, job_id: str) -> str:
        """What its processes wrote last."""
        folder = self.folder / "logs" / "jobs" / job_id
        texts = [f"== {path.name}\n{path.read_text()[-3000:]}" for path in sorted(folder.glob("*.log"))]
        own = self.services["jobmaster"].log_path.read_text()[-4000:]
        return "\n".join([*texts, "== jobmaster", own])

    def kill_role(self, job_id: str, role: str, index: int) -> None:
        """kill -9 of a role's process."""
        state = next(
            item for item in self.job(job_id).roles if (item.role, item.index) == (role, index)
        )
        os.kill(int(state.handle), signal.SIGKILL)


@contextlib.contextmanager
def training_mesh(
    folder: Path, *, services: tuple[str, ...] = SERVICES, tls: Tls | None = None, **settings: str
) -> Iterator[TrainingMesh]:
    """A running mesh; killed at the end of the block."""
    mesh = TrainingMesh(folder, services=services, tls=tls, **settings)
    try:
        mesh.start()
        yield mesh
    finally:
        mesh.close()
