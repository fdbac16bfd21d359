"""The ops page of ckptcache: what is kept, where, and how fast it gets there; figures."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from recmesh.runtime.clock import Clock
from recmesh.runtime.ops import Cell, Chart, Log, OpsServer, Page, Recorder, Table, Tile, Tiles, Tone, state, text
from recmesh.runtime.ops.panels import Points, Value
from recmesh.runtime.readiness import Readiness
from services.ckptcache.app.checkpoints import Checkpoints
from services.ckptcache.app.figures import Figures
from services.ckptcache.app.flush import Flusher
from services.ckptcache.app.ports import Policy
from services.ckptcache.app.replicas import Replicas
from services.ckptcache.app.replicate import Replicator
from services.ckptcache.config import CkptcacheSettings
from services.ckptcache.domain.snapshot import Snapshot, State
from services.ckptcache.store.files import SnapshotFiles

WRITTEN, MEMORY = "to storage", "in memory"
MOST_CHARTED = 8


def release() -> str:
    """recmesh's version."""
    try:
        return version("recmesh")
    except PackageNotFoundError:
        return "0"


class View:
    """What the page shows, as rows and numbers."""

    def __init__(
        self, checkpoints: Checkpoints, flusher: Flusher, figures: Figures, files: SnapshotFiles, *,
        replicas: Replicas, replicator: Replicator, policy: Policy, clock: Clock,
    ) -> None:  # fmt: skip
        self._checkpoints, self._flusher, self._figures = checkpoints, flusher, figures
        self._replicas, self._replicator = replicas, replicator
        self._files, self._policy, self._clock = files, policy, clock
        self.recorder = Recorder("ops charts", self._probe)

    def page(self) -> Page:
        """What a person sees."""
        return Page(
            "ckptcache", subtitle="snapshots of training state, in memory and on storage", choices=("job",),
            links={"all jobs": "./"},
            panels=[
                Tiles("Now", self._tiles),
                Table(
                    "Snapshots",
                    ["job", "snapshot", "holds", "gen", "state", "parts", "rows", "samples", "size", "tiers", "age",
                     "why"],
                    self._rows, empty="no job has cut a snapshot yet", chosen_by="job",
                ),
                Chart("Size of snapshots", self._sizes, unit="B", chosen_by="job"),
                Chart("Time until a snapshot was committed", self._times, unit="s", chosen_by="job"),
                Chart("Flush throughput", lambda: self.recorder.points(WRITTEN), unit="B/s"),
                Chart("Shared memory", lambda: self.recorder.points(MEMORY), unit="B"),
                Log("Log"),
            ],
        )  # fmt: skip

    def figures(self) -> Mapping[str, Any]:
        """For $SRV.STATS."""
        known = self._checkpoints.local()
        return {
            "snapshots": len(known),
            "committed": sum(snapshot.state is State.COMMITTED for snapshot in known),
            "memory_bytes": self._figures.memory_bytes,
            "written_bytes": self._figures.total_written_bytes,
            "replicated_bytes": self._figures.total_replicated_bytes,
            "held_for_peers_bytes": self._replicas.size_bytes,
            "ended": dict(self._figures.ended_by_state),
        }

    def _probe(self) -> Mapping[str, float]:
        return {WRITTEN: self._figures.bytes_per_s(), MEMORY: float(self._figures.memory_bytes)}

    def _tiles(self) -> list[Tile]:
        known = self._checkpoints.local()
        committed = [snapshot for snapshot in known if snapshot.state is State.COMMITTED]
        bad = sum(snapshot.state in (State.FAILED, State.DAMAGED) for snapshot in known)
        collecting = sum(snapshot.state is State.COLLECTING for snapshot in known)
        free = self._files.storage.free_bytes()
        return [
            Tile("committed", len(committed), note=f"of {len({s.job_id for s in committed})} job(s)"),
            Tile("on storage", text.size(sum(s.size_bytes for s in committed)),
                 note="" if free is None else f"{text.size(free)} free"),
            Tile("in memory", text.size(self._figures.memory_bytes),
                 note=f"of {text.size(self._policy.memory_budget_bytes)}", spark=self.recorder.recent(MEMORY)),
            Tile("for peers", text.size(self._replicas.size_bytes),
                 note=f"of {text.size(self._policy.replica_budget_bytes)}"),
            Tile("being collected", collecting),
            Tile("flushing", f"{text.size(self._figures.bytes_per_s())}/s", spark=self.recorder.recent(WRITTEN)),
            Tile("failed or damaged", bad, tone=Tone.BAD if bad else Tone.PLAIN),
        ]  # fmt: skip

    def _sizes(self) -> Mapping[str, Points]:
        return self._of_committed(lambda snapshot: float(snapshot.size_bytes))

    def _times(self) -> Mapping[str, Points]:
        return self._of_committed(lambda snapshot: max(0.0, snapshot.committed - snapshot.created))

    def _of_committed(self, figure: Callable[[Snapshot], float]) -> Mapping[str, Points]:
        """Of the jobs with the newest snapshots, at the time of each."""
        lines: dict[str, list[tuple[float, float | None]]] = {}
        for snapshot in self._checkpoints.local():
            if snapshot.committed:
                lines.setdefault(snapshot.job_id, []).append((snapshot.created, figure(snapshot)))
        newest = sorted(lines, key=lambda job_id: lines[job_id][-1][0], reverse=True)[:MOST_CHARTED]
        return {job_id: sorted(lines[job_id]) for job_id in newest}

    def _rows(self) -> Iterable[Sequence[Value]]:
        held = {(copy.job_id, copy.number) for copy in self._flusher.copies}
        now = self._clock.now()
        for snapshot in reversed(self._checkpoints.local()):
            key = (snapshot.job_id, snapshot.number)
            at_peer = bool(self._replicator.holders(*key))
            there = {"memory": key in held, "peer": at_peer, "storage": snapshot.usable}
            tiers = [tier for tier, has in there.items() if has]
            yield [
                snapshot.job_id, snapshot.number, _holds(snapshot), snapshot.gen, state(snapshot.state),
                _parts(snapshot), text.count(snapshot.rows), text.count(snapshot.samples),
                text.size(snapshot.size_bytes),
                ", ".join(tiers), text.duration(max(0.0, now - snapshot.created)),
                snapshot.reason or snapshot.label,
            ]  # fmt: skip


def _holds(snapshot: Snapshot) -> str:
    """All rows, or what changed since another."""
    if snapshot.bases:
        return f"changes since {snapshot.bases[0]}"
    return "all" if snapshot.committed else ""


def _parts(snapshot: Snapshot) -> Cell:
    there = len(snapshot.expected) - len(snapshot.missing)
    return Cell(f"{there} of {len(snapshot.expected)}", share=there / max(1, len(snapshot.expected)))


def server(settings: CkptcacheSettings, view: View, ready: Readiness) -> OpsServer:
    """The component that serves the page, probes and metrics."""
    return OpsServer(
        "ckptcache", settings.http_address, view.page(),
        readiness=ready.reason,
        token=settings.token, version=release(), grafana=settings.grafana_url,
        tls=settings.http_tls, metrics_token=settings.metrics_token,
    )  # fmt: skip
