"""Coefficients ≥ 0 that minimise the RMSLE of step time, and which of them the measurements cannot tell apart."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import lsq_linear, nnls

from recmesh.plugins.planning import Floats

CONDITION = 1e4
"""Above this condition number of the scaled design, a direction of coefficients is called unknown: errors of 1 % in the
speeds would move them by a hundred times their size."""

_CLOSE = 1e-6
_LEAST_SHARE = 1e-3


def least_squares(design: Floats, target: Floats) -> Floats:
    """θ ≥ 0 of min ‖design·θ − target‖².

    The active-set method may go in circles where columns are nearly the same (it then gives up); an interior method
    ends always, near the same optimum.
    """
    try:
        found: Floats = nnls(design, target)[0]
    except RuntimeError:
        scale = np.maximum(np.abs(design).max(axis=0), 1e-300)
        found = np.asarray(lsq_linear(design / scale, target, bounds=(0.0, np.inf)).x, dtype=np.float64) / scale
    return found


def rmsle_fit(columns: Floats, step_s: Floats, *, weights: Floats | None = None, rounds: int = 15) -> Floats:
    """θ ≥ 0 of min Σ weight·(ln X·θ − ln y)²; `columns` X is (n, k), `step_s` y is (n,) and above 0.

    Each round solves NNLS on rows X/ŷ with target 1 + ln(y/ŷ), the linear form of the logarithm at the last estimate ŷ
    (MATH §1); NNLS on rows X/y alone is biased by about exp(−1.5σ²). A step that makes it worse is halved.
    """
    root = np.ones(len(step_s)) if weights is None else np.sqrt(weights)
    log_y = np.log(step_s)
    found = least_squares(columns / step_s[:, None] * root[:, None], root)
    fitted = np.maximum(columns @ found, _LEAST_SHARE * step_s)
    loss = _loss(fitted, log_y, root)
    for _ in range(rounds):
        target = 1.0 + log_y - np.log(fitted)
        step = least_squares(columns * (root / fitted)[:, None], root * target)
        for _ in range(5):
            estimate = np.maximum(columns @ step, _LEAST_SHARE * step_s)
            new = _loss(estimate, log_y, root)
            if new <= loss * (1 + 1e-9) + 1e-15:
                break
            step = 0.5 * (step + found)
        else:
            break
        gained, loss, found, fitted = loss - new, new, step, estimate
        if gained <= _CLOSE * loss + 1e-15:
            break
    result: Floats = found
    return result


def _loss(fitted: Floats, log_y: Floats, root: Floats) -> float:
    error = root * (np.log(fitted) - log_y)
    return float(error @ error)


def unknown_directions(columns: Floats) -> Floats:
    """Coefficients along which the design says nothing, in the scale of `columns`: (directions, k), maybe none.

    Rank and condition number of the column-scaled design decide, not a count of configurations.
    """
    scale = np.linalg.norm(columns, axis=0)
    scale = np.where(scale > 0, scale, 1.0)
    _, singular, right = np.linalg.svd(columns / scale, full_matrices=True)
    padded = np.zeros(columns.shape[1])
    padded[: len(singular)] = singular
    directions: Floats = right[padded < padded.max() / CONDITION] / scale
    return directions


def told_apart(directions: Floats, columns: Floats, names: Sequence[str]) -> tuple[tuple[str, ...], ...]:
    """Groups of terms of which the unknown `directions` know only a sum; () when every term is identified."""
    if not len(directions):
        return ()
    scaled = directions * np.linalg.norm(columns, axis=0)
    projector = scaled.T @ scaled  # onto the unknown part, if they are orthonormal: independent of their choice
    linked = np.abs(projector) > 1e-2
    groups: list[set[int]] = []
    for k in range(len(names)):
        if not linked[k, k]:
            continue
        mine = set(np.flatnonzero(linked[k]).tolist())
        joined = [group for group in groups if group & mine]
        groups = [group for group in groups if not group & mine] + [mine.union(*joined)]
    return tuple(tuple(names[k] for k in sorted(group)) for group in groups)


def in_words(groups: Sequence[Sequence[str]]) -> tuple[str, ...]:
    """One sentence per group."""
    return tuple(
        f"'{group[0]}' was never above 0" if len(group) == 1 else _joined(group) + " cannot be told apart"
        for group in groups
    )


def _joined(names: Sequence[str]) -> str:
    quoted = [f"'{name}'" for name in names]
    return ", ".join(quoted[:-1]) + " and " + quoted[-1]


def reaches(rows: Floats, directions: Floats) -> NDArray[np.bool_]:
    """Whether the step time of configurations with terms `rows` (n, k) moves along an unknown direction, (n,)."""
    moves = np.abs(rows @ directions.T)
    sizes = np.abs(rows) @ np.abs(directions).T
    found: NDArray[np.bool_] = (moves > 1e-3 * np.maximum(sizes, 1e-300)).any(axis=1)
    return found
