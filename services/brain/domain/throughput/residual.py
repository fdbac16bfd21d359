"""What a form leaves over: a Gaussian process on the residuals of ln T, under the uncertainty of the coefficients.

ln T(x) = ln Σ θ_k·x_k + g(x) + noise, g of a Matérn 5/2 kernel over ln w and ln p (and ln λw, ln λp). For every point
of a small grid of hyper-parameters (length scales, size of g, size of the noise) the leave-one-out errors have a closed
form, from one eigen-decomposition per pair of length scales; the coefficients that are not 0 are linearised and
integrated out (universal kriging), with a prior of 100 % of their size.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from recmesh.plugins.planning import Floats

LENGTHS = (0.25, 0.8, 5.0)
"""Of ln w and of ln p: 0.25 is a factor of 1.3; with 5, nothing hangs on it within what a job can have."""
SIZES = (0.07, 0.2, 0.5)
"""Standard deviation of g, as a share of step time; 0 is tried too."""
NOISES = (0.025, 0.06)
"""Standard deviation of one window's ln T."""


@dataclass(frozen=True, slots=True)
class Kernels:
    """Everything that depends on the inputs alone: shared by all forms of one job."""

    inputs: Floats
    """(n, 4): ln w, ln p, ln λw, ln λp."""
    scales: Floats
    """(kernels, 4): length scales; the first kernel is that of size 0."""
    vectors: Floats
    """(kernels, n, n)."""
    index: NDArray[np.intp]
    """(H,): which kernel each point of the grid uses."""
    sizes: Floats
    """(H,): variance of g."""
    noises: Floats
    """(H,): variance of the noise."""
    precision: Floats
    """(n,): of each observation, 1 is one window."""
    inverses: Floats
    """(H, n): eigenvalues of the inverse covariance, after rows were multiplied by √precision."""


def matern(a: Floats, b: Floats, scales: Floats) -> Floats:
    """Matérn 5/2 between rows of a (n, d) and b (m, d), for each row of `scales` (kernels, d): (kernels, n, m)."""
    gaps = (a[:, None, :] - b[None, :, :]) ** 2
    distance = np.sqrt(5.0 * np.einsum("nmd,kd->knm", gaps, scales**-2.0))
    result: Floats = (1.0 + distance + distance**2 / 3.0) * np.exp(-distance)
    return result


def kernels(inputs: Floats, precision: Floats) -> Kernels:
    """The grid over these inputs. Cores have a length scale of 1: they are seldom varied."""
    scales = np.array([(w, p, 1.0, 1.0) for w in LENGTHS for p in LENGTHS])
    root = np.sqrt(precision)
    covariances = matern(inputs, inputs, scales) * root[:, None] * root[None, :]
    values, vectors = np.linalg.eigh(covariances)
    grid = [(0, 0.0, noise) for noise in NOISES]
    grid += [(k, size, noise) for k in range(len(scales)) for size in SIZES for noise in NOISES]
    index = np.array([k for k, _, _ in grid])
    sizes = np.array([size**2 for _, size, _ in grid])
    noises = np.array([noise**2 for _, _, noise in grid])
    inverses = 1.0 / (sizes[:, None] * np.maximum(values[index], 0.0) + noises[:, None])
    return Kernels(inputs, scales, vectors, index, sizes, noises, precision, inverses)


@dataclass(frozen=True, slots=True)
class Scores:
    """Of one form, at every point of the grid; all (H,)."""

    log_density: Floats
    """Σ over observations of the log density of each, given all others."""
    error: Floats
    """Mean |ln| error of each observation, predicted from all others."""


def leave_one_out(grid: Kernels, residual: Floats, shares: Floats) -> Scores:
    """`residual` (n,) is ln y − ln ŷ; `shares` (n, a) are θ_k·x_k/ŷ of the coefficients above 0.

    With P = C⁻¹ − C⁻¹G(G'C⁻¹G + I)⁻¹G'C⁻¹, observation i is missed by (P·r)_i/P_ii, with variance 1/P_ii.
    """
    root = np.sqrt(grid.precision)
    index = grid.index
    rotated = np.einsum("knm,nj->kmj", grid.vectors, np.column_stack([shares, residual]) * root[:, None])
    spread = rotated[index]  # (H, n, a + 1) in the eigenvectors' basis
    scaled = grid.inverses[:, :, None] * spread
    g, r = spread[:, :, :-1], scaled[:, :, -1:]
    inner = np.swapaxes(g, 1, 2) @ scaled[:, :, :-1] + np.eye(shares.shape[1])
    lower = np.linalg.inv(np.linalg.cholesky(inner))
    half = scaled[:, :, :-1] @ np.swapaxes(lower, 1, 2)  # C⁻¹G·L⁻ᵀ
    vectors = grid.vectors[index]
    projected = r[:, :, 0] - (half @ (lower @ (np.swapaxes(g, 1, 2) @ r)))[:, :, 0]
    a = np.einsum("hnm,hm->hn", vectors, projected)
    diagonal = np.einsum("hnm,hm->hn", vectors**2, grid.inverses) - ((vectors @ half) ** 2).sum(axis=2)
    diagonal = np.maximum(diagonal, 1e-12)
    # Densities are of the observations themselves, not of rows multiplied by √precision: a constant, left out.
    density = 0.5 * (np.log(diagonal) - a**2 / diagonal).sum(axis=1)
    error = np.abs(a / diagonal / root).mean(axis=1)
    return Scores(density, error)


@dataclass(frozen=True, slots=True)
class Correction:
    """g at one point of the grid, and the uncertainty that it leaves."""

    scale: Floats
    size: float
    noise: float
    alpha: Floats
    inverse: Floats
    """C⁻¹, (n, n)."""
    shares: Floats
    inner: Floats
    """(G'C⁻¹G + I)⁻¹."""


def correction(grid: Kernels, at: int, residual: Floats, shares: Floats) -> Correction:
    """Of grid point `at`."""
    root = np.sqrt(grid.precision)
    kernel = int(grid.index[at])
    vectors = grid.vectors[kernel]
    inverse = (vectors * grid.inverses[at]) @ vectors.T * root[:, None] * root[None, :]
    inner = np.linalg.inv(shares.T @ inverse @ shares + np.eye(shares.shape[1]))
    return Correction(
        grid.scales[kernel],
        float(grid.sizes[at]),
        float(grid.noises[at]),
        inverse @ residual,
        inverse,
        shares,
        inner,
    )


def corrected(each: Correction, across: Floats, shares: Floats) -> tuple[Floats, Floats]:
    """g and the variance of ln T at new rows: `across` is the kernel (rows, n), `shares` (rows, a)."""
    weights = each.size * across
    mean = weights @ each.alpha
    left = shares - weights @ each.inverse @ each.shares
    variance = each.size - np.einsum("rn,rn->r", weights @ each.inverse, weights)
    variance = np.maximum(variance, 0.0) + np.einsum("ra,ab,rb->r", left, each.inner, left) + each.noise
    return mean, variance


def mixture(log_scores: Floats, kept: int) -> tuple[Sequence[int], Floats]:
    """The best `kept` candidates and their weights, which sum to 1."""
    order = np.argsort(-log_scores, kind="stable")[:kept]
    weights = np.exp(log_scores[order] - log_scores[order[0]])
    keep = weights > 0.01 * weights.sum()
    weights = weights[keep]
    return [int(i) for i in order[keep]], weights / weights.sum()
