"""Operator graphs for tests: a builder, random ones, and the best split found by trying all."""

import itertools
import random
from collections.abc import Sequence

from recmesh.serving.split import cut
from recmesh.serving.split.graph import Operator, OperatorGraph, Tensor, Unsplittable


class Build:
    """`Build("x").op("a", "x", bytes=8).op("b", "a", bytes=4).graph("b")`: an operator and its tensor share a name."""

    def __init__(self, *inputs: str, size: int = 8, dtype: str = "float32") -> None:
        self._inputs = inputs
        self._operators: list[Operator] = []
        self._tensors = {name: Tensor(name, dtype, (size // 4,), size) for name in inputs}

    def op(
        self, name: str, *reads: str, size: int = 8, kind: str = "neutral", shape: tuple[int, ...] = (),
        dtype: str = "float32", table: int = 0, batched: bool = True,
    ) -> "Build":
        self._operators.append(Operator(name, kind, reads, (name,), table))
        self._tensors[name] = Tensor(name, dtype, shape or (size // 4,), size, (), batched)
        return self

    def graph(self, *outputs: str) -> OperatorGraph:
        return OperatorGraph(tuple(self._operators), self._tensors, self._inputs, outputs)


def drawn(rng: random.Random, operators: int) -> tuple[OperatorGraph, set[str], set[str]]:
    """A graph with one or two inputs, its CPU operators and its seeds; some operators make two tensors."""
    inputs = [f"x{n}" for n in range(rng.randint(1, 2))]
    made: list[Operator] = []
    names = list(inputs)
    for number in range(operators):
        near = names[-5:] if rng.random() < 0.7 else names
        reads = rng.sample(near, min(rng.randint(1, 2), len(near)))
        outputs = [f"t{number}", *([f"t{number}b"] if rng.random() < 0.2 else [])]
        made.append(Operator(f"o{number}", "any", tuple(reads), tuple(outputs)))
        names += outputs
    sizes = [4, 8, 16, 64, 100, 1000]
    tensors = {name: Tensor(name, "float32", (1,), rng.choice(sizes)) for name in names}
    read = {name for each in made for name in each.inputs}
    results = tuple(name for name in names if name not in inputs and (name not in read or rng.random() < 0.1))
    cpu = {each.name for each in made if rng.random() < 0.2}
    seeds = {each.name for each in made if each.name not in cpu and rng.random() < 0.25}
    return OperatorGraph(tuple(made), tensors, tuple(inputs), results), cpu, seeds


def split_ones(seed: int, count: int, operators: int) -> list[tuple[OperatorGraph, cut.Pins]]:
    """Drawn graphs that can be split."""
    rng = random.Random(seed)
    found: list[tuple[OperatorGraph, cut.Pins]] = []
    while len(found) < count:
        graph, cpu, seeds = drawn(rng, rng.randint(3, operators))
        try:
            found.append((graph, cut.pins(graph, cpu, seeds)))
        except Unsplittable:
            continue
    return found


def cheapest(graph: OperatorGraph, fixed: cut.Pins, post: frozenset[str] | None = None) -> int:
    """The least cost of all convex splits; with `post` of those that have just this after the HN."""
    given = {**dict.fromkeys(fixed.pre, 0), **dict.fromkeys(fixed.seeds, 1), **dict.fromkeys(fixed.post, 2)}
    free: Sequence[str] = [name for name in graph.by_name if name not in given]
    costs = []
    for choice in itertools.product((0, 1, 2), repeat=len(free)):
        rank = given | dict(zip(free, choice, strict=True))
        parts = [frozenset(name for name, number in rank.items() if number == each) for each in range(3)]
        regions = cut.Regions(*parts)
        if not cut.broken(graph, regions) and (post is None or regions.post == post):
            costs.append(cut.cost(graph, regions, fixed))
    return min(costs)
