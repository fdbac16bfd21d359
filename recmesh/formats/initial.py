"""Initial values of rows: a pure function of (seed, table, id, column), so that a pull inserts nothing.

    base(id) = splitmix64(id XOR table_salt(name) XOR splitmix64(seed))
    r(id, j) = splitmix64(base + j·GOLDEN)            one word of SplitMix64 per column j
    uniform  = (2·(r >> 11)·2^-53 - 1)·scale          in [-scale, scale)
    normal   = Φ^-1(((r >> 11) + 0.5)·2^-53)·scale

All in float64 with +, -, ·, / and sqrt alone, rounded to float32 once: equal bit for bit in numpy, in
compiled code and on any machine (library functions such as log and cos are not). Φ^-1 is Acklam's rational
approximation, relative error below 1.2e-9.
"""

import numpy as np
from numpy.typing import NDArray

from recmesh.formats.hashing import GOLDEN, mix, splitmix64, table_salt

KINDS = ("zeros", "uniform", "normal")

LN2 = 0.6931471805599453
ACKLAM_A = (-3.969683028665376e+01, 2.209460984245205e+02, -2.759285104469687e+02,
            1.383577518672690e+02, -3.066479806614716e+01, 2.506628277459239e+00)
ACKLAM_B = (-5.447609879822406e+01, 1.615858368580409e+02, -1.556989798598866e+02,
            6.680131188771972e+01, -1.328068155288572e+01)
ACKLAM_C = (-7.784894002430293e-03, -3.223964580411365e-01, -2.400758277161838e+00,
            -2.549732539343734e+00, 4.374664141464968e+00, 2.938163982698783e+00)
ACKLAM_D = (7.784695709041462e-03, 3.224671290700398e-01, 2.445134137142996e+00, 3.754408661907416e+00)
ACKLAM_LOW = 0.02425
"""Below it, and above 1 - it, the tail's formula holds."""


def initial_rows(
    seed: int, *, table: str, ids: NDArray[np.int64], dim: int, kind: str, scale: float
) -> NDArray[np.float32]:
    """float32 [ids, dim]: what rows hold before their first update. `kind` is one of KINDS."""
    if kind not in KINDS:
        raise ValueError(f"initial values are one of {', '.join(KINDS)}, not {kind!r}")
    if kind == "zeros":
        return np.zeros((len(ids), dim), np.float32)
    salt = np.uint64(table_salt(table) ^ mix(seed))
    base = splitmix64(np.ascontiguousarray(ids, dtype=np.int64).view(np.uint64) ^ salt)
    with np.errstate(over="ignore"):
        states = base[:, None] + np.arange(dim, dtype=np.uint64) * np.uint64(GOLDEN)
    words = (splitmix64(states) >> np.uint64(11)).astype(np.float64)
    if kind == "uniform":
        return ((2.0 * (words * 2.0**-53) - 1.0) * scale).astype(np.float32)
    return (_normal_quantile((words + 0.5) * 2.0**-53) * scale).astype(np.float32)


def _normal_quantile(p: NDArray[np.float64]) -> NDArray[np.float64]:
    """Φ^-1 after P. J. Acklam; p in (0, 1)."""
    q = p - 0.5
    r = q * q
    centre = (_horner(ACKLAM_A, r) * q) / (_horner(ACKLAM_B, r) * r + 1.0)
    tail = np.minimum(p, 1.0 - p)
    t = np.sqrt(-2.0 * _ln(np.minimum(tail, ACKLAM_LOW)))
    low = _horner(ACKLAM_C, t) / (_horner(ACKLAM_D, t) * t + 1.0)
    return np.where(tail >= ACKLAM_LOW, centre, np.where(q < 0.0, low, -low))


def _horner(coefficients: tuple[float, ...], x: NDArray[np.float64]) -> NDArray[np.float64]:
    value = np.full_like(x, coefficients[0])
    for coefficient in coefficients[1:]:
        value = value * x + coefficient
    return value


def _ln(x: NDArray[np.float64]) -> NDArray[np.float64]:
    """ln x = e·ln 2 + 2·artanh((m-1)/(m+1)) with x = m·2^e, m in [0.5, 1): the series to its 25th power."""
    m, e = np.frexp(x)
    s = (m - 1.0) / (m + 1.0)
    s2 = s * s
    value = np.full_like(s, 1.0 / 25.0)
    for k in range(23, 0, -2):
        value = value * s2 + 1.0 / k
    return e * LN2 + 2.0 * s * value
