"""What a snapshot costs training: the pauses that a worker sees, memory, speed.

Beside it stand torch.save of as many bytes and, where it is installed, DLRover's flash checkpoint.
"""

import contextlib
import json
import os
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import psutil

from bench.figures import Result
from bench.mesh import ROOT, Mesh, mesh, one_thread, say, scratch
from bench.parameter_server import Server, parameter_server
from recmesh.cli.mesh.home import Home
from recmesh.pb import ckptcache_pb2, ps_pb2
from recmesh.pb.ckptcache_pb2_grpc import CheckpointsStub
from recmesh.runtime.rpc import sync_channel

PEER_PYTHON = "RECMESH_BENCH_DLROVER_PYTHON"
"""Names an interpreter that has dlrover beside torch."""
DIM, STATE, HEADER = 16, 16, 6
ROW_BYTES = 4 * 40
"""Of a row in the store: values, Adagrad's state and header, rounded up to 8 words."""
SIZES = {"1gib": 1.0, "2gib": 2.0, "4gib": 4.0}
QUICK_SIZES = {"0.125gib": 0.125, "0.25gib": 0.25}
TURNS, QUICK_TURNS = 5, 2
BATCH = 8192
"""Ids drawn per step."""
LEAST_WINDOW_S = 2.0
SETTLE_S = 1.0
GIB = 1 << 30


@dataclass(frozen=True, slots=True)
class Turn:
    """One window with a snapshot, and one as long without."""

    gap_ms: float
    quiet_gap_ms: float
    latch_ms: float
    copy_s: float
    """From the call of Mark until ckptcache has taken the part over."""
    stored_s: float
    """Until it is verified on storage."""
    steps_per_s: float
    quiet_steps_per_s: float
    size_bytes: int
    private_ratio: float
    """The server's largest anonymous memory during the snapshot to that before."""
    node_ratio: float
    """The same with the files in shared memory counted, those that were there before left out."""

    @property
    def pause_ms(self) -> float:
        """As docs/BENCHMARKS.md defines it."""
        return self.gap_ms - self.quiet_gap_ms


def run(*, quick: bool) -> Result:
    """Per size: fill a table, train, and cut `TURNS` whole snapshots and a delta; then kill and restore."""
    sizes = QUICK_SIZES if quick else SIZES
    figures: dict[str, float] = {}
    shown: dict[str, object] = {}
    memory = {"RECMESH_CHECKPOINT_MEMORY_BYTES": str(int(max(sizes.values()) * 1.5 * GIB)),
              "RECMESH_CHECKPOINT_MEMORY_SNAPSHOTS": "1", "RECMESH_CHECKPOINT_KEEP": "1"}
    with mesh(env=memory) as running:
        for name, gib in sizes.items():
            found = _measure(running, f"bench-checkpoint-{name.replace('.', '-')}", gib,
                             QUICK_TURNS if quick else TURNS)
            figures |= {f"{figure}_{name}": value for figure, value in found[0].items()}
            shown[name] = found[1]
        largest = list(sizes)[-1]
        for figure in ("latch_ms", "peak_memory_ratio", "node_memory_ratio", "snapshot_gib_per_s",
                       "stored_gib_per_s", "restore_s_per_gib", "restore_cpu_s_per_gib",
                       "throughput_during_snapshot", "delta_bytes_ratio"):
            figures[figure] = figures.pop(f"{figure}_{largest}")
        figures |= _memcpy(GIB if not quick else GIB // 8)
        figures["snapshot_to_memcpy"] = figures["snapshot_gib_per_s"] / figures["memcpy_gib_per_s"]
        first, gib = next(iter(sizes.items()))
        figures |= _torch_save(running.home, gib)
        machine, shown["machine"] = _machine(sizes[largest])
        figures |= machine
        flash, shown["flash"] = _flash(running.home, gib, name=first)
        figures |= flash
    return Result("checkpoint", figures, {
        "turns": TURNS if not quick else QUICK_TURNS, "batch_ids": BATCH, "dim": DIM, "optimizer": "adagrad",
        "zipf": 1.05, "row_bytes": ROW_BYTES, "sizes_gib": sizes, "of_largest_size": largest, "runs": shown,
        "copies_in_memory": "one snapshot, so that a new one and the last lie there together",
        "quick": f"{list(sizes.values())} GiB, {QUICK_TURNS} turns" if quick else "",
    })


def _measure(running: Mesh, job_id: str, gib: float, turns: int) -> tuple[dict[str, float], object]:
    rows = int(gib * GIB) // ROW_BYTES
    shm, ckptcache = Home(running.home).shm, running.address("ckptcache")
    with closing(sync_channel(ckptcache, token=running.token)) as line:
        cache = CheckpointsStub(line)
        with parameter_server(job_id, folder=running.home, shm_dir=shm, ckptcache=ckptcache,
                              token=running.token) as server:
            server.restore()
            server.declare(dim=DIM)
            server.fill(rows, dim=DIM)
            say(f"  {gib:g} GiB: {rows:,} rows are there")
            with _worker(running, server, rows) as times:
                found = []
                for number in range(1, turns + 1):
                    found.append(_turn(server, cache, times, shm, number=number))
                    say(f"  {gib:g} GiB, turn {number}: {_short(found[-1])}")
                delta = _turn(server, cache, times, shm, number=turns + 1, base=turns)
                say(f"  {gib:g} GiB, delta: {_short(delta)}")
        parts = list(cache.Get(ckptcache_pb2.GetRequest(job_id=job_id, snapshot=turns + 1)).parts)
        with parameter_server(job_id, folder=running.home, shm_dir=shm, ckptcache=ckptcache,
                              token=running.token) as server:
            process = psutil.Process(server.pid)
            spent = sum(process.cpu_times()[:2])
            restore_s = server.restore(snapshot=turns, parts=parts[1:])
            restore_cpu_s = sum(process.cpu_times()[:2]) - spent
            chain_s = server.restore(snapshot=turns + 1, parts=parts)
        cache.Delete(ckptcache_pb2.DeleteRequest(job_id=job_id), timeout=120.0)

    def median(name: str) -> float:
        return float(statistics.median(getattr(turn, name) for turn in found))

    size_gib = median("size_bytes") / GIB
    return {
        "pause_ms": median("pause_ms"), "delta_pause_ms": delta.pause_ms,
        "latch_ms": max(turn.latch_ms for turn in found),
        "peak_memory_ratio": max(turn.private_ratio for turn in found),
        "node_memory_ratio": max(turn.node_ratio for turn in found),
        "snapshot_gib_per_s": size_gib / median("copy_s"), "stored_gib_per_s": size_gib / median("stored_s"),
        "restore_s_per_gib": restore_s / size_gib, "restore_cpu_s_per_gib": restore_cpu_s / size_gib,
        "throughput_during_snapshot": median("steps_per_s") / median("quiet_steps_per_s"),
        "delta_bytes_ratio": delta.size_bytes / (size_gib * GIB),
    }, {"turns": [asdict(turn) for turn in found], "delta": asdict(delta), "restore_s": restore_s,
        "restore_with_delta_s": chain_s}


def _short(turn: Turn) -> str:
    return (f"pause {turn.pause_ms:.1f} ms ({turn.gap_ms:.1f} - {turn.quiet_gap_ms:.1f}), latch {turn.latch_ms:.2f} "
            f"ms, copied in {turn.copy_s:.2f} s, stored in {turn.stored_s:.2f} s, steps/s {turn.steps_per_s:.0f} of "
            f"{turn.quiet_steps_per_s:.0f}, memory {turn.private_ratio:.2f}")


def _turn(server: Server, cache: CheckpointsStub, times: Path, shm: Path, *, number: int, base: int = 0) -> Turn:
    """Snapshot, wait until it is stored and committed; then a window of the same length without one."""
    job, gen = server.job_id, server.gen
    before, files_before = server.private_bytes(), _bytes_in(shm)
    peak = _Peak(server, shm)
    cache.Begin(ckptcache_pb2.BeginRequest(job_id=job, gen=gen, snapshot=number, ps=[0]), timeout=30.0)
    with peak:
        began = time.monotonic()
        cut = server.stub.Mark(ps_pb2.MarkRequest(job_id=job, gen=gen, term=1, snapshot=number, base=base),
                               timeout=60.0)
        if cut.base != base:
            raise RuntimeError(f"the part builds on {cut.base}, not on {base}")
        taken = shm / "ckptcache" / f"{job}.{number:08d}.000"
        while not taken.exists():
            time.sleep(0.005)
        copied = time.monotonic()
        size = taken.stat().st_size
        while (reply := cache.Await(ckptcache_pb2.AwaitRequest(job_id=job, snapshot=number, wait_s=30),
                                    timeout=60.0)).state == ckptcache_pb2.AwaitReply.COLLECTING:
            pass
        if reply.state != ckptcache_pb2.AwaitReply.STORED:
            raise RuntimeError(f"the snapshot is not stored: {reply.reason}")
        links = [{"snapshot": base, "ps": [0]}] if base else []
        cache.Commit(ckptcache_pb2.CommitRequest(job_id=job, gen=gen, snapshot=number, keep=2,
                                                 manifest_json=json.dumps({"chain": links})), timeout=60.0)
        stored = time.monotonic()
        time.sleep(max(0.0, began + LEAST_WINDOW_S - stored))
        ended = time.monotonic()
    time.sleep(SETTLE_S)
    quiet = time.monotonic()
    time.sleep(ended - began)
    steps = np.fromfile(times, np.float64)
    return Turn(
        gap_ms=_largest_gap(steps, began, ended) * 1e3,
        quiet_gap_ms=_largest_gap(steps, quiet, quiet + ended - began) * 1e3,
        latch_ms=cut.latch_ms, copy_s=copied - began, stored_s=stored - began,
        steps_per_s=_rate(steps, began, stored), quiet_steps_per_s=_rate(steps, quiet, quiet + ended - began),
        size_bytes=size, private_ratio=peak.private_bytes / before,
        node_ratio=(peak.private_bytes + peak.file_bytes - files_before) / before)


def _largest_gap(steps: "np.ndarray[tuple[int], np.dtype[np.float64]]", began: float, ended: float) -> float:
    """Seconds between two acknowledged steps, of which a part lies in the window."""
    inside = np.flatnonzero((steps[1:] > began) & (steps[:-1] < ended))
    return float((steps[inside + 1] - steps[inside]).max())


def _rate(steps: "np.ndarray[tuple[int], np.dtype[np.float64]]", began: float, ended: float) -> float:
    return float(((steps > began) & (steps <= ended)).sum() / (ended - began))


class _Peak:
    """The largest memory while inside; asked every 20 ms, from counters that the kernel keeps."""

    def __init__(self, server: Server, shm: Path) -> None:
        self._server, self._shm = server, shm
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self.private_bytes = self.file_bytes = 0

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._ended.wait(0.02):
            self.private_bytes = max(self.private_bytes, self._server.private_bytes())
            self.file_bytes = max(self.file_bytes, _bytes_in(self._shm))


def _bytes_in(folder: Path) -> int:
    """Of all files below; those that vanish meanwhile count nothing."""
    total = 0
    for path in folder.rglob("*"):
        with contextlib.suppress(FileNotFoundError):
            total += path.stat().st_size if path.is_file() else 0
    return total


@contextlib.contextmanager
def _worker(running: Mesh, server: Server, rows: int) -> Iterator[Path]:
    """A worker as its own process; where it writes its times: in memory, as a disk that syncs a part may stall it."""
    with scratch() as folder:
        yield from _training(running, server, rows, folder / "steps")


def _training(running: Mesh, server: Server, rows: int, times: Path) -> Iterator[Path]:
    task = {"address": server.address, "token": running.token, "job_id": server.job_id, "gen": server.gen,
            "ids": rows, "dim": DIM, "batch": BATCH, "first": server.next_step, "times": str(times)}
    process = subprocess.Popen([sys.executable, "-m", "bench.peers.pushing", json.dumps(task)], cwd=ROOT,
                               env={**os.environ, **one_thread()})
    try:
        deadline = time.monotonic() + 120.0
        while not times.exists() or times.stat().st_size < 8 * 100:
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError("the worker does not train")
            time.sleep(0.1)
        yield times
        if process.poll() is not None:
            raise RuntimeError(f"the worker ended with {process.returncode}")
    finally:
        process.terminate()
        process.wait(30)


def _memcpy(size: int) -> dict[str, float]:
    """One thread's copy of as many bytes: into memory that is there, and into pages that have to be made."""
    source, target = np.ones(size, np.uint8), np.zeros(size, np.uint8)
    target[:] = source
    began = time.perf_counter()
    target[:] = source
    warm = time.perf_counter() - began
    del target
    began = time.perf_counter()
    source.copy()
    return {"memcpy_gib_per_s": size / GIB / warm,
            "memcpy_into_fresh_pages_gib_per_s": size / GIB / (time.perf_counter() - began)}


def _machine(gib: float) -> tuple[dict[str, float], object]:
    """The longest round of a process that only touches its own memory, alone and while another fills shared memory."""
    with scratch() as shm:
        task = {"size_bytes": int(gib * GIB), "seconds": 20.0, "shm": str(shm)}
        done = subprocess.run([sys.executable, "-m", "bench.peers.gathering", json.dumps(task)], cwd=ROOT, check=True,
                              env={**os.environ, **one_thread()}, capture_output=True, text=True, timeout=1800)
    found = json.loads(done.stdout.splitlines()[-1])
    return {"machine_gap_ms_alone": found["alone"]["longest_ms"],
            "machine_gap_ms": max(each["longest_ms"] for each in found["beside"])}, found


def _torch_save(folder: Path, gib: float) -> dict[str, float]:
    """Training stands still for torch.save: its time is its pause."""
    rows = int(gib * GIB) // (8 + 4 * (DIM + STATE))
    task = {"rows": rows, "dim": DIM, "path": str(folder / "torch-save.pt")}
    done = subprocess.run([sys.executable, "-m", "bench.peers.saving", json.dumps(task)], cwd=ROOT, check=True,
                          env={**os.environ, **one_thread()}, capture_output=True, text=True, timeout=600)
    found = json.loads(done.stdout.splitlines()[-1])
    size_gib = found["size_bytes"] / GIB
    return {"torch_save_pause_ms_per_gib": found["save_s"] / size_gib * 1e3,
            "torch_save_gib_per_s": size_gib / found["save_s"],
            "torch_save_and_fsync_gib_per_s": size_gib / (found["save_s"] + found["fsync_s"])}


def _flash(folder: Path, gib: float, *, name: str) -> tuple[dict[str, float], object]:
    """Training stands still while it copies into shared memory: the call's time is its pause."""
    python = os.environ.get(PEER_PYTHON, "")
    if not python:
        return {}, f"left out: {PEER_PYTHON} names no interpreter that has dlrover"
    rows, place = int(gib * GIB) // (8 + 4 * (DIM + STATE)), folder / f"{folder.name}-flash"
    place.mkdir()
    done = subprocess.run([python, "-m", "bench.peers.flash", json.dumps(
        {"rows": rows, "dim": DIM, "folder": str(place)})], cwd=ROOT, check=False,
        env={**os.environ, **one_thread()}, capture_output=True, text=True, timeout=900)
    if done.returncode != 0:
        raise RuntimeError(f"DLRover's side failed:\n{done.stderr[-4000:]}")
    found = json.loads(done.stdout.splitlines()[-1])
    pause_s, size_gib = statistics.median(found["pauses_s"]), found["size_bytes"] / GIB
    return {f"flash_pause_ms_{name}": pause_s * 1e3, f"flash_first_pause_ms_{name}": found["first_s"] * 1e3,
            "flash_pause_ms_per_gib": pause_s / size_gib * 1e3, "flash_stored_gib_per_s": size_gib / found["stored_s"],
            }, found
