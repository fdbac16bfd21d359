"""One parameter server as its own process, and the part of jobmaster that it needs: registration and orders."""

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from bench.mesh import ROOT, one_thread
from recmesh.formats import SlotMap
from recmesh.pb import common_pb2, jobmaster_pb2, ps_pb2
from recmesh.pb.jobmaster_pb2_grpc import RunsServicer, add_RunsServicer_to_server
from recmesh.pb.ps_pb2_grpc import ParameterServerStub
from recmesh.runtime.rpc import sync_channel, sync_server

PATIENCE_S = 600.0
FILL = 200_000
"""New rows per push while the table is filled."""


class _Registry(RunsServicer):
    """Takes registrations and heartbeats."""

    def __init__(self, job_id: str, ckptcache: str) -> None:
        self._record = jobmaster_pb2.RunRecord(job_id=job_id, gen=1, phase="restoring")
        self._ckptcache = ckptcache
        self.registered: jobmaster_pb2.RegisterRequest | None = None
        self.arrived = threading.Event()

    def Register(self, request: jobmaster_pb2.RegisterRequest, context: Any) -> jobmaster_pb2.Assignment:
        self.registered = request
        self.arrived.set()
        return jobmaster_pb2.Assignment(spec_json="{}", record=self._record, heartbeat_s=5.0,
                                        ckptcache=self._ckptcache)

    def Heartbeat(self, request: jobmaster_pb2.HeartbeatRequest, context: Any) -> jobmaster_pb2.HeartbeatReply:
        return jobmaster_pb2.HeartbeatReply(directive=jobmaster_pb2.HeartbeatReply.CONTINUE, gen=1)

    def Record(self, request: jobmaster_pb2.RecordRequest, context: Any) -> jobmaster_pb2.RunRecord:
        return self._record

    def Report(self, request: jobmaster_pb2.ReportRequest, context: Any) -> jobmaster_pb2.ReportReply:
        return jobmaster_pb2.ReportReply()


@dataclass
class Server:
    """The running process."""

    job_id: str
    address: str
    incarnation: str
    pid: int
    ckptcache: str
    stub: ParameterServerStub
    gen: int = 0
    next_step: int = field(default=0)

    def restore(self, *, snapshot: int = 0, parts: list[str] | None = None) -> float:
        """Begin the next generation; seconds of the call."""
        self.gen += 1
        wire = common_pb2.SlotMap(version=1, owners=SlotMap.even(1, 1).to_bytes())
        began = time.perf_counter()
        self.stub.Restore(ps_pb2.RestoreRequest(
            job_id=self.job_id, gen=self.gen, term=1, incarnation=self.incarnation, ps=0, map=wire,
            snapshot=snapshot, parts=parts or [], ckptcache=self.ckptcache), timeout=PATIENCE_S)
        return time.perf_counter() - began

    def declare(self, *, dim: int) -> None:
        """One table with Adagrad."""
        self.stub.Declare(ps_pb2.DeclareRequest(job_id=self.job_id, gen=self.gen, tables=[ps_pb2.TableSpec(
            name="item", dim=dim, optimizer=ps_pb2.OptimizerSpec(kind="adagrad", lr=0.02),
            init=ps_pb2.InitSpec(kind="uniform", scale=0.05))]), timeout=60.0)

    def fill(self, rows: int, *, dim: int) -> None:
        """Ids 0..rows-1 exist afterwards."""
        for lo in range(0, rows, FILL):
            ids = np.arange(lo, min(rows, lo + FILL))
            self.stub.Push(ps_pb2.PushRequest(
                job_id=self.job_id, gen=self.gen, map_version=1,
                batch=[common_pb2.Piece(line=0, lo=self.next_step, hi=self.next_step + 1)],
                tables=[ps_pb2.TableGrads(table=0, ids=ids.tobytes(),
                                          grads=np.full((len(ids), dim), 1e-3, np.float32).tobytes())],
            ), timeout=60.0)
            self.next_step += 1

    def private_bytes(self) -> int:
        """Its anonymous memory; parts in shared memory are not in it."""
        status = Path(f"/proc/{self.pid}/status").read_text()
        return next(int(line.split()[1]) << 10 for line in status.splitlines() if line.startswith("RssAnon"))


@contextmanager
def parameter_server(job_id: str, *, folder: Path, shm_dir: Path, ckptcache: str, token: str) -> Iterator[Server]:
    """Started and registered; killed at the end."""
    with ExitStack() as stack:
        registry = _Registry(job_id, ckptcache)
        listener = sync_server("jobmaster", "127.0.0.1:0", [lambda s: add_RunsServicer_to_server(registry, s)],
                               token=token)
        stack.callback(listener.stop, 1.0)
        env = {name: value for name, value in os.environ.items() if not name.startswith("RECMESH_")}
        env |= one_thread() | {
            "RECMESH_ROLE": "ps", "RECMESH_ROLE_INDEX": "0", "RECMESH_JOB_ID": job_id, "RECMESH_TOKEN": token,
            "RECMESH_JOBMASTER": listener.address, "RECMESH_SHM_DIR": str(shm_dir), "RECMESH_WORK_DIR": str(folder),
        }
        with (folder / "ps.log").open("ab") as log:
            process = subprocess.Popen([sys.executable, "-m", "recmesh.trainer"], env=env, cwd=ROOT, stdout=log,
                                       stderr=log)
        stack.callback(process.wait, 30)
        stack.callback(process.kill)
        if not registry.arrived.wait(60.0) or registry.registered is None:
            raise RuntimeError(f"the parameter server did not come up:\n{(folder / 'ps.log').read_text()[-4000:]}")
        channel = sync_channel(registry.registered.address, token=token)
        stack.callback(channel.close)
        yield Server(job_id, registry.registered.address, registry.registered.incarnation, process.pid, ckptcache,
                     ParameterServerStub(channel))
