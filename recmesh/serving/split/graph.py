"""A model as operators and tensors, of no framework: what the classes and the cut work on.

Constants (weights, and all that follows from them alone) and sizes (what follows from shapes alone) are not in it:
both are there on either side without being sent. A front end leaves them out and tells what a lookup's table weighs.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

from recmesh.runtime.errors import InvalidArgument
from recmesh.serving.split.layout import ITEM_BYTES


class Unsplittable(Exception):
    """The model is to be served whole; the text says why."""


@dataclass(frozen=True, slots=True)
class Tensor:
    """A value that operators exchange."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    """At the reference batch."""
    bytes: int
    """Of its elements at the reference batch."""
    dims: tuple[int, ...] = ()
    """As `shape`, with -1 where it differs between requests; empty: as `shape`."""
    batched: bool = True
    """The first dimension is the request's samples."""

    @property
    def can_be_sent(self) -> bool:
        """Whether it has elements of a fixed size."""
        return self.dtype in ITEM_BYTES


@dataclass(frozen=True, slots=True)
class Operator:
    """One operator; `inputs` and `outputs` are names of tensors."""

    name: str
    kind: str
    """The framework's name of what it does: `aten.linear.default`, `MatMul`."""
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    table_bytes: int = 0
    """Of the constant that it reads its first operand from; 0: that operand is no constant."""


@dataclass(frozen=True)
class OperatorGraph:
    """Operators in an order in which they can run. InvalidArgument when it is none."""

    operators: tuple[Operator, ...]
    tensors: Mapping[str, Tensor]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    constants: int = 0
    """How many constant operators the front end has left out."""
    sizes: int = 0
    """How many operators on shapes it has left out."""

    def __post_init__(self) -> None:
        there = set(self.inputs)
        for operator in self.operators:
            for name in operator.inputs:
                if name not in there:
                    raise InvalidArgument(f"operator {operator.name} reads {name}, which nothing before it makes")
            for name in operator.outputs:
                if name in there:
                    raise InvalidArgument(f"tensor {name} is made twice, the second time by {operator.name}")
            there.update(operator.outputs)
        for name in self.outputs:
            if name not in there:
                raise InvalidArgument(f"output {name} is made by no operator")
        if missing := there - self.tensors.keys():
            raise InvalidArgument(f"tensors without a description: {', '.join(sorted(missing))}")

    @cached_property
    def by_name(self) -> Mapping[str, Operator]:
        """Operators by name."""
        return {each.name: each for each in self.operators}

    @cached_property
    def maker(self) -> Mapping[str, str]:
        """Of each tensor but the model's inputs: the operator that makes it."""
        return {name: each.name for each in self.operators for name in each.outputs}

    @cached_property
    def readers(self) -> Mapping[str, tuple[str, ...]]:
        """Of each tensor: the operators that read it."""
        found: dict[str, list[str]] = {name: [] for name in self.tensors}
        for each in self.operators:
            for name in dict.fromkeys(each.inputs):
                found[name].append(each.name)
        return {name: tuple(names) for name, names in found.items()}

    def before(self, name: str) -> list[str]:
        """Operators whose results it reads."""
        return [self.maker[tensor] for tensor in self.by_name[name].inputs if tensor in self.maker]

    def after(self, name: str) -> list[str]:
        """Operators that read its results."""
        return [reader for tensor in self.by_name[name].outputs for reader in self.readers[tensor]]

    def ancestors(self, names: Iterable[str]) -> frozenset[str]:
        """All operators that these depend on, and these."""
        return self._reached(names, self.before)

    def descendants(self, names: Iterable[str]) -> frozenset[str]:
        """All operators that depend on these, and these."""
        return self._reached(names, self.after)

    def _reached(self, names: Iterable[str], step: Callable[[str], list[str]]) -> frozenset[str]:
        found = set(names)
        waiting = list(found)
        while waiting:
            for name in step(waiting.pop()):
                if name not in found:
                    found.add(name)
                    waiting.append(name)
        return frozenset(found)

    def work(self, name: str) -> int:
        """A rough count of its arithmetic at the reference batch: of a product 2·M·K·N, else one per element."""
        operator = self.by_name[name]
        elements = sum(_elements(self.tensors[tensor]) for tensor in operator.outputs)
        first = self.tensors[operator.inputs[0]].shape if operator.inputs else ()
        return 2 * elements * first[-1] if first else elements

    def traffic_bytes(self, name: str) -> int:
        """What an operator reads and writes at the reference batch, without constants."""
        operator = self.by_name[name]
        return sum(self.tensors[tensor].bytes for tensor in (*dict.fromkeys(operator.inputs), *operator.outputs))


def _elements(tensor: Tensor) -> int:
    count = 1
    for size in tensor.shape:
        count *= size
    return count

