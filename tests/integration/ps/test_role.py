"""Parameter servers as processes: registration, a snapshot through the real ckptcache, rollback, leaving."""

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from recmesh.formats import CHUNK, SlotMap, slots_of
from recmesh.formats.snapshot import open_part, read_dense, read_table
from recmesh.pb import ckptcache_pb2, common_pb2, jobmaster_pb2, ps_pb2
from recmesh.pb.ckptcache_pb2_grpc import CheckpointsStub
from recmesh.pb.jobmaster_pb2_grpc import RunsServicer, add_RunsServicer_to_server
from recmesh.pb.ps_pb2_grpc import ParameterServerStub
from recmesh.runtime.errors import DataLoss, FailedPrecondition
from recmesh.runtime.rpc import sync_channel, sync_server
from tests.support.servers import NatsServer, nats
from tests.support.service_process import ServiceProcess, service
from tests.support.waiting import until
from tests.unit.ps.support import parts_of, truth

__all__ = ["nats"]
pytestmark = pytest.mark.integration
TOKEN = "secret-of-the-mesh"


class Jobmaster(RunsServicer):
    """The role's side of jobmaster, in a few fields."""

    def __init__(self, ckptcache: str) -> None:
        self.record = jobmaster_pb2.RunRecord(job_id="job", gen=1, phase="restoring")
        self.registered: dict[str, jobmaster_pb2.RegisterRequest] = {}
        self.beats: dict[str, jobmaster_pb2.HeartbeatRequest] = {}
        self.directive = jobmaster_pb2.HeartbeatReply.CONTINUE
        self.ckptcache = ckptcache
        self.lock = threading.Lock()

    def Register(self, request: jobmaster_pb2.RegisterRequest, context: Any) -> jobmaster_pb2.Assignment:
        with self.lock:
            self.registered[request.incarnation] = request
        return jobmaster_pb2.Assignment(spec_json="{}", record=self.record, heartbeat_s=0.1,
                                        ckptcache=self.ckptcache)

    def Heartbeat(self, request: jobmaster_pb2.HeartbeatRequest, context: Any) -> jobmaster_pb2.HeartbeatReply:
        with self.lock:
            self.beats[request.incarnation] = request
        return jobmaster_pb2.HeartbeatReply(directive=self.directive, gen=self.record.gen)

    def Record(self, request: jobmaster_pb2.RecordRequest, context: Any) -> jobmaster_pb2.RunRecord:
        return self.record

    def Report(self, request: jobmaster_pb2.ReportRequest, context: Any) -> jobmaster_pb2.ReportReply:
        return jobmaster_pb2.ReportReply()

    def incarnation_of(self, ps: int, *, other_than: str = "") -> str:
        def found() -> list[str]:
            with self.lock:
                return [i for i, r in self.registered.items() if r.index == ps and i != other_than]

        until(found, timeout_s=90)
        return found()[0]


class World:
    """jobmaster's and a worker's hands on real processes."""

    def __init__(self, folder: Path, ckptcache: ServiceProcess, stack: ExitStack) -> None:
        self.folder, self.stack = folder, stack
        self.jobmaster = Jobmaster(ckptcache.address())
        listener = sync_server("jobmaster", "127.0.0.1:0",
                               [lambda s: add_RunsServicer_to_server(self.jobmaster, s)], token=TOKEN)
        stack.callback(listener.stop, 1.0)
        self.address = listener.address
        self.ckptcache = CheckpointsStub(self._channel(ckptcache.address()))
        self.processes: dict[int, subprocess.Popen[bytes]] = {}
        self.version = 0

    def _channel(self, address: str) -> Any:
        channel = sync_channel(address, token=TOKEN)
        self.stack.callback(channel.close)
        return channel

    def start(self, ps: int, *, shm_dir: Path) -> None:
        env = {name: value for name, value in os.environ.items() if not name.startswith("RECMESH_")}
        env |= {"RECMESH_ROLE": "ps", "RECMESH_ROLE_INDEX": str(ps), "RECMESH_JOB_ID": "job",
                "RECMESH_JOBMASTER": self.address, "RECMESH_TOKEN": TOKEN, "RECMESH_SHM_DIR": str(shm_dir),
                "RECMESH_WORK_DIR": str(self.folder), "OMP_NUM_THREADS": "1",
                "RECMESH_NOTICE_S": "1"}
        with (self.folder / f"ps-{ps}.log").open("ab") as log:
            process = subprocess.Popen([sys.executable, "-m", "recmesh.trainer"], env=env, stdout=log, stderr=log,
                                       cwd=Path(__file__).parents[3])
        self.processes[ps] = process
        self.stack.callback(process.wait, 30)
        self.stack.callback(process.kill)

    def stub(self, incarnation: str) -> ParameterServerStub:
        return ParameterServerStub(self._channel(self.jobmaster.registered[incarnation].address))

    def restore(self, members: list[str], *, gen: int, snapshot: int = 0, parts: list[str] | None = None) -> int:
        self.version += 1
        slot_map = SlotMap.even(self.version, len(members))
        self.jobmaster.record = jobmaster_pb2.RunRecord(
            job_id="job", gen=gen, phase="open",
            members=[common_pb2.Member(ps=ps, incarnation=i) for ps, i in enumerate(members)])
        wire = common_pb2.SlotMap(version=self.version, owners=slot_map.to_bytes())
        rows = 0
        for ps, incarnation in enumerate(members):
            stub = self.stub(incarnation)
            rows += stub.Restore(ps_pb2.RestoreRequest(
                job_id="job", gen=gen, term=1, incarnation=incarnation, ps=ps, map=wire, snapshot=snapshot,
                parts=parts or [], ckptcache=self.jobmaster.ckptcache), timeout=60).rows
            sizes = (CHUNK, 3)
            count = ps_pb2.OptimizerSpec(kind="accumulate", lr=1.0)
            stub.Declare(ps_pb2.DeclareRequest(
                job_id="job", gen=gen,
                tables=[ps_pb2.TableSpec(name=name, dim=dim, optimizer=count, init=ps_pb2.InitSpec(kind="zeros"))
                        for name, dim in (("item", 2), ("user", 1))],
                dense=[ps_pb2.DenseSpec(name="w", shape=[CHUNK + 3], optimizer=count)],
                values=[ps_pb2.DenseChunk(block=0, chunk=c, values=bytes(4 * sizes[c])) for c in range(2)]))
        return rows

    def push(self, members: list[str], lo: int, hi: int, *, gen: int) -> list[int]:
        parts = parts_of([(0, lo, hi)], SlotMap.even(self.version, len(members)), gen=gen, n_ps=len(members))
        statuses: list[int] = []
        for incarnation, part in zip(members, parts, strict=True):
            reply = self.stub(incarnation).Push(ps_pb2.PushRequest(
                job_id="job", gen=gen, map_version=part.map_version,
                batch=[common_pb2.Piece(line=0, lo=lo, hi=hi)],
                tables=[ps_pb2.TableGrads(table=t.table, ids=t.ids.tobytes(), grads=t.grads.tobytes(),
                                          counts=b"" if t.counts is None else t.counts.tobytes())
                        for t in part.tables],
                dense=[ps_pb2.DenseChunk(block=b, chunk=c, values=v.tobytes()) for b, c, v in part.dense]))
            statuses.append(reply.status)
        return statuses

    def snapshot(self, members: list[str], number: int, *, gen: int, chain: Sequence[int] = ()) -> list[str]:
        """Cut (on the first of the chain), wait until stored, commit; the parts' URIs, those of the chain too."""
        self.ckptcache.Begin(ckptcache_pb2.BeginRequest(
            job_id="job", gen=gen, snapshot=number, ps=list(range(len(members)))))
        slots = np.zeros(512, np.uint8)
        for incarnation in members:
            cut = self.stub(incarnation).Mark(ps_pb2.MarkRequest(job_id="job", gen=gen, term=1, snapshot=number,
                                                                base=chain[0] if chain else 0))
            assert cut.base == (chain[0] if chain else 0)
            slots += np.frombuffer(cut.slots, np.uint8)
        assert (slots == 255).all()
        wait = ckptcache_pb2.AwaitRequest(job_id="job", snapshot=number, wait_s=30)
        reply = self.ckptcache.Await(wait, timeout=40)
        assert (reply.state, reply.reason) == (ckptcache_pb2.AwaitReply.STORED, "")
        links = [{"snapshot": base, "ps": list(range(len(members)))} for base in chain]
        done = self.ckptcache.Commit(ckptcache_pb2.CommitRequest(
            job_id="job", gen=gen, snapshot=number, manifest_json=json.dumps({"chain": links}), keep=3))
        assert list(done.bases) == list(chain)
        return list(done.parts)

    def items(self, members: list[str], ids: list[int], *, gen: int) -> dict[int, float]:
        from recmesh.store import split_by_owner

        known = np.array(ids)
        found: dict[int, float] = {}
        slot_map = SlotMap.even(self.version, len(members))
        for incarnation, places in zip(members, split_by_owner(known, "item", slot_map), strict=True):
            reply = self.stub(incarnation).Pull(ps_pb2.PullRequest(
                job_id="job", gen=gen, map_version=self.version,
                tables=[ps_pb2.TableIds(table=0, ids=known[places].tobytes())]))
            values = np.frombuffer(reply.rows[0], "<f4").reshape(-1, 2)[:, 0]
            found |= dict(zip(known[places].tolist(), values.tolist(), strict=True))
        return found


@contextmanager
def world(nats: NatsServer, folder: Path) -> Iterator[World]:
    env = {"RECMESH_NATS_URL": nats.url, "RECMESH_STORAGE_URI": str(folder / "storage"),
           "RECMESH_SHM_DIR": str(folder / "shm"), "RECMESH_API_KEY": TOKEN}
    with service("ckptcache", folder / "ckptcache", env=env) as ckptcache, ExitStack() as stack:
        yield World(folder, ckptcache, stack)


@pytest.mark.long
@pytest.mark.parametrize("shares_memory", [True, False])
def test_a_killed_server_is_rolled_back_from_a_snapshot_onto_other_servers(
    nats: NatsServer, tmp_path: Path, shares_memory: bool
) -> None:
    with world(nats, tmp_path) as mesh:
        shm = tmp_path / ("shm" if shares_memory else "elsewhere")
        shm.mkdir(exist_ok=True)
        for ps in (0, 1):
            mesh.start(ps, shm_dir=shm)
        members = [mesh.jobmaster.incarnation_of(ps) for ps in (0, 1)]
        with pytest.raises(FailedPrecondition) as refusal:
            mesh.stub(members[0]).Pull(ps_pb2.PullRequest(job_id="job", gen=1, map_version=1))
        assert refusal.value.reason == "NO_GENERATION"

        mesh.restore(members, gen=1)
        mesh.push(members, 0, 40, gen=1)
        parts = mesh.snapshot(members, 1, gen=1)
        mesh.push(members, 40, 50, gen=1)                       # lost by the rollback, and trained again
        assert read_dense([open_part(uri) for uri in parts])["w"].tolist() == [40.0] * (CHUNK + 3)
        rows = read_table([open_part(uri) for uri in parts], "item")
        assert dict(zip(rows.ids.tolist(), rows.values[:, 0].tolist(), strict=True)) == truth(range(40))[0]
        assert not [path for path in shm.iterdir() if path.is_file()]     # every part was taken over

        mesh.processes[1].send_signal(signal.SIGKILL)
        assert mesh.processes[1].wait(10) == -signal.SIGKILL
        mesh.start(1, shm_dir=shm)
        mesh.start(2, shm_dir=shm)
        survivors = [members[0], mesh.jobmaster.incarnation_of(1, other_than=members[1]),
                     mesh.jobmaster.incarnation_of(2)]
        assert mesh.restore(survivors, gen=2, snapshot=1, parts=parts) == sum(
            len(open_part(uri).document.groups) and open_part(uri).document.rows for uri in parts)
        assert mesh.push(survivors, 0, 40, gen=1) == [ps_pb2.PushReply.STALE_GEN] * 3
        assert mesh.push(survivors, 0, 40, gen=2) == [ps_pb2.PushReply.APPLIED] * 3     # duplicates
        assert mesh.push(survivors, 30, 60, gen=2) == [ps_pb2.PushReply.OVERLAP] * 3
        mesh.push(survivors, 40, 60, gen=2)
        items = truth(range(60))[0]
        assert mesh.items(survivors, list(items), gen=2) == items
        beats = mesh.jobmaster.beats
        until(lambda: all(beats[i].gen == 2 and beats[i].rows and beats[i].memory_bytes for i in survivors))

        mesh.processes[0].send_signal(signal.SIGTERM)
        assert mesh.processes[0].wait(20) == 0
        mesh.jobmaster.record = jobmaster_pb2.RunRecord(
            job_id="job", gen=3, members=[common_pb2.Member(ps=1, incarnation="another")])
        assert mesh.processes[1].wait(20) == 0                  # the record names another incarnation
        mesh.jobmaster.directive = jobmaster_pb2.HeartbeatReply.EXIT
        assert mesh.processes[2].wait(20) == 0


def test_a_damaged_copy_is_passed_over_and_without_a_good_one_no_generation_begins(
    nats: NatsServer, tmp_path: Path
) -> None:
    with world(nats, tmp_path) as mesh:
        mesh.start(0, shm_dir=tmp_path / "shm")
        members = [mesh.jobmaster.incarnation_of(0)]
        mesh.restore(members, gen=1)
        mesh.push(members, 0, 40, gen=1)
        parts = mesh.snapshot(members, 1, gen=1)
        in_memory, stored = list((tmp_path / "shm/ckptcache").iterdir()), list(Path(parts[0]).glob("group-*"))
        for copy in in_memory:
            copy.write_bytes(bytes(copy.stat().st_size))
        assert mesh.restore(members, gen=2, snapshot=1, parts=parts) > 0      # from storage
        for copy in stored:
            copy.write_bytes(bytes(copy.stat().st_size))
        with pytest.raises(DataLoss):
            mesh.restore(members, gen=3, snapshot=1, parts=parts)
        with pytest.raises(FailedPrecondition) as refusal:
            mesh.stub(members[0]).Ledgers(ps_pb2.LedgersRequest(job_id="job", gen=3))
        assert refusal.value.reason == "NO_GENERATION"


def test_deltas_are_restored_onto_other_servers_and_damage_in_their_base_is_found(
    nats: NatsServer, tmp_path: Path
) -> None:
    with world(nats, tmp_path) as mesh:
        shm = tmp_path / "shm"
        for ps in (0, 1):
            mesh.start(ps, shm_dir=shm)
        members = [mesh.jobmaster.incarnation_of(ps) for ps in (0, 1)]
        mesh.restore(members, gen=1)
        mesh.push(members, 0, 200, gen=1)
        mesh.snapshot(members, 1, gen=1)
        mesh.push(members, 200, 204, gen=1)
        mesh.snapshot(members, 2, gen=1, chain=[1])
        mesh.push(members, 204, 208, gen=1)
        parts = mesh.snapshot(members, 3, gen=1, chain=[2, 1])
        assert [uri.split("/")[-2] for uri in parts] == ["00000003"] * 2 + ["00000002"] * 2 + ["00000001"] * 2
        rows = [open_part(uri).document.rows for uri in parts]
        assert sum(rows[:4]) < sum(rows[4:]) / 4                  # a delta is small
        items = truth(range(208))[0]
        saved = read_table([open_part(uri) for uri in parts], "item")
        assert dict(zip(saved.ids.tolist(), saved.values[:, 0].tolist(), strict=True)) == items
        for number, samples in ((1, 200), (3, 208)):
            found, dense = _read_without_recmesh(tmp_path / f"storage/checkpoints/job/{number:08d}")
            assert found == {str(id_): [n, n] for id_, n in truth(range(samples))[0].items()}
            assert dense == [samples] * 2
        mesh.start(2, shm_dir=shm)
        wider = [*members, mesh.jobmaster.incarnation_of(2)]
        mesh.restore(wider, gen=2, snapshot=3, parts=parts)
        assert mesh.items(wider, list(items), gen=2) == items
        for copy in [*(shm / "ckptcache").iterdir(), *Path(parts[4]).glob("group-*.arrow")]:
            if copy.name.startswith("group") or ".00000001." in copy.name:
                copy.write_bytes(bytes(copy.stat().st_size))
        with pytest.raises(DataLoss):
            mesh.restore(wider, gen=3, snapshot=3, parts=parts)
        with pytest.raises(DataLoss, match="snapshot 3 of job job is damaged: it builds on snapshot 1"):
            mesh.ckptcache.Get(ckptcache_pb2.GetRequest(job_id="job", snapshot=3))


@pytest.mark.long
def test_kill_9_in_the_middle_of_a_copy_leaves_nothing_in_shared_memory(nats: NatsServer, tmp_path: Path) -> None:
    """Of two servers one is killed while its part grows; its node's ckptcache, not its successor, cleans up."""
    with world(nats, tmp_path) as mesh:
        shm = tmp_path / "shm"
        for ps in (0, 1):
            mesh.start(ps, shm_dir=shm)
        members = [mesh.jobmaster.incarnation_of(ps) for ps in (0, 1)]
        mesh.restore(members, gen=1)
        _many_rows(mesh, members[0], rows=400_000)
        mesh.ckptcache.Begin(ckptcache_pb2.BeginRequest(job_id="job", gen=1, snapshot=1, ps=[0, 1]))
        mesh.stub(members[0]).Mark(ps_pb2.MarkRequest(job_id="job", gen=1, term=1, snapshot=1))
        until(lambda: any(path.stat().st_size > 1 << 20 for path in shm.glob("recmesh-part.*")), poll_s=0.001)
        mesh.processes[0].send_signal(signal.SIGKILL)
        assert mesh.processes[0].wait(10) == -signal.SIGKILL
        (left,) = shm.glob("recmesh-part.*")                      # it died with the file half written
        mesh.stub(members[1]).Mark(ps_pb2.MarkRequest(job_id="job", gen=1, term=1, snapshot=1))
        waited = mesh.ckptcache.Await(ckptcache_pb2.AwaitRequest(job_id="job", snapshot=1, wait_s=1), timeout=10)
        assert (waited.state, list(waited.missing)) == (ckptcache_pb2.AwaitReply.COLLECTING, [0])
        mesh.ckptcache.Abort(ckptcache_pb2.AbortRequest(job_id="job", snapshot=1, reason="a PS is gone"))
        until(lambda: not left.exists(), timeout_s=60)
        assert [path for path in shm.rglob("*") if path.is_file()] == []
        assert list((tmp_path / "storage").rglob("group-*")) == []


_READER = """
import json, runpy, sys

class Nothing:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "recmesh":
            raise ImportError("there is no recmesh here")

sys.meta_path.insert(0, Nothing())
tables, dense = runpy.run_path(sys.argv[1])["read"](sys.argv[2])
assert not [name for name in sys.modules if name.startswith("recmesh")]
print(json.dumps([tables["item"], [float(dense["w"].min()), float(dense["w"].max())]]))
"""


def _read_without_recmesh(folder: Path) -> tuple[dict[str, list[float]], list[float]]:
    """Rows of `item`, and the bounds of the dense block, as the documented script reads them."""
    script = Path(__file__).parents[3] / "docs/formats/read_snapshot.py"
    done = subprocess.run([sys.executable, "-I", "-c", _READER, str(script), str(folder)],
                          capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    rows, dense = json.loads(done.stdout)
    return rows, dense


def _many_rows(mesh: World, incarnation: str, *, rows: int) -> None:
    """New rows at the first of two servers, in batches."""
    ids = np.arange(4 * rows)
    ours = ids[SlotMap.even(mesh.version, 2).owners[slots_of(ids, "item")] == 0][:rows]
    for n, batch in enumerate(np.array_split(ours, 10)):
        grads = np.ones((len(batch), 2), np.float32)
        reply = mesh.stub(incarnation).Push(ps_pb2.PushRequest(
            job_id="job", gen=1, map_version=mesh.version, batch=[common_pb2.Piece(line=0, lo=n, hi=n + 1)],
            tables=[ps_pb2.TableGrads(table=0, ids=batch.tobytes(), grads=grads.tobytes())]))
        assert reply.status == ps_pb2.PushReply.APPLIED
