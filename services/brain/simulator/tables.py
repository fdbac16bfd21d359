"""Reads measured tables: DL2's 804 parameter-server runs, and Pollux's six models."""

import ast
import csv
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from recmesh.plugins.planning import Bounds
from recmesh.runtime.errors import InvalidArgument, Violation
from services.brain.simulator.job import ModelFacts
from services.brain.simulator.papertruth import PaperTruth
from services.brain.simulator.truth import Measurement, Table, Tables, Truth

GIB = 1 << 30
DL2_FILE = "jobs/dl2/config_speed.txt"
POLLUX_FOLDER = "jobs/pollux/simulator/traces"

DLRM_LIKE = ("dssm", "cnn-text-classification", "seq2seq", "wlm")
"""DL2's models that look ids up in embeddings: one click model, three of text."""

_EMBEDDINGS = {  # tables, dimension, dense parameters: of a usual model of that kind, for similarity only
    "dssm": (4, 128, 1_000_000),
    "cnn-text-classification": (1, 128, 400_000),
    "seq2seq": (2, 512, 20_000_000),
    "wlm": (1, 650, 20_000_000),
    "resnet-50": (0, 0, 25_600_000),
    "vgg-16": (0, 0, 138_000_000),
    "resnext-110": (0, 0, 1_700_000),
    "inception-bn": (0, 0, 11_300_000),
}


@dataclass(frozen=True, slots=True)
class Dl2Run:
    """A line of DL2's table: one model on one configuration."""

    model: str
    mode: str
    batch: int
    """Of all workers together."""
    ps: int
    workers: int
    speeds: tuple[float, ...]
    """Samples per second of each worker; all 0: nothing ran."""
    ps_cpu: tuple[float, ...]
    """Cores that each used."""
    worker_cpu: tuple[float, ...]

    @property
    def rate(self) -> float:
        """Samples per second of the job."""
        return sum(self.speeds)


def dl2_runs(path: Path) -> Iterator[Dl2Run]:
    """All lines of the file, in its order."""
    for line in path.read_text(encoding="utf-8").splitlines():
        if line.strip():
            # Python's literals are the file's format; nothing of it is run.
            model, mode, batch, ps, workers, *lists = ast.literal_eval(line)
            yield Dl2Run(model, mode, batch, ps, workers, *(tuple(each) for each in lists))


def dl2(data: Path) -> Truth:
    """Speed is the sum over workers; a worker and a server have 2 cores, as on DL2's cluster.

    Only counts can be chosen: no other size was measured, so bounds pin the cores.
    """
    path = existing(data / DL2_FILE, "--truth dl2")
    rows: dict[str, list[Measurement]] = defaultdict(list)
    batches: dict[str, int] = {}
    for run in dl2_runs(path):
        rows[run.model].append(
            Measurement(
                run.workers, run.ps, run.rate, sum(run.worker_cpu) / max(1, len(run.worker_cpu)),
                sum(run.ps_cpu) / max(1, run.ps),
            )
        )
        batches[run.model] = run.batch
    facts = {model: _dl2_facts(model, batches[model], rows[model]) for model in rows}
    return Tables("dl2", {model: Table.of(facts[model], rows[model]) for model in rows})


def _dl2_facts(model: str, batch: int, rows: list[Measurement]) -> ModelFacts:
    tables, dim, dense = _EMBEDDINGS.get(model, (0, 0, 0))
    workers, ps = max(row.workers for row in rows), max(row.ps for row in rows)
    return ModelFacts(
        model, batch, Bounds((1, workers), (1, ps), (2.0, 2.0), (2.0, 2.0)), worker_cpu=2.0, ps_cpu=2.0,
        worker_memory_bytes=4 * GIB, ps_state_bytes=6.0 * GIB, dense_parameters=dense, tables=tables, dim=dim,
    )  # fmt: skip


def pollux(data: Path) -> Truth:
    """All-reduce on 1 to 16 nodes of 4 GPUs: a worker is a replica with its GPU, and one small process coordinates.

    The rate is replicas × local batch / step time at the largest total batch that was measured on one GPU, on as few
    nodes as the replicas fit.
    """
    folder = existing(data / POLLUX_FOLDER, "--truth pollux")
    tables: dict[str, Table] = {}
    for model in sorted(path.name for path in folder.iterdir() if (path / "scalability.csv").is_file()):
        steps = _pollux_steps(folder / model)
        batch = max(local for replicas, local in steps if replicas == 1)
        rows = []
        for replicas in sorted({replicas for replicas, _ in steps}):
            locals_ = sorted(local for count, local in steps if count == replicas)
            local = min(locals_, key=lambda size: abs(size * replicas - batch))
            rows.append(Measurement(replicas, 1, replicas * local / steps[replicas, local], worker_cpu=4.0, ps_cpu=0.1))
        facts = ModelFacts(
            model, batch, Bounds((1, max(row.workers for row in rows)), (1, 1), (4.0, 4.0), (1.0, 1.0)),
            worker_cpu=4.0, ps_cpu=1.0, worker_memory_bytes=16 * GIB, ps_state_bytes=0.5 * GIB,
            worker_gpus=1.0, gpu_kind="gpu",
        )  # fmt: skip
        tables[model] = Table.of(facts, rows)
    return Tables("pollux", tables)


def _pollux_steps(folder: Path) -> dict[tuple[int, int], float]:
    """Step time by (replicas, local batch), of the placement on the fewest nodes."""
    found: dict[tuple[int, int], tuple[int, float]] = {}
    with (folder / "placements.csv").open(encoding="utf-8", newline="") as lines:
        for row in csv.DictReader(lines):
            replicas, nodes = sum(map(int, row["placement"])), len(row["placement"])
            _keep(found, (replicas, int(row["local_bsz"])), nodes, float(row["step_time"]))
    with (folder / "scalability.csv").open(encoding="utf-8", newline="") as lines:
        for row in csv.DictReader(lines):
            key = (int(row["num_replicas"]), int(row["local_bsz"]))
            _keep(found, key, int(row["num_nodes"]), float(row["step_time"]))
    return {key: step for key, (_, step) in found.items()}


def _keep(found: dict[tuple[int, int], tuple[int, float]], key: tuple[int, int], nodes: int, step: float) -> None:
    if key not in found or nodes < found[key][0]:
        found[key] = (nodes, step)


TRUTHS: Mapping[str, Callable[[Path], Truth]] = {"dl2": dl2, "pollux": pollux, "paper": lambda _: PaperTruth()}


def truth_named(name: str, data: Path) -> Truth:
    """InvalidArgument names those there are, or the file that is missing."""
    if name not in TRUTHS:
        raise InvalidArgument(
            f"there is no truth {name!r}", violations=[Violation("--truth", f"one of {', '.join(TRUTHS)}")]
        )
    return TRUTHS[name](data)


def existing(path: Path, field: str) -> Path:
    """The path; InvalidArgument when it is not there."""
    if not path.exists():
        raise InvalidArgument(
            f"there is no {path}",
            violations=[Violation(field, "is read from there: set --data or $RECMESH_DATA to the folder of data sets")],
        )
    return path
