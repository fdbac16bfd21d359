"""Throughput models of other systems, fitted to the same configurations.

Each takes workers, PSes and samples per second of the training configurations, and returns a function of workers and
PSes. Where a paper leaves a reading open, both are here; a figure that says "wins" is against the better of the two.
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import nnls

F64 = NDArray[np.float64]
Model = Callable[[F64, F64], F64]
Fit = Callable[[F64, F64, F64], Model]
Columns = Callable[[F64, F64], F64]


def _form(columns: Columns, *, relative: bool) -> Fit:
    """1/speed is a non-negative combination of `columns`; `relative` weighs rows by their speed, so that errors are
    shares rather than seconds, in which the slowest configuration outweighs all others."""

    def fit(workers: F64, ps: F64, rate: F64) -> Model:
        weight = rate[:, None] if relative else np.full((len(rate), 1), np.median(rate))
        found, _ = nnls(columns(workers, ps) * weight, weight[:, 0] / rate)
        return lambda w, p: 1.0 / np.maximum(columns(w, p) @ found, 1e-12)

    return fit


def _optimus(w: F64, p: F64) -> F64:
    """Peng et al., EuroSys 2018, eq. 4: synchronous, a batch M that workers share (M is in the coefficient)."""
    return np.stack([1.0 / w, np.ones_like(w), w / p, w, p], axis=1)


def _ernest(w: F64, _: F64) -> F64:
    """Venkataraman et al., NSDI 2016, eq. 1: its machines are the workers; it knows of no PS."""
    return np.stack([np.ones_like(w), 1.0 / w, np.log(w), w], axis=1)


def _ernest_with_ps(w: F64, p: F64) -> F64:
    """The same terms once more for the PSes: more than the paper has, so that it may see them."""
    return np.concatenate([_ernest(w, p), _ernest(p, w)[:, 1:]], axis=1)


def neighbours(workers: F64, ps: F64, rate: F64, *, count: int = 3) -> Model:
    """The mean speed of the nearest configurations measured (in workers and PSes)."""

    def predict(w: F64, p: F64) -> F64:
        distance = (w[:, None] - workers) ** 2 + (p[:, None] - ps) ** 2
        nearest = np.argsort(distance, axis=1, kind="stable")[:, :count]
        mean: F64 = rate[nearest].mean(axis=1)
        return mean

    return predict


PEERS: Mapping[str, Fit] = MappingProxyType(
    {
        "optimus": _form(_optimus, relative=False),
        "optimus_relative": _form(_optimus, relative=True),
        "ernest": _form(_ernest, relative=False),
        "ernest_relative": _form(_ernest, relative=True),
        "ernest_with_ps": _form(_ernest_with_ps, relative=True),
        "neighbours": neighbours,
    }
)

READINGS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "optimus": ("optimus", "optimus_relative"),
        "ernest": ("ernest", "ernest_relative"),
        "ernest_with_ps": ("ernest_with_ps",),  # not in the paper
        "neighbours": ("neighbours",),
    }
)
"""Who "wins" is said against."""
