"""What tables and dense blocks are: shapes, initial values, optimizers."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from recmesh.formats import initial
from recmesh.runtime.errors import InvalidArgument, Violation
from recmesh.store import arithmetic

OPTIMIZERS = {
    "sgd": arithmetic.SGD,
    "adagrad": arithmetic.ADAGRAD,
    "rowwise_adagrad": arithmetic.ROWWISE_ADAGRAD,
    "adam": arithmetic.ADAM,
    "accumulate": arithmetic.ACCUMULATE,
    "ftrl": arithmetic.FTRL,
}
DTYPES = ("float32", "bfloat16")
_BIAS_STEPS = 65_536    # Adam's bias corrections are looked up to here, and computed beyond


@dataclass(frozen=True, slots=True)
class Optimizer:
    """One rule of `recmesh.store.arithmetic.update`; `accumulate` adds the gradient to the value."""

    kind: str = "adagrad"
    lr: float = 0.05
    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8
    initial_accumulator: float = 0.1
    weight_decay: float = 0.0
    l1: float = 0.0
    """ftrl: values whose pull stays below it are exactly zero."""
    l2: float = 0.0
    """ftrl: as TensorFlow counts it, twice in the denominator."""
    schedule: tuple[tuple[int, float], ...] = ()
    """(step, factor), ascending: lr is multiplied by the factor, linear between points, constant outside."""

    def rate(self, step: int) -> float:
        """The learning rate at a group's step."""
        if not self.schedule:
            return self.lr
        steps, factors = zip(*self.schedule, strict=True)
        return self.lr * float(np.interp(step, steps, factors))

    def state_width(self, dim: int) -> int:
        """float32 of state beside `dim` values."""
        return {"adagrad": dim, "rowwise_adagrad": 1, "adam": 2 * dim, "ftrl": 2 * dim}.get(self.kind, 0)

    def hyper(self, step: int) -> NDArray[np.float32]:
        """The kernels' numbers, in the order of `recmesh.store.arithmetic`."""
        return np.array([self.rate(step), self.beta1, self.beta2, self.eps, self.weight_decay,
                         self.initial_accumulator, self.l1, self.l2], np.float32)

    def bias(self) -> NDArray[np.float32]:
        """Adam's 1/(1-β1^t) and 1/sqrt(1-β2^t), interleaved by t (t = 0 is never used)."""
        if self.kind != "adam":
            return np.empty(0, np.float32)
        t = np.arange(1, _BIAS_STEPS, dtype=np.float64)
        beta1, beta2 = float(np.float32(self.beta1)), float(np.float32(self.beta2))
        table = np.ones((_BIAS_STEPS, 2), np.float32)
        table[1:, 0] = 1.0 / (1.0 - beta1**t)
        table[1:, 1] = 1.0 / np.sqrt(1.0 - beta2**t)
        return table.ravel()

    def violations(self, path: str) -> list[Violation]:
        """What is wrong with it."""
        found = []
        if self.kind not in OPTIMIZERS:
            found.append(Violation(f"{path}.kind", f"one of {', '.join(OPTIMIZERS)}, not {self.kind!r}"))
        if not (np.isfinite(self.lr) and self.lr >= 0):
            found.append(Violation(f"{path}.lr", f"finite and not negative, not {self.lr}"))
        for name in ("beta1", "beta2"):
            if not 0 <= np.float32(getattr(self, name)) < 1:     # rounded up to 1, the kernels would divide by 0
                found.append(Violation(f"{path}.{name}", f"in [0, 1) as float32, not {getattr(self, name)}"))
        for name in ("eps", "initial_accumulator", "weight_decay", "l1", "l2"):
            if not (np.isfinite(getattr(self, name)) and getattr(self, name) >= 0):
                reason = f"finite and not negative, not {getattr(self, name)}"
                found.append(Violation(f"{path}.{name}", reason))
        if self.kind == "ftrl" and self.lr == 0:
            found.append(Violation(f"{path}.lr", "ftrl divides by it: above 0"))
        factors = [factor for _, factor in self.schedule]
        if not all(np.isfinite(factor) and factor >= 0 for factor in factors):
            found.append(Violation(f"{path}.schedule", "factors must be finite and not negative"))
        elif self.kind == "ftrl" and 0 in factors:
            found.append(Violation(f"{path}.schedule", "ftrl divides by the rate: factors above 0"))
        steps = [step for step, _ in self.schedule]
        if steps != sorted(set(steps)):
            found.append(Violation(f"{path}.schedule", "steps must ascend"))
        return found


@dataclass(frozen=True, slots=True)
class Init:
    """Initial values of rows: `recmesh.formats.initial`."""

    kind: str = "uniform"
    scale: float = 0.05
    seed: int = 0


@dataclass(frozen=True, slots=True)
class TableSchema:
    """An embedding table that grows with the ids that appear."""

    name: str
    dim: int
    optimizer: Optimizer = field(default_factory=Optimizer)
    init: Init = field(default_factory=Init)
    min_frequency: int = 1
    """How often an id must occur before it is trained; until then it reads as its initial value."""
    ttl_steps: int = 0
    """Rows that the last so many steps of their group did not update go; 0: none do."""
    max_bytes: int = 0
    """Of the whole table's rows, over all servers; the rarest go. 0: no bound."""
    dtype: str = "float32"
    """Of the values; optimizer state is float32."""

    @property
    def half(self) -> bool:
        """Whether values are bfloat16."""
        return self.dtype == "bfloat16"

    @property
    def state_width(self) -> int:
        """float32 of optimizer state per row."""
        return self.optimizer.state_width(self.dim)

    def check(self) -> None:
        """InvalidArgument when a field is wrong."""
        path = f"tables.{self.name}"
        found = self.optimizer.violations(f"{path}.optimizer")
        if not self.name:
            found.append(Violation("tables", "a table needs a name"))
        if not 1 <= self.dim <= 65_536:
            found.append(Violation(f"{path}.dim", f"from 1 to 65536, not {self.dim}"))
        if self.init.kind not in initial.KINDS:
            found.append(Violation(f"{path}.init.kind", f"one of {', '.join(initial.KINDS)}"))
        if self.dtype not in DTYPES:
            found.append(Violation(f"{path}.dtype", f"one of {', '.join(DTYPES)}, not {self.dtype!r}"))
        for name, least in (("min_frequency", 1), ("ttl_steps", 0), ("max_bytes", 0)):
            if not least <= getattr(self, name) < 1 << 62:
                found.append(Violation(f"{path}.{name}", f"at least {least}, not {getattr(self, name)}"))
        if found:
            raise InvalidArgument(f"table {self.name!r} cannot be declared", violations=found)


@dataclass(frozen=True, slots=True)
class DenseSchema:
    """A dense block: a tensor, kept in chunks of `recmesh.formats.CHUNK` values."""

    name: str
    shape: tuple[int, ...]
    optimizer: Optimizer = field(default_factory=Optimizer)

    @property
    def size(self) -> int:
        """Values in the block."""
        return prod(self.shape)

    def check(self) -> None:
        """InvalidArgument when a field is wrong."""
        found = self.optimizer.violations(f"dense.{self.name}.optimizer")
        if not self.name:
            found.append(Violation("dense", "a dense block needs a name"))
        if self.optimizer.kind == "rowwise_adagrad":
            found.append(Violation(f"dense.{self.name}.optimizer.kind", "row-wise Adagrad is for tables"))
        if found:
            raise InvalidArgument(f"dense block {self.name!r} cannot be declared", violations=found)


def table_to_json(schema: TableSchema) -> dict[str, Any]:
    """As in part.json."""
    return asdict(schema)


def table_from_json(value: Mapping[str, Any]) -> TableSchema:
    """The inverse of `table_to_json`."""
    policy = {key: value[key] for key in ("min_frequency", "ttl_steps", "max_bytes", "dtype") if key in value}
    return TableSchema(str(value["name"]), int(value["dim"]), _optimizer(value["optimizer"]),
                       Init(**value["init"]), **policy)


def dense_to_json(schema: DenseSchema) -> dict[str, Any]:
    """As in part.json."""
    return asdict(schema)


def dense_from_json(value: Mapping[str, Any]) -> DenseSchema:
    """The inverse of `dense_to_json`."""
    return DenseSchema(str(value["name"]), tuple(value["shape"]), _optimizer(value["optimizer"]))


def _optimizer(value: Mapping[str, Any]) -> Optimizer:
    return Optimizer(**{**value, "schedule": tuple((int(s), float(f)) for s, f in value["schedule"])})
