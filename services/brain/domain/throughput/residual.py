"""What a form leaves over: a Gaussian process on the residuals of ln T, under the uncertainty of the coefficients.

ln T(x) = ln Σ θ_k·x_k + g(x) + noise, g of a Matérn 5/2 kernel over ln w and ln p (and ln λw, ln λp). For every point
of a small grid of hyper-parameters (length scales, size of g, size of the noise) the leave-one-out errors have a closed
form, from one eigen-decomposition per pair of length scales; the coefficients that are not 0 are linearised and
integrated out (universal kriging), with a prior of 100 % of their size.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from recmesh.plugins.planning import Floats

Singles = NDArray[np.float32]
Real = TypeVar("Real", np.float32, np.float64)

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


def matern(a: NDArray[Real], b: NDArray[Real], scales: NDArray[Real]) -> NDArray[Real]:
    """Matérn 5/2 between rows of a (n, d) and b (m, d), for each row of `scales` (kernels, d): (kernels, n, m)."""
    gaps = (a.T[:, :, None] - b.T[:, None, :]) ** 2
    squared: NDArray[Real] = (5.0 * scales**-2.0) @ gaps.reshape(len(gaps), -1)
    distance = np.sqrt(squared)
    squared /= 3.0
    squared += distance
    squared += 1.0
    squared *= np.exp(np.negative(distance, out=distance), out=distance)
    return squared.reshape(len(scales), len(a), len(b))


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


def padded(shares: Sequence[Floats]) -> Floats:
    """Of several forms, (forms, n, a): a share of 0 is of no coefficient, so it changes nothing."""
    result = np.zeros((len(shares), len(shares[0]), max(each.shape[1] for each in shares)))
    for each, place in zip(shares, result, strict=True):
        place[:, : each.shape[1]] = each
    return result


def leave_one_out(grid: Kernels, residuals: Floats, shares: Floats) -> list[Scores]:
    """Of forms: `residuals` (forms, n) is ln y − ln ŷ; `shares` (forms, n, a) are θ_k·x_k/ŷ of coefficients above 0.

    With P = C⁻¹ − C⁻¹G(G'C⁻¹G + I)⁻¹G'C⁻¹, observation i is missed by (P·r)_i/P_ii, with variance 1/P_ii.
    """
    many, n, a = shares.shape
    root = np.sqrt(grid.precision)
    index = grid.index
    # 1. In the eigenvectors' basis, one matrix product for all forms: (H, n, forms, a + 1).
    both = np.concatenate([shares, residuals[:, :, None]], axis=2) * root[:, None]
    rotated = np.swapaxes(grid.vectors, 1, 2) @ both.transpose(1, 0, 2).reshape(n, -1)
    spread = rotated.reshape(-1, n, many, a + 1)[index].transpose(0, 2, 1, 3)  # (H, forms, n, a + 1)
    scaled = grid.inverses[:, None, :, None] * spread
    # 2. What the coefficients explain.
    products = np.swapaxes(spread[:, :, :, :-1], 2, 3) @ scaled  # (H, forms, a, a + 1): G'C⁻¹[G, r]
    inner = np.linalg.inv(products[:, :, :, :-1] + np.eye(a))
    projected = scaled[:, :, :, -1:] - scaled[:, :, :, :-1] @ (inner @ products[:, :, :, -1:])
    # 3. Back to observations: P·r, and the diagonal of P.
    vectors = grid.vectors[index]
    back = vectors[:, None] @ np.concatenate([scaled[:, :, :, :-1], projected], axis=3)
    of_kernels = (vectors**2 @ grid.inverses[:, :, None])[:, None, :, 0]
    off = (back[:, :, :, :-1] @ inner * back[:, :, :, :-1]).sum(axis=3)
    diagonal = np.maximum(of_kernels - off, 1e-12)
    missed = back[:, :, :, -1]
    # Densities are of the observations themselves, not of rows multiplied by √precision: a constant, left out.
    density = 0.5 * (np.log(diagonal) - missed**2 / diagonal).sum(axis=2)
    error = np.abs(missed / diagonal / root).mean(axis=2)
    return [Scores(density[:, f].copy(), error[:, f].copy()) for f in range(many)]


@dataclass(frozen=True, slots=True)
class Corrections:
    """g at some points of the grid, each for one of some forms (a part), and the uncertainty that they leave.

    In single precision: thousands of rows are predicted for each fit, and a millionth of ln T is no error.
    Parts with the same kernel share all that costs time; their variances are summed beforehand, by weight.
    """

    inputs: Singles
    """(n, 4): of the observations."""
    scales: Singles
    """(kernels, 4): those length scales that any part uses."""
    alpha: Singles
    """(kernels, n, parts): what each observation's kernel adds to ln T; 0 where the part is of another kernel."""
    quadratic: Singles
    """(kernels, n + a, n + a): what kernels and shares of a row take off the variance; a counts shares of all forms."""
    variance: float
    """Where nothing was measured: of g, and of the noise."""


def corrections(
    grid: Kernels,
    at: NDArray[np.intp],
    weights: Floats,
    form: NDArray[np.intp],
    residuals: Sequence[Floats],
    shares: Sequence[Floats],
) -> Corrections:
    """Of parts at grid points `at`, of forms `form`, all three (parts,); residuals and shares of each form as above.

    With k the kernel of a row and g its shares, Var = σ² + s² − k'C⁻¹k + (g − G'C⁻¹k)'(G'C⁻¹G + I)⁻¹(g − G'C⁻¹k).
    """
    # 1. The parts one beside the other; each has its form's shares in their place, and 0 in the places of others.
    parts, n, a = len(at), len(grid.inputs), sum(each.shape[1] for each in shares)
    own = np.repeat(np.arange(len(shares)), [each.shape[1] for each in shares]) == form[:, None]
    explained = np.concatenate(shares, axis=1) * own[:, None, :]
    sizes, root = grid.sizes[at], np.sqrt(grid.precision)
    vectors = grid.vectors[grid.index[at]]
    inverse = (vectors * grid.inverses[at][:, None, :]) @ np.swapaxes(vectors, 1, 2) * np.outer(root, root)
    # 2. Var as one quadratic form of (k, g) of each part.
    known = inverse @ explained
    inner = np.linalg.inv(np.swapaxes(explained, 1, 2) @ known + np.eye(a)) * (own[:, :, None] & own[:, None, :])
    across = known @ inner * sizes[:, None, None]
    quadratic = np.empty((parts, n + a, n + a))
    quadratic[:, :n, :n] = inverse * sizes[:, None, None] ** 2
    quadratic[:, :n, :n] -= across @ np.swapaxes(known, 1, 2) * sizes[:, None, None]
    quadratic[:, :n, n:] = across
    quadratic[:, n:, :n] = np.swapaxes(across, 1, 2)
    quadratic[:, n:, n:] = -inner
    # 3. Summed by kernel; a part whose g is 0 needs none of its own.
    index = np.where(sizes > 0.0, grid.index[at], grid.index[at[np.argmax(sizes)]])
    used, kernel = np.unique(index, return_inverse=True)
    is_of = kernel == np.arange(len(used))[:, None]
    summed = (is_of * weights) @ quadratic.reshape(parts, -1)
    alpha = sizes[:, None] * (inverse @ np.stack(residuals)[form][:, :, None])[:, :, 0]
    return Corrections(
        grid.inputs.astype(np.float32),
        grid.scales[used].astype(np.float32),
        (is_of[:, None, :] * alpha.T).astype(np.float32),
        summed.reshape(len(used), n + a, n + a).astype(np.float32),
        float(weights @ (sizes + grid.noises[at])),
    )


def corrected(each: Corrections, inputs: Singles, shares: Singles) -> tuple[Singles, Singles]:
    """g of each part (rows, parts), and the parts' mean variance of ln T (rows,), at new rows: `inputs` (rows, 4),
    `shares` (rows, a) of all forms."""
    across = matern(inputs, each.inputs, each.scales)
    kernels, rows, n = across.shape
    both = np.empty((kernels, rows, n + shares.shape[1]), dtype=np.float32)
    both[:, :, :n] = across
    both[:, :, n:] = shares
    variance = each.variance - np.einsum("kra,kra->r", both @ each.quadratic, both)
    return (across @ each.alpha).sum(axis=0), variance


def mixture(log_scores: Floats, kept: int) -> tuple[Sequence[int], Floats]:
    """The best `kept` candidates and their weights, which sum to 1."""
    order = np.argsort(-log_scores, kind="stable")[:kept]
    weights = np.exp(log_scores[order] - log_scores[order[0]])
    keep = weights > 0.01 * weights.sum()
    weights = weights[keep]
    return [int(i) for i in order[keep]], weights / weights.sum()
