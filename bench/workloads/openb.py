"""Alibaba's public traces for scheduling: openb's nodes and pods (2023), and instances of DLRM serving (2025)."""

import csv
import os
from collections import defaultdict
from dataclasses import dataclass
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


@dataclass(frozen=True, slots=True)
class Need:
    """An application of the DLRM serving trace, per instance with a GPU; cores and GiB as requested, means over it."""

    instances: int
    hn_cores: float
    hn_gib: float
    whole_cores: float
    """With those of its CPU nodes."""
    whole_gib: float


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


def serving_needs() -> list[Need]:
    """Of each application that has GPUs: one per instance."""
    found: dict[str, dict[str, list[tuple[float, float]]]] = defaultdict(lambda: {"HN": [], "CN": []})
    for row in _rows(DLRM):
        if row["role"] == "CN" or int(row["gpu_request"]):
            found[row["app_name"]][row["role"]].append((float(row["cpu_request"]), float(row["memory_request"])))
    needs: list[Need] = []
    for roles in found.values():
        count = len(roles["HN"])
        if count:
            hn, cn = (np.array(roles[role]).reshape(-1, 2).sum(0) / count for role in ("HN", "CN"))
            needs.append(Need(count, float(hn[0]), float(hn[1]), float(hn[0] + cn[0]), float(hn[1] + cn[1])))
    return needs


@dataclass(frozen=True, slots=True)
class Serving:
    """An instance of the DLRM serving trace; seconds since its beginning, None: before or after it."""

    name: str
    app: str
    role: str
    cpu: float
    gpu: int
    memory_gib: float
    nic: int
    """Percent of a network card."""
    most_per_node: int
    """Of its application; 0: no bound."""
    created: float | None
    deleted: float | None


def serving_instances() -> list[Serving]:
    """All, in the order of the file."""
    return [
        Serving(
            row["instance_sn"], row["app_name"].replace("_", "-"), row["role"], float(row["cpu_request"]),
            int(row["gpu_request"]), float(row["memory_request"]), int(row["rdma_request"]),
            max(0, int(row["max_instance_per_node"])), _seconds(row["creation_time"]), _seconds(row["deletion_time"]),
        )
        for row in _rows(DLRM)
    ]  # fmt: skip


def _seconds(text: str) -> float | None:
    return float(text) if text else None
