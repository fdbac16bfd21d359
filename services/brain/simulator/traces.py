"""Reads traces of jobs: Philly, Gavel, Pollux's workloads, ElasticFlow with deadlines, and a user's own."""

import csv
import gzip
import json
import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np

from recmesh.runtime.errors import InvalidArgument, Violation
from services.brain.simulator.job import TraceJob
from services.brain.simulator.tables import existing

REQUIRED = ("arrival_s", "workers", "duration_s")
OPTIONAL = ("job_id", "owner", "model", "deadline_s", "priority")


def philly(data: Path) -> list[TraceJob]:
    """82,247 jobs of Microsoft's Philly over 79 days; the owner is the virtual cluster, a worker is a GPU."""
    path = existing(data / "jobs/pollux/simulator/traces/philly.csv", "--trace philly")
    jobs = []
    for number, row in enumerate(_rows(path)):
        submitted = datetime.fromisoformat(row["timestamp"] + "+00:00").timestamp()
        jobs.append(
            TraceJob(f"philly-{number}", submitted, int(row["num_gpus"]), float(row["duration"]), row["cluster"])
        )
    return jobs


def gavel(data: Path) -> list[TraceJob]:
    """The continuous traces that Gavel made from Philly's clusters, all of one folder; durations are steps on V100s."""
    folder = existing(data / "jobs/gavel", "--trace gavel")
    with gzip.open(folder / "simulation_throughputs.json.gz", "rt", encoding="utf-8") as text:
        speeds = json.load(text)["v100"]
    jobs = []
    for path in sorted((folder / "msr_seed0").glob("*.trace.gz")):
        owner = path.name.partition(".")[0]
        with gzip.open(path, "rt", encoding="utf-8") as lines:
            for number, line in enumerate(lines):
                kind, _command, _flag, _needs_data, steps, arrival, workers = line.rstrip("\n").split("\t")
                speed = float(speeds.get(f"('{kind}', {workers})", {}).get("null", 0.0))
                if speed > 0:
                    jobs.append(
                        TraceJob(
                            f"gavel-{owner}-{number}", float(arrival), int(workers), float(steps) / speed, owner,
                            re.sub(r" \(.*", "", kind).lower(),
                        )
                    )  # fmt: skip
    return jobs


def pollux(data: Path) -> list[TraceJob]:
    """Pollux's eight workloads of 160 jobs, one after another; a job's length is what its model takes to converge.

    The workloads name model, replicas and batch, not a length: it is taken from the last line of the model's
    validation run at that batch size (samples), over the rate measured at those replicas.
    """
    folder = existing(data / "jobs/pollux", "--trace pollux")
    jobs: list[TraceJob] = []
    lengths: dict[tuple[str, int, int], float] = {}
    begin = 0.0
    for path in sorted((folder / "benchmark" / "workloads").glob("workload-*.csv")):
        last = 0.0
        for row in _rows(path):
            last = float(row["time"])
            kind = (row["application"], int(row["batch_size"]), int(row["num_replicas"]))
            if kind not in lengths:
                lengths[kind] = _pollux_length(folder, *kind)
            jobs.append(
                TraceJob(
                    f"pollux-{path.stem[-1]}-{row['name']}", begin + last, int(row["num_replicas"]), lengths[kind],
                    path.stem, row["application"],
                )
            )  # fmt: skip
        begin += last + 3600.0
    return jobs


def _pollux_length(folder: Path, model: str, batch: int, replicas: int) -> float:
    """Steps to converge × step time at that placement."""
    traces = folder / "simulator" / "traces" / model
    runs = {int(path.stem.partition("-")[2]): path for path in traces.glob("validation-*.csv")}
    run = runs[min(runs, key=lambda size: abs(math.log(size / batch)))]
    steps = float(list(_rows(run))[-1]["iteration"])
    local = batch / replicas
    nearest = min(
        _rows(traces / "placements.csv"),
        key=lambda row: (
            abs(math.log(sum(map(int, row["placement"])) / replicas)), len(row["placement"]),
            abs(math.log(float(row["local_bsz"]) / local)),
        ),
    )  # fmt: skip
    return steps * float(nearest["step_time"])


def elasticflow(data: Path) -> list[TraceJob]:
    """ElasticFlow's 195 Philly jobs with deadlines."""
    path = existing(data / "jobs/elasticflow/traces_for_ElasticFlow/philly_103959.csv", "--trace elasticflow")
    return [
        TraceJob(
            f"elasticflow-{row['job_id']}", float(row["submit_time"]), int(row["num_gpu"]), float(row["duration"]),
            "103959", row["model_name"], deadline_s=float(row["ddl"]),
        )
        for row in _rows(path)
    ]  # fmt: skip


TRACES: Mapping[str, Callable[[Path], list[TraceJob]]] = {
    "philly": philly, "gavel": gavel, "pollux": pollux, "elasticflow": elasticflow,
}  # fmt: skip


def trace_named(name: str, data: Path) -> list[TraceJob]:
    """A known trace by name, or a file of one's own (`.csv`, `.jsonl`); ordered by arrival.

    InvalidArgument names the field: an unknown name, a missing file, a wrong line.
    """
    if name in TRACES:
        jobs = TRACES[name](data)
    elif "/" in name or name.endswith((".csv", ".jsonl")):
        jobs = own(Path(name))
    else:
        reason = f"one of {', '.join(TRACES)}, or a file that ends in .csv or .jsonl"
        raise InvalidArgument(f"there is no trace {name!r}", violations=[Violation("--trace", reason)])
    return sorted(jobs, key=lambda job: (job.arrival_s, job.job_id))


def own(path: Path) -> list[TraceJob]:
    """A trace in CSV with a header, or one JSON object a line: docs/reference/simulate.md has the columns."""
    if not path.is_file():
        raise InvalidArgument(f"there is no file {path}", violations=[Violation("--trace", "names no file")])
    jobs, violations = [], []
    for number, (line, row) in enumerate(_own_rows(path), start=1):
        try:
            jobs.append(_own_job(row, f"{path.stem}-{number}"))
        except _WrongField as wrong:
            violations.append(Violation(f"{path.name}:{line}.{wrong.field}", wrong.reason))
    if violations:
        message = f"{path} has {len(violations)} wrong line(s)"
        raise InvalidArgument(message, violations=violations[:10])
    if not jobs:
        raise InvalidArgument(f"{path} has no jobs", violations=[Violation("--trace", "is empty")])
    return jobs


class _WrongField(ValueError):
    def __init__(self, field: str, reason: str) -> None:
        super().__init__(reason)
        self.field = field
        self.reason = reason


def _own_rows(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """With the line of the file that each ends on."""
    if path.suffix == ".csv":
        with path.open(encoding="utf-8", newline="") as lines:
            reader = csv.DictReader(lines)
            for cells in reader:
                yield reader.line_num, cells
        return
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except ValueError as error:
            raise InvalidArgument(
                f"{path} is not JSON lines", violations=[Violation(f"{path.name}:{number}", str(error))]
            ) from error
        if not isinstance(row, dict):
            reason = "is not an object"
            raise InvalidArgument(f"{path} is not JSON lines", violations=[Violation(f"{path.name}:{number}", reason)])
        yield number, row


def _own_job(row: Mapping[str, Any], job_id: str) -> TraceJob:
    unknown = sorted(set(row) - {*REQUIRED, *OPTIONAL} - {""}, key=str)
    if unknown:
        raise _WrongField(str(unknown[0]), f"is not a column; there are {', '.join((*REQUIRED, *OPTIONAL))}")
    deadline = row.get("deadline_s")
    if deadline not in (None, "") and _number(row, "deadline_s", least=0.0) <= _number(row, "arrival_s", least=0.0):
        raise _WrongField("deadline_s", f"{deadline} is not after arrival_s {row['arrival_s']}")
    return TraceJob(
        job_id=str(row.get("job_id") or job_id),
        arrival_s=_number(row, "arrival_s", least=0.0),
        workers=round(_number(row, "workers", least=1.0)),
        duration_s=_number(row, "duration_s", least=1e-3),
        owner=str(row.get("owner") or ""),
        model=str(row.get("model") or ""),
        deadline_s=None if deadline in (None, "") else _number(row, "deadline_s", least=0.0),
        priority=round(_number(row, "priority", least=-1e9)) if row.get("priority") not in (None, "") else 0,
    )


def _number(row: Mapping[str, Any], field: str, *, least: float) -> float:
    if row.get(field) in (None, ""):
        raise _WrongField(field, "is missing")
    try:
        value = float(row[field])
    except (TypeError, ValueError):
        raise _WrongField(field, f"{row[field]!r} is not a number") from None
    if not math.isfinite(value) or value < least:
        raise _WrongField(field, f"{value:g} is below {least:g}, or not finite")
    return value


def window(jobs: list[TraceJob], count: int, rng: np.random.Generator) -> list[TraceJob]:
    """`count` jobs that came one after another, from a place drawn by the generator; clocks begin at its first.

    Fewer where the trace has fewer; 0: all.
    """
    count = min(count or len(jobs), len(jobs))
    first = int(rng.integers(0, len(jobs) - count + 1))
    begin = jobs[first].arrival_s
    return [
        replace(
            job,
            arrival_s=job.arrival_s - begin,
            deadline_s=None if job.deadline_s is None else job.deadline_s - begin,
        )
        for job in jobs[first : first + count]
    ]


def _rows(path: Path) -> Iterator[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as lines:
        yield from csv.DictReader(lines)
