"""Halves against the model that they came from: bit for bit at the same batch, within tolerance when batched."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from recmesh.serving.split.graph import Unsplittable
from recmesh.serving.split.manifest import Batching, Stage, TensorInfo
from recmesh.serving.split.source import Arrays, Program, Source

TOLERANCE = 1e-5
"""Of batched results, relative to max(1, the largest): sums are taken in another order."""


def halves(
    source: Source, stages: Sequence[Stage], tensors: Mapping[str, TensorInfo], folder: Path, probes: Sequence[Arrays]
) -> Batching:
    """Runs the written programs in their order on all probes; Unsplittable when a result differs in a single bit."""
    programs = {each.name: source.load(folder / each.program, each.outputs) for each in stages}
    names = [each.name for each in source.outputs]
    kept: list[Arrays] = []
    for probe in probes:
        wanted = source.run(probe)
        found = run(stages, programs, probe)
        kept.append(found)
        for name in names:
            if why := difference(wanted[name], found[name]):
                raise Unsplittable(f"its halves do not give its results: {name!r} {why}")
    dense = next(each for each in stages if each.where == "hn")
    alone = [name for name in (*dense.inputs, *dense.outputs) if not tensors[name].batched]
    if alone:
        return Batching(False, f"the accelerator's part takes or gives per request: {', '.join(alone)}")
    return _batched(dense, programs[dense.name], kept)


def run(stages: Sequence[Stage], programs: Mapping[str, Program], inputs: Arrays) -> Arrays:
    """All that there is after the last stage, by name."""
    there = dict(inputs)
    for stage in stages:
        there |= programs[stage.name]({name: there[name] for name in stage.inputs})
    return there


def difference(wanted: "np.ndarray[Any, Any]", found: "np.ndarray[Any, Any]") -> str:
    """How they differ; empty when they are the same to the bit."""
    if wanted.dtype != found.dtype or wanted.shape != found.shape:
        return f"is {found.dtype}{list(found.shape)} instead of {wanted.dtype}{list(wanted.shape)}"
    if wanted.dtype == object:
        return "" if bool(np.array_equal(wanted, found)) else "has other texts"
    if np.ascontiguousarray(wanted).tobytes() == np.ascontiguousarray(found).tobytes():
        return ""
    if wanted.dtype.kind != "f":
        return "has other numbers"
    off = np.abs(wanted.astype(np.float64) - found.astype(np.float64))
    return f"differs by up to {np.nanmax(off):.3g}"


def _batched(dense: Stage, program: Program, kept: Sequence[Arrays]) -> Batching:
    """The first two requests as one call; their lengths of rows are the same."""
    first, second = kept[:2]
    joined = program({name: np.concatenate([first[name], second[name]]) for name in dense.inputs})
    worst = 0.0
    for name in dense.outputs:
        single = np.concatenate([first[name], second[name]])
        if single.shape != joined[name].shape:
            return Batching(False, f"{name!r} has another shape when requests are put together")
        off = np.abs(single.astype(np.float64) - joined[name].astype(np.float64)).max(initial=0.0)
        worst = max(worst, float(off / max(1.0, np.abs(single.astype(np.float64)).max(initial=0.0))))
    if not worst <= TOLERANCE:                                    # also when it is not a number
        return Batching(False, f"results differ by {worst:.3g} when requests are put together")
    return Batching(True, "", worst)
