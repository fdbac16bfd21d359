"""Which operators run on the CN before, on the HN, and on the CN after it: naive colouring, and the minimum cut.

A split gives each operator a region, in the order CN, HN, CN; an operator is never in an earlier region than one that
it depends on. So the HN side is convex: no path leaves it and comes back. Its cost is the bytes of all tensors that the
HN receives and of those that it sends back, each counted once per direction however many operators read it, and a
price for what the HN computes that a CN could as well.

The first boundary (CN to HN) and the second (HN to CN) are each a minimum cut while the other stays. They are solved in
turn until neither gains, from three starts (as little as possible after the HN, as much as possible, and of that only
what follows a seed); the cheapest is taken. It is never dearer than the colouring, which has the first start's second
boundary. What stays on the CN throughout (from before the HN to after it) costs nothing; because of that the three
regions together are no minimum-cut problem (the cost is not submodular), hence two.
"""

from collections.abc import Collection
from dataclasses import dataclass

import networkx as nx

from recmesh.serving.split.graph import OperatorGraph, Tensor, Unsplittable

UNIT = 1024
"""Capacities are whole numbers: 1/1024 of a byte."""
PRICE = 1
"""Of a neutral operator on the HN, in 1/1024 of a byte for each byte that it reads or writes: an HN has 4 to 12 cores
(Prism), so of two cuts that send the same the one that leaves more to the CN is chosen."""
UNBATCHED = 2
"""How often a tensor counts that is not one row per sample: with it the HN cannot put requests together."""
_SOURCE, _SINK = "source", "sink"


@dataclass(frozen=True, slots=True)
class Pins:
    """Operators whose region is given."""

    pre: frozenset[str]
    """On the CN, before: CPU operators that no seed leads to, and all that they depend on."""
    seeds: frozenset[str]
    post: frozenset[str]
    """On the CN, after: CPU operators that a seed leads to, and all that depends on them."""


@dataclass(frozen=True, slots=True)
class Regions:
    """A split: names of operators by region."""

    pre: frozenset[str]
    hn: frozenset[str]
    post: frozenset[str]


def pins(graph: OperatorGraph, cpu: Collection[str], seeds: Collection[str]) -> Pins:
    """Where CPU operators and seeds must be. Unsplittable when a CPU operator lies between two seeds."""
    if not seeds:
        raise Unsplittable("it has no operator that an accelerator is good at (product, convolution, attention)")
    if not cpu:
        raise Unsplittable("it has no operator that must be on a CPU (lookup, hashing, strings)")
    behind = graph.descendants(seeds)
    post = graph.descendants(set(cpu) & behind)
    if caught := sorted(post & set(seeds)):
        between = next(each for each in sorted(set(cpu) & behind) if caught[0] in graph.descendants([each]))
        raise Unsplittable(
            f"{between} must be on a CPU and lies between products: they lead to it, and it leads to {caught[0]}"
        )
    return Pins(graph.ancestors(set(cpu) - behind), frozenset(seeds), post)


def colouring(graph: OperatorGraph, fixed: Pins) -> Regions:
    """Prism's first step: from the seeds in both directions up to the CPU operators; then made convex.

    What lies between is the HN's too, and what follows it unless that must be on a CPU.
    """
    near = graph.ancestors(fixed.seeds) | graph.descendants(fixed.seeds)
    hn = graph.descendants(near - fixed.pre - fixed.post) - fixed.post
    return Regions(frozenset(graph.by_name) - hn - fixed.post, hn, fixed.post)


def minimum(graph: OperatorGraph, fixed: Pins, *, price: int = PRICE) -> Regions:
    """The split of least cost, as the module's text says. Unsplittable when what must be sent cannot be."""
    latest = frozenset(graph.by_name) - graph.ancestors(fixed.seeds) - fixed.pre
    starts = [fixed.post, latest, latest & graph.descendants(fixed.seeds)]
    found = [_settled(graph, fixed, post, price) for post in dict.fromkeys(starts)]
    return min(found, key=lambda each: cost(graph, each, fixed, price=price))


def _settled(graph: OperatorGraph, fixed: Pins, post: frozenset[str], price: int) -> Regions:
    everything = frozenset(graph.by_name)
    pre = _first_boundary(graph, fixed, post, price)
    best = Regions(pre, everything - pre - post, post)
    while True:
        post = _second_boundary(graph, fixed, best.pre, price)
        pre = _first_boundary(graph, fixed, post, price)
        found = Regions(pre, everything - pre - post, post)
        if cost(graph, found, fixed, price=price) >= cost(graph, best, fixed, price=price):
            return best
        best = found


def cost(graph: OperatorGraph, regions: Regions, fixed: Pins, *, price: int = PRICE) -> int:
    """In 1/1024 of a byte."""
    sent, returned = crossing(graph, regions)
    weight = sum(_weight(graph.tensors[name]) for name in (*sent, *returned))
    own = sum(graph.traffic_bytes(name) for name in regions.hn - fixed.seeds)
    after = sum(graph.traffic_bytes(name) for name in regions.post - fixed.post)
    return weight + price * own + 2 * price * after


def crossing(graph: OperatorGraph, regions: Regions) -> tuple[list[str], list[str]]:
    """Tensors that the HN receives, and those that it sends back (also as the model's outputs)."""
    sent, returned = [], []
    for name, readers in graph.readers.items():
        on_hn = graph.maker.get(name) in regions.hn
        if not on_hn and any(reader in regions.hn for reader in readers):
            sent.append(name)
        if on_hn and (name in graph.outputs or any(reader in regions.post for reader in readers)):
            returned.append(name)
    return sent, returned


def _weight(tensor: Tensor) -> int:
    return tensor.bytes * UNIT * (1 if tensor.batched else UNBATCHED)


def broken(graph: OperatorGraph, regions: Regions) -> list[str]:
    """Operators that depend on a later region than their own: none, or the split is not convex."""
    rank = {name: number for number, names in enumerate((regions.pre, regions.hn, regions.post)) for name in names}
    return [name for name in graph.by_name if any(rank[other] > rank[name] for other in graph.before(name))]


def _first_boundary(graph: OperatorGraph, fixed: Pins, post: frozenset[str], price: int) -> frozenset[str]:
    """Operators before the HN, where `post` comes after it; on the source's side is what is before."""
    net = _Net()
    for name in graph.by_name.keys() - post:
        if name in fixed.pre:
            net.must(_SOURCE, name)
        elif name in fixed.seeds:
            net.must(name, _SINK)
        else:
            net.costs(_SOURCE, name, 0)
            net.costs(name, _SINK, 0)
            net.costs(_SOURCE, name, price * graph.traffic_bytes(name))       # paid when it is on the HN
        for other in graph.before(name):
            net.must(name, other)                                             # before: then what it needs is, too
    for name, tensor in graph.tensors.items():
        maker = graph.maker.get(name, _SOURCE)                                # the request is on the CN
        readers = [each for each in graph.readers[name] if each not in post]
        if maker in post:
            continue
        if readers:
            net.must_or(maker, ("tensor", name), _weight(tensor) if tensor.can_be_sent else None)
            for reader in readers:
                net.must(("tensor", name), reader)
        if maker != _SOURCE and (name in graph.outputs or len(readers) < len(graph.readers[name])):
            net.must_or(_SOURCE, maker, _weight(tensor) if tensor.can_be_sent else None)
    return frozenset(graph.by_name.keys() & net.source_side())


def _second_boundary(graph: OperatorGraph, fixed: Pins, pre: frozenset[str], price: int) -> frozenset[str]:
    """Operators after the HN, where `pre` comes before it; on the source's side is what is on the HN."""
    net = _Net()
    for name in graph.by_name.keys() - pre:
        if name in fixed.seeds:
            net.must(_SOURCE, name)
        elif name in fixed.post:
            net.must(name, _SINK)
        else:
            net.costs(_SOURCE, name, 0)
            net.costs(_SOURCE, name, 2 * price * graph.traffic_bytes(name))   # paid when it comes after
            net.costs(name, _SINK, price * graph.traffic_bytes(name))         # paid when it is on the HN
        for other in graph.before(name):
            if other not in pre:
                net.must(name, other)
    for name, tensor in graph.tensors.items():
        maker = graph.maker.get(name)
        readers = [each for each in graph.readers[name] if each not in pre]
        capacity = _weight(tensor) if tensor.can_be_sent else None
        if maker is None or maker in pre:
            for reader in readers:                                            # sent when one on the HN reads it
                net.must(reader, ("tensor", name))
            if readers:
                net.must_or(("tensor", name), _SINK, capacity)
        elif name in graph.outputs:
            net.must_or(maker, _SINK, capacity)                               # returned when it is made on the HN
        elif readers:
            net.must_or(maker, ("tensor", name), capacity)
            for reader in readers:
                net.must(("tensor", name), reader)
    after = graph.by_name.keys() - pre - net.source_side()
    return frozenset(after)


class _Net:
    """A flow network; an arc without a capacity is infinite."""

    def __init__(self) -> None:
        self._graph = nx.DiGraph()
        self._graph.add_nodes_from((_SOURCE, _SINK))

    def must(self, first: object, second: object) -> None:
        """Never `first` on the source's side and `second` on the sink's."""
        self._graph.add_edge(first, second)
        self._graph[first][second].pop("capacity", None)

    def costs(self, first: object, second: object, capacity: int) -> None:
        """To be paid when `first` is on the source's side and `second` on the sink's; adds up."""
        if not self._graph.has_edge(first, second):
            self._graph.add_edge(first, second, capacity=capacity)
        elif "capacity" in self._graph[first][second]:
            self._graph[first][second]["capacity"] += capacity

    def must_or(self, first: object, second: object, capacity: int | None) -> None:
        """As `costs`; without a capacity as `must`."""
        if capacity is None:
            self.must(first, second)
        else:
            self.costs(first, second, capacity)

    def source_side(self) -> frozenset[object]:
        """Of a minimum cut the one with most on the source's side. Unsplittable when each costs without bound."""
        try:
            _, (source, _sink) = nx.minimum_cut(self._graph, _SOURCE, _SINK)
        except nx.NetworkXUnbounded as error:
            raise Unsplittable(
                "what products need cannot be sent: a text, a table or a ragged value leads into them directly"
            ) from error
        return frozenset(source)
