"""The scalar rules inside kernels: hashing, initial values, one optimizer step of one row.

Each equals its definition in `recmesh.formats` bit for bit; optimizers compute in float32 as torch does.
"""

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from recmesh.formats.hashing import GOLDEN
from recmesh.formats.initial import ACKLAM_A, ACKLAM_B, ACKLAM_C, ACKLAM_D, ACKLAM_LOW, LN2
from recmesh.store.jit import inline

SGD, ADAGRAD, ROWWISE_ADAGRAD, ADAM, ACCUMULATE, FTRL = range(6)
ZEROS, UNIFORM, NORMAL = range(3)

# Places in the `hyper` array (float32).
LR, BETA1, BETA2, EPS, WEIGHT_DECAY, INITIAL_ACCUMULATOR, L1, L2 = range(8)
HYPERS = 8

_GOLDEN = np.uint64(GOLDEN)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)


@inline
def mix64(x: Any) -> Any:
    """recmesh.formats.splitmix64 of one word."""
    z = x + _GOLDEN
    z = (z ^ (z >> np.uint64(30))) * _MIX_1
    z = (z ^ (z >> np.uint64(27))) * _MIX_2
    return z ^ (z >> np.uint64(31))


@inline
def _ln(x: float) -> float:
    m, e = math.frexp(x)
    s = (m - 1.0) / (m + 1.0)
    s2 = s * s
    value = 1.0 / 25.0
    for k in range(23, 0, -2):
        value = value * s2 + 1.0 / k
    return e * LN2 + 2.0 * s * value


@inline
def _normal_quantile(p: float) -> float:
    q = p - 0.5
    tail = min(p, 1.0 - p)
    if tail >= ACKLAM_LOW:
        r = q * q
        over = ACKLAM_A[0]
        for c in ACKLAM_A[1:]:
            over = over * r + c
        under = ACKLAM_B[0]
        for c in ACKLAM_B[1:]:
            under = under * r + c
        return (over * q) / (under * r + 1.0)
    t = math.sqrt(-2.0 * _ln(tail))
    over = ACKLAM_C[0]
    for c in ACKLAM_C[1:]:
        over = over * t + c
    under = ACKLAM_D[0]
    for c in ACKLAM_D[1:]:
        under = under * t + c
    low = over / (under * t + 1.0)
    return low if q < 0.0 else -low


@inline
def fill_initial(values: NDArray[np.float32], id_: Any, kind: int, seed_salt: Any, scale: float) -> None:
    """Initial values of one row; `seed_salt` is table_salt(name) XOR splitmix64(seed)."""
    if kind == ZEROS:
        for j in range(values.size):
            values[j] = np.float32(0.0)
        return
    state = mix64(id_ ^ seed_salt)
    for j in range(values.size):
        word = np.float64(mix64(state) >> np.uint64(11))
        state += _GOLDEN
        if kind == UNIFORM:
            values[j] = np.float32((2.0 * (word * 2.0**-53) - 1.0) * scale)
        else:
            values[j] = np.float32(_normal_quantile((word + 0.5) * 2.0**-53) * scale)


@inline
def bits_of(x: Any) -> Any:
    """The word of a float32."""
    return np.float32(x).view(np.uint32)


@inline
def unpack(words: NDArray[np.uint32], start: int, dim: int, out: NDArray[np.float32]) -> None:
    """out[:dim] := the bfloat16 values in words[start:], two in each."""
    for j in range(dim):
        half = (words[start + (j >> 1)] >> np.uint32(16 * (j & 1))) & np.uint32(0xFFFF)
        out[j] = np.uint32(half << np.uint32(16)).view(np.float32)


@inline
def pack(values: NDArray[np.float32], dim: int, words: NDArray[np.uint32], start: int, noise: Any) -> None:
    """words[start:] := the values in bfloat16: to the nearest where noise is 0, else up or down by chance.

    Rounding by chance, with a probability that keeps the mean, lets updates below half a unit add up (Gupta
    et al., ICML 2015). The chance is a hash of `noise`, so that the same push leaves the same row.
    """
    chance = noise
    for j in range(0, dim, 2):
        pair = np.uint32(0)
        for k in range(min(2, dim - j)):
            bits = bits_of(values[j + k])
            if values[j + k] != values[j + k]:
                half = np.uint32((bits >> np.uint32(16)) | np.uint32(0x40))
            elif noise == np.uint64(0):
                odd = (bits >> np.uint32(16)) & np.uint32(1)
                half = np.uint32((bits + np.uint32(0x7FFF) + odd) >> np.uint32(16))
            else:
                chance = mix64(chance)
                half = np.uint32((bits + np.uint32(chance >> np.uint64(48))) >> np.uint32(16))
            pair |= np.uint32((half & np.uint32(0xFFFF)) << np.uint32(16 * k))
        words[start + (j >> 1)] = pair


@inline
def fill_state(state: NDArray[np.float32], kind: int, hyper: NDArray[np.float32]) -> None:
    """Optimizer state of a row that was never updated."""
    start = np.float32(0.0)
    if kind == ADAGRAD or kind == ROWWISE_ADAGRAD:
        start = hyper[INITIAL_ACCUMULATOR]
    for j in range(state.size):
        state[j] = start
    if kind == FTRL:
        for j in range(state.size // 2):
            state[j] = hyper[INITIAL_ACCUMULATOR]


@inline
def update_rows(
    kind: int, slab: NDArray[np.float32], starts: NDArray[np.int64], n: int, dim: int,
    grads: NDArray[np.float32], sources: NDArray[np.int64], t: NDArray[np.int64], hyper: NDArray[np.float32],
    bias: NDArray[np.float32],
) -> None:
    """One optimizer step on n rows: row i has its values at slab[starts[i]:], its state behind them, and its
    gradient at grads[sources[i]·dim:]; t[i] counts its own steps, this one included.

    state: none | sum of squares [dim] | mean sum of squares [1] | m [dim], v [dim] | none | FTRL's n [dim],
    z [dim] (McMahan et al., KDD 2013, algorithm 1; l2 counts twice in the denominator, as in TensorFlow, and
    beta is 0). bias holds Adam's
    1/(1-β1^t), 1/sqrt(1-β2^t) for t below a bound. The switch is outside the loop over rows: a call per row
    costs more than its arithmetic.
    """
    lr, eps, decay = hyper[LR], hyper[EPS], hyper[WEIGHT_DECAY]
    if kind == ACCUMULATE:
        for i in range(n):
            values = slab[starts[i]:starts[i] + dim]
            grad = grads[sources[i] * dim:sources[i] * dim + dim]
            for j in range(dim):
                values[j] += grad[j]
    elif kind == SGD:
        for i in range(n):
            values = slab[starts[i]:starts[i] + dim]
            grad = grads[sources[i] * dim:sources[i] * dim + dim]
            for j in range(dim):
                values[j] -= lr * (grad[j] + decay * values[j])
    elif kind == ADAGRAD:
        for i in range(n):
            # Unsigned indices instead of slices: see docs/adr/0004-kernels-in-numba.md.
            at, at_sum, at_grad = np.uint64(starts[i]), np.uint64(starts[i] + dim), np.uint64(sources[i] * dim)
            for j in range(np.uint64(dim)):
                g = grads[at_grad + j] + decay * slab[at + j]
                total = slab[at_sum + j] + g * g
                slab[at_sum + j] = total
                slab[at + j] -= lr * g / (math.sqrt(total) + eps)
    elif kind == ROWWISE_ADAGRAD:
        for i in range(n):
            values = slab[starts[i]:starts[i] + dim]
            grad = grads[sources[i] * dim:sources[i] * dim + dim]
            squares = 0.0
            for j in range(dim):
                g = grad[j] + decay * values[j]
                squares += np.float64(g) * np.float64(g)
            total = slab[starts[i] + dim] + np.float32(squares / dim)
            slab[starts[i] + dim] = total
            rate = lr / (math.sqrt(total) + eps)
            for j in range(dim):
                values[j] -= rate * (grad[j] + decay * values[j])
    elif kind == FTRL:
        l1, ridge = hyper[L1], np.float32(2.0) * hyper[L2]
        for i in range(n):
            values = slab[starts[i]:starts[i] + dim]
            sums = slab[starts[i] + dim:starts[i] + 2 * dim]
            linear = slab[starts[i] + 2 * dim:starts[i] + 3 * dim]
            grad = grads[sources[i] * dim:sources[i] * dim + dim]
            for j in range(dim):
                g = grad[j] + decay * values[j]
                total = sums[j] + g * g
                inverse_rate = math.sqrt(total) / lr
                z = linear[j] + g - (inverse_rate - math.sqrt(sums[j]) / lr) * values[j]
                sums[j] = total
                linear[j] = z
                if inverse_rate + ridge > 0.0:      # else nothing is known yet: no gradient, no accumulator
                    values[j] = (min(max(z, -l1), l1) - z) / (inverse_rate + ridge)
    else:
        beta1, beta2 = hyper[BETA1], hyper[BETA2]
        rest1, rest2 = np.float32(1.0) - beta1, np.float32(1.0) - beta2
        for i in range(n):
            values = slab[starts[i]:starts[i] + dim]
            m = slab[starts[i] + dim:starts[i] + 2 * dim]
            v = slab[starts[i] + 2 * dim:starts[i] + 3 * dim]
            grad = grads[sources[i] * dim:sources[i] * dim + dim]
            if 2 * t[i] + 1 < bias.size:
                rate, root = lr * bias[2 * t[i]], bias[2 * t[i] + 1]
            else:
                power = np.float64(t[i])
                rate = lr * np.float32(1.0 / (1.0 - math.pow(np.float64(beta1), power)))
                root = np.float32(1.0 / math.sqrt(1.0 - math.pow(np.float64(beta2), power)))
            for j in range(dim):
                g = grad[j] + decay * values[j]
                mean = beta1 * m[j] + rest1 * g
                square = beta2 * v[j] + rest2 * g * g
                m[j] = mean
                v[j] = square
                values[j] -= rate * mean / (math.sqrt(square) * root + eps)
