"""What a front end gives: the graph of a model, its results on given inputs, and programs of parts of it."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from recmesh.serving.split.graph import OperatorGraph

Arrays = dict[str, "np.ndarray[Any, Any]"]


@dataclass(frozen=True, slots=True)
class Port:
    """An input or output of the model."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    """-1: a size of the caller's choice; the first one the batch."""
    kind: str = ""
    """Of an input, as model.json has it: `lengths` are counts of the ids in a row of another."""
    max_length: int = 0


class Source(Protocol):
    """A model that was read. All of it may raise Unsplittable."""

    framework: str
    inputs: list[Port]
    outputs: list[Port]

    def run(self, inputs: Arrays) -> Arrays:
        """The model's own results."""

    def pool(self) -> "np.ndarray[Any, Any]":
        """Ids that the model's tables know, int64 [n]; empty when that cannot be told."""

    def graph(self, probes: Sequence[Arrays]) -> OperatorGraph:
        """Operators, and tensors as the first probe gives them; the second has a sample more, the others other lengths.

        Names of the graph's inputs are the model's; `outputs` are in the order of the model's.
        """

    def write(
        self, folder: Path, *, inputs: Mapping[str, str], outputs: Mapping[str, str], operators: Collection[str]
    ) -> None:
        """The program of these operators, in `folder`; names of its inputs and outputs to tensors of the graph."""

    def load(self, folder: Path, outputs: Sequence[str]) -> "Program":
        """A program that `write` wrote."""


class Program(Protocol):
    """A stage, ready to be run."""

    def __call__(self, inputs: Arrays) -> Arrays:
        """Outputs by name."""


def dims_of(shapes: Sequence[tuple[int, ...]]) -> tuple[tuple[int, ...], bool]:
    """Of a tensor's shapes in the probes: the first with -1 where they differ, and whether it is batched.

    It is where the first dimension grows by as much as the batch, from the first probe to the second.
    """
    first = shapes[0]
    if any(len(shape) != len(first) for shape in shapes):
        return (-1,) * len(first), False
    dims = tuple(size if len({shape[axis] for shape in shapes}) == 1 else -1 for axis, size in enumerate(first))
    return dims, bool(first) and shapes[1][0] == first[0] + 1
