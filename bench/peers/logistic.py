"""Logistic regression on one-hot ids and standardised dense columns: L2, fitted to the optimum by L-BFGS."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow.parquet as pq
import scipy.optimize
import scipy.sparse

from bench.criteo import BUCKETS, CATEGORIES, INTEGERS

F64 = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Rows:
    """One-hot and dense columns with a constant, and the targets."""

    x: scipy.sparse.csr_array
    y: F64


def load(path: Path) -> Rows:
    """All rows, in order."""
    table = pq.read_table(path)
    parts, n = [], table.num_rows
    for name in [*BUCKETS, *CATEGORIES]:
        ids = table[name].to_numpy()
        parts.append(scipy.sparse.csr_array((np.ones(n), ids, np.arange(n + 1)), shape=(n, int(ids.max()) + 1)))
    dense = np.stack([table[name].to_numpy().astype(np.float64) for name in INTEGERS], axis=1)
    dense = (dense - dense.mean(0)) / dense.std(0).clip(min=1e-9)
    parts.append(scipy.sparse.csr_array(np.hstack([dense, np.ones((n, 1))])))
    return Rows(scipy.sparse.hstack(parts, format="csr"), table["label"].to_numpy().astype(np.float64))


def scores(rows: Rows, train: slice, test: slice, *, l2: float) -> F64:
    """Log-odds of the test rows after a fit on the training rows."""
    x, y = rows.x[train], rows.y[train]

    def loss(weights: F64) -> tuple[float, F64]:
        z = x @ weights
        value = np.logaddexp(0, z).sum() - y @ z + l2 / 2 * weights @ weights
        return float(value), x.T @ (1 / (1 + np.exp(-z)) - y) + l2 * weights

    start = np.zeros(x.shape[1])
    fitted = scipy.optimize.minimize(loss, start, jac=True, method="L-BFGS-B", options={"maxiter": 300})
    found: F64 = rows.x[test] @ fitted.x
    return found
