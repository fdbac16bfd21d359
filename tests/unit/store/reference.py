"""The optimizers as their papers write them, in numpy float32: what the kernels are compared with."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from recmesh.formats import initial_rows
from recmesh.store import TableSchema

Floats = NDArray[np.float32]


@dataclass
class ReferenceTable:
    """A table as a dictionary of rows."""

    schema: TableSchema
    values: dict[int, Floats] = field(default_factory=dict)
    state: dict[int, Floats] = field(default_factory=dict)
    updates: dict[int, int] = field(default_factory=dict)
    frequency: dict[int, int] = field(default_factory=dict)
    last_step: dict[int, int] = field(default_factory=dict)

    def row(self, id_: int) -> Floats:
        if id_ in self.values:
            return self.values[id_]
        init = self.schema.init
        rows = initial_rows(init.seed, table=self.schema.name, ids=np.array([id_]), dim=self.schema.dim,
                            kind=init.kind, scale=init.scale)
        return rows.reshape(-1)

    def push(self, ids: NDArray[np.int64], grads: Floats, counts: NDArray[np.uint32], *, step: int) -> None:
        optimizer = self.schema.optimizer
        for id_, grad, count in zip(ids.tolist(), grads, counts.tolist(), strict=True):
            start = optimizer.initial_accumulator if "adagrad" in optimizer.kind else 0.0
            fresh = np.full(self.schema.state_width, start, np.float32)
            if optimizer.kind == "ftrl":
                fresh[:self.schema.dim] = optimizer.initial_accumulator
            state = self.state.get(id_, fresh)
            t = self.updates.get(id_, 0) + 1
            self.values[id_], self.state[id_] = self._step(self.row(id_).copy(), state, grad, t, step)
            self.updates[id_] = t
            self.frequency[id_] = self.frequency.get(id_, 0) + count
            self.last_step[id_] = step + 1

    def _step(self, w: Any, state: Any, grad: Any, t: int, step: int) -> tuple[Floats, Floats]:
        o, f = self.schema.optimizer, np.float32
        lr, eps = f(o.rate(step)), f(o.eps)
        if o.kind == "accumulate":
            return w + grad, state
        g = grad + f(o.weight_decay) * w
        if o.kind == "sgd":
            return w - lr * g, state
        if o.kind == "adagrad":
            state = state + g * g
            return w - lr * g / (np.sqrt(state) + eps), state
        if o.kind == "rowwise_adagrad":
            state = state + f(np.sum(g.astype(np.float64) ** 2) / len(g))
            return w - lr / (np.sqrt(state[0]) + eps) * g, state
        if o.kind == "ftrl":
            n, z = state[:len(w)], state[len(w):]
            sigma = (np.sqrt(n + g * g) - np.sqrt(n)) / lr
            n, z = n + g * g, z + g - sigma * w
            w = np.where(np.abs(z) <= f(o.l1), f(0), (np.sign(z) * f(o.l1) - z) / (np.sqrt(n) / lr + 2 * f(o.l2)))
            return w.astype(f), np.concatenate((n, z)).astype(f)
        b1, b2 = f(o.beta1), f(o.beta2)
        m, v = state[:len(w)], state[len(w):]
        m = b1 * m + (f(1) - b1) * g
        v = b2 * v + (f(1) - b2) * g * g
        rate = lr * f(1 / (1 - float(b1) ** t))
        root = f(1 / np.sqrt(1 - float(b2) ** t))
        return w - rate * m / (np.sqrt(v) * root + eps), np.concatenate((m, v))
