"""Alibaba's public traces for scheduling: openb's nodes and pods (2023), and instances of DLRM serving (2025)."""

import csv
import os
from collections import defaultdict
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bench.criteo import DataMissing
from bench.peers.packing import Task
from services.brain.domain.fragmentation import WHOLE_GPU, FreeNodes, Request

NODES = "alibaba/gpu-v2023/openb_node_list_gpu_node.csv"
PODS = "alibaba/gpu-v2023/openb_pod_list_default.csv"
DLRM = "alibaba/gpu-v2025/disaggregated_DLRM_trace_dev.csv"
PUBLISHED = "alibaba/fgd-expected/analysis_frag_ratio_discrete.csv"
WORKLOAD = "openb_pod_list_default"
LEVELS = range(0, 131)

Floats = NDArray[np.float64]


def _rows(name: str) -> list[dict[str, str]]:
    path = Path(os.environ.get("RECMESH_DATA", "../shared/data")) / name
    if not path.exists():
        raise DataMissing(f"{path} is missing; set RECMESH_DATA to the folder that holds {name}")
    with path.open(encoding="utf-8", newline="") as lines:
        return list(csv.DictReader(lines))


def nodes() -> FreeNodes:
    """openb's nodes with GPUs, all free: 1,213 with 6,212 GPUs. The published results are on these."""
    rows = _rows(NODES)
    slots = max(int(row["gpu"]) for row in rows)
    gpus = np.zeros((len(rows), slots), dtype=np.int64)
    for index, row in enumerate(rows):
        gpus[index, : int(row["gpu"])] = WHOLE_GPU
    return FreeNodes(np.array([int(row["cpu_milli"]) for row in rows], dtype=np.int64), gpus)


def memory_mib() -> NDArray[np.int64]:
    """Of the same nodes."""
    return np.array([int(row["memory_mib"]) for row in _rows(NODES)], dtype=np.int64)


def pods() -> list[Task]:
    """openb's 8,152 tasks in the order of their names."""
    return [
        Task(
            Request(int(row["cpu_milli"]), int(row["gpu_milli"]) if int(row["num_gpu"]) else 0, int(row["num_gpu"])),
            int(row["memory_mib"]),
        )
        for row in sorted(_rows(PODS), key=lambda row: row["name"])
    ]


def published() -> dict[str, Floats]:
    """Percent of idle GPU that is fragments at each percent of demand, by policy: (seeds, levels)."""
    found: dict[str, list[list[float]]] = defaultdict(list)
    for row in _rows(PUBLISHED):
        if row["workload"] == WORKLOAD:
            found[row["sc_policy"]].append([float(row[str(level)] or "nan") for level in LEVELS])
    return {policy: np.array(series) for policy, series in sorted(found.items())}


def serving() -> dict[str, tuple[list[Request], list[Request]]]:
    """Each application of the DLRM serving trace: its instances on GPU nodes (HN) and on CPU nodes (CN)."""
    found: dict[str, tuple[list[Request], list[Request]]] = defaultdict(lambda: ([], []))
    for row in _rows(DLRM):
        cpu = int(row["cpu_request"]) * 1000
        if row["role"] == "HN":
            gpus = int(row["gpu_request"])
            found[row["app_name"]][0].append(Request(cpu, WHOLE_GPU if gpus else 0, gpus))
        else:
            found[row["app_name"]][1].append(Request(cpu))
    return dict(found)
