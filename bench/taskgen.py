"""Task generation over a listing of 56 million files: what the task graph saves by sharing listings and by threads.

Two tables, each of which two sources read (files named `pos-…` and `neg-…`), in folders by the hour, on a file system
made for this, which answers a listing after 2 ms. A task is a run of files of 128 MiB. So many files are listed by
processes beside this one, as in the product; CPU and memory are those of all together.
"""

import gc
import hashlib
import time
from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from typing import Any

import psutil
from fsspec import AbstractFileSystem

from bench.figures import Result
from bench.mesh import cpu_seconds, say
from recmesh.data.files import FileInfo
from recmesh.data.listing import Lister
from recmesh.data.taskgraph import GROUP_BYTES, GROUP_FILES, TaskGraph
from recmesh.data.windows import active, filled, turns
from recmesh.spec.dataset import DatasetSpec

DAYS, QUICK_DAYS, NAIVE_HOURS = 20, 1, 6
TABLES, PER_FOLDER = 2, 58_333
LISTING_S = 0.002
MEASURED_EVERY = 16
BEGIN = 1_704_067_200
PAPER = "149 s and 42 s (four threads)"


class Listings(AbstractFileSystem):  # type: ignore[misc]  # fsspec has no types
    """A store of hourly folders that exist by being asked for."""

    protocol = "listings"
    cachable = False

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0
        half = PER_FOLDER // 2
        self._files = [
            (f"{kind}-{i:05}.parquet", (6 + i % 7) << 20)
            for kind, count in (("pos", half), ("neg", PER_FOLDER - half)) for i in range(count)
        ]

    def ls(self, path: str, detail: bool = True, **more: Any) -> list[dict[str, Any]]:
        """Half of the files are `pos-…`, half `neg-…`; none of them in order."""
        self.calls += 1
        time.sleep(LISTING_S)
        folder = f"{path}/"
        return [{"name": folder + name, "size": size, "type": "file", "ETag": "0"} for name, size in self._files]

    def info(self, path: str, **more: Any) -> dict[str, Any]:
        """Of a file."""
        number = int(path.rpartition("-")[2].removesuffix(".parquet"))
        return {"name": path, "size": (6 + number % 7) << 20, "type": "file", "ETag": "0"}


def run(*, quick: bool) -> Result:
    """`s_*` for all windows; the naive way is timed on a sample and multiplied."""
    days = QUICK_DAYS if quick else DAYS
    spec = dataset(days * 24)
    figures: dict[str, float] = {}
    sample = dataset(NAIVE_HOURS)
    began, cpu = time.perf_counter(), time.process_time()
    naive_order, naive_calls = _naive(sample)
    naive_s, scale = time.perf_counter() - began, days * 24 / NAIVE_HOURS
    say(f"  naive: {NAIVE_HOURS} hours in {naive_s:.1f} s, {time.process_time() - cpu:.1f} s of CPU")
    figures["s_naive"] = naive_s * scale
    order, calls = _order(sample)
    found: dict[str, float] = {}
    peak_mib = 0.0
    for threads in (1, 2):
        gc.collect()
        found = _fused(spec, threads)
        say(f"  {threads} threads: {found['s']:.1f} s for {found['files']:,} files, {found['tasks']:,} tasks")
        figures[f"s_fused_{threads}"] = found["s"]
        figures[f"files_per_s_fused_{threads}"] = found["files"] / found["s"]
        figures[f"cpu_s_fused_{threads}"] = found["cpu_s"]
        peak_mib = max(peak_mib, found["peak_mib"])
    figures |= {
        "list_calls_ratio": naive_calls / calls,
        "first_task_s": found["first_s"],
        "same_order": float(order == naive_order),
        "tasks": found["tasks"], "files": found["files"],
        "peak_memory_mib": peak_mib,
    }
    return Result("taskgen", figures, {
        "days": days, "tables": TABLES, "files_per_folder": PER_FOLDER, "listing_ms": 1000 * LISTING_S,
        "naive": f"{NAIVE_HOURS} hours, times {scale:g}; each source lists for itself, an object per file",
        "paper": PAPER,
        "quick": f"{QUICK_DAYS} day instead of {DAYS}" if quick else "",
    })


def dataset(hours: int) -> DatasetSpec:
    """Two tables, two sources of each."""
    sources = [
        {"files": [f"listings://t{table}/{{YYYY}}{{MM}}{{DD}}/{{HH}}/{kind}-*.parquet"], "start": BEGIN,
         "end": BEGIN + hours * 3600}
        for table in range(TABLES) for kind in ("pos", "neg")
    ]
    streams = [{"window": "1h", "sources": sources}]
    return DatasetSpec.parse({"streams": streams, "features": [{"name": "item"}], "shuffle": False})


def _fused(spec: DatasetSpec, threads: int) -> dict[str, float]:
    store = Listings()
    graph = TaskGraph(spec, seed=1, lister=Lister(open=lambda url: (store, url.removeprefix("listings://"))),
                      threads=threads)
    family = {"all": psutil.Process()}
    began, cpu, first, files, tasks = time.perf_counter(), cpu_seconds(family)["all"], 0.0, 0, 0
    peak_mib = 0.0
    for at, window in enumerate(graph.windows()):
        if at % MEASURED_EVERY == 0:
            peak_mib = max(peak_mib, _memory_mib(family["all"]))
        first = first or time.perf_counter() - began
        tasks += len(window.groups)
        files += sum(group.hi - group.lo for group in window.groups)
    graph.close()
    return {
        "s": time.perf_counter() - began, "cpu_s": cpu_seconds(family)["all"] - cpu, "first_s": first, "files": files,
        "tasks": tasks, "peak_mib": peak_mib,
    }


def _memory_mib(process: psutil.Process) -> float:
    """Resident, of a process and those that it started."""
    return sum(each.memory_info().rss for each in (process, *process.children())) / 2**20


def _order(spec: DatasetSpec) -> tuple[str, int]:
    store = Listings()
    lister = Lister(open=lambda url: (store, url.removeprefix("listings://")))
    graph = TaskGraph(spec, seed=1, lister=lister)
    tasks = (group.uris for window in graph.windows() for group in window.groups)
    digest = _digest(tasks)
    graph.close()
    return digest, lister.calls                 # those of processes beside, too


def _naive(spec: DatasetSpec) -> tuple[str, int]:
    """The same tasks in the same order, as one writes it first: every source lists, matches and cuts for itself."""
    store = Listings()
    tasks: list[list[str]] = []
    for turn in turns(spec):
        stream = spec.streams[turn.stream]
        keyed: list[tuple[float, int, int, list[str]]] = []
        for index in active(stream, turn.begin):
            path = filled(stream.sources[index].files[0], turn.begin).removeprefix("listings://")
            folder, _, pattern = path.rpartition("/")
            files = [
                FileInfo(f"listings://{each['name']}", each["size"], each["ETag"])
                for each in store.ls(folder) if fnmatchcase(each["name"].rpartition("/")[2], pattern)
            ]
            files.sort(key=lambda file: file.uri)
            total, served = sum(file.size_bytes for file in files), 0
            for number, run in enumerate(_runs(files)):
                served += sum(file.size_bytes for file in run)
                keyed.append((served / total, index, number, [file.uri for file in run]))
        tasks += [uris for _, _, _, uris in sorted(keyed)]
    return _digest(iter(tasks)), store.calls


def _runs(files: list[FileInfo]) -> Iterator[list[FileInfo]]:
    run: list[FileInfo] = []
    for file in files:
        if run and (sum(each.size_bytes for each in run) + file.size_bytes > GROUP_BYTES or len(run) == GROUP_FILES):
            yield run
            run = []
        run.append(file)
    if run:
        yield run


def _digest(tasks: "Iterator[Sequence[str]]") -> str:
    digest = hashlib.sha256()
    for uris in tasks:
        digest.update("\n".join(uris).encode() + b"\0")
    return digest.hexdigest()
