"""Bytes per request of models split by naive colouring and by the minimum cut, and whether the halves are the model.

Prism reports up to half of the bytes saved. Each model is exported, split, and its halves read from their files and run
against it: bit for bit at the reference batch, at one sample more and with other lengths, and two requests as one call.
"""

import time
import warnings
from pathlib import Path

from bench.figures import Result
from bench.mesh import ROOT, say, scratch
from bench.workloads.split_models import makers
from recmesh.serving.split import picture
from recmesh.serving.split.partition import BATCH, LENGTH, Outcome, partition

PICTURED = "dlrm_attention"
IMAGE = ROOT / "docs" / "images" / "partition.svg"


def run(*, quick: bool) -> Result:
    """By model `*_NAME`: `operators`, of them `hn_operators`; `bytes_naive`, `bytes_cut`, `bytes_reduction`;
    `equal` (1: bit for bit), `batched` (1: requests may be put together), `partition_s`. Over all: `bytes_reduction`
    (the most), `bytes_reduction_median`, `split_share`, `equal_share`."""
    figures: dict[str, float] = {}
    reductions: list[float] = []
    whys: dict[str, str] = {}
    with scratch() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")                           # the frameworks', of their own future
        for name, make in makers(quick=quick).items():
            made = Path(folder) / name
            make(made)
            began = time.perf_counter()
            found = partition(made)
            figures |= _figures(name, found, time.perf_counter() - began)
            whys[name] = found.manifest.why
            if found.decision:
                reductions.append(found.decision.reduction)
            naive, cut = figures[f"bytes_naive_{name}"], figures[f"bytes_cut_{name}"]
            say(f"{name}: {naive:,.0f} B by colouring, {cut:,.0f} B by the cut. {found.manifest.kind}: {whys[name]}")
            if name == PICTURED and not quick and found.graph and found.decision:
                IMAGE.write_text(picture.svg(f"{name} (torch)", found.graph, found.decision), encoding="utf-8")
    equal = [value for name, value in figures.items() if name.startswith("equal_")]
    ordered = sorted(reductions)
    return Result(
        "partition",
        {
            "bytes_reduction": max(reductions, default=0.0),
            "bytes_reduction_median": ordered[len(ordered) // 2] if ordered else 0.0,
            "split_share": len(reductions) / len(equal),
            "equal_share": sum(equal) / len(equal),
            **figures,
        },
        {
            "models": len(equal), "batch": BATCH, "length": LENGTH, "limited_by": whys,
            "equal": "all results of the halves, read from their files, have the bits of the model's, on a CPU",
            "quick": "4 models instead of 6" if quick else "",
        },
    )  # fmt: skip


def _figures(name: str, found: Outcome, spent_s: float) -> dict[str, float]:
    decision, graph = found.decision, found.graph
    cut, naive = (decision.cost, decision.naive) if decision else (None, None)
    return {
        f"operators_{name}": float(len(graph.operators)) if graph else 0.0,
        f"hn_operators_{name}": float(cut.operators["hn"]) if cut else 0.0,
        f"bytes_naive_{name}": float(naive.bytes) if naive else 0.0,
        f"bytes_cut_{name}": float(cut.bytes) if cut else 0.0,
        f"bytes_reduction_{name}": decision.reduction if decision else 0.0,
        f"equal_{name}": float(found.manifest.is_split),
        f"batched_{name}": float(found.manifest.batching.possible),
        f"partition_s_{name}": spent_s,
    }

