"""From a graph and the classes of its operators to a decision: the regions, what they cost, and what limits them."""

from collections.abc import Mapping
from dataclasses import dataclass

from recmesh.serving.split import cut
from recmesh.serving.split.classes import Class, Classes
from recmesh.serving.split.graph import OperatorGraph, Unsplittable

LIMIT_BYTES = 16 << 20
"""What may go over the network per request at the reference batch; 4 MiB take 3 ms (Prism), of 25 ms for a request."""


@dataclass(frozen=True, slots=True)
class Cost:
    """Of one way to split, at the reference batch."""

    sent: tuple[str, ...]
    """Tensors that the HN receives."""
    returned: tuple[str, ...]
    sent_bytes: int
    returned_bytes: int
    operators: Mapping[str, int]
    """By region: pre, hn, post."""

    @property
    def bytes(self) -> int:
        """In both directions."""
        return self.sent_bytes + self.returned_bytes


@dataclass(frozen=True, slots=True)
class Decision:
    """A split, and the naive one beside it."""

    classes: Mapping[str, Class]
    """By operator."""
    regions: cut.Regions
    cost: Cost
    naive: Cost
    why: str
    """What limits the cut."""

    @property
    def reduction(self) -> float:
        """Share of the naive colouring's bytes that the cut saves."""
        return 1 - self.cost.bytes / self.naive.bytes if self.naive.bytes else 0.0


def decide(
    graph: OperatorGraph, framework: str, classes: Classes, *, limit_bytes: int = LIMIT_BYTES, price: int = cut.PRICE
) -> Decision:
    """The minimum cut. Unsplittable says why the model is to be served whole."""
    found = {each.name: classes.of(each, framework) for each in graph.operators}
    for each in graph.operators:
        if found[each.name] is Class.WHOLE:
            raise Unsplittable(f"{each.name} ({each.kind}) is control flow or differs from run to run")
    fixed = cut.pins(
        graph,
        {name for name, kind in found.items() if kind is Class.CPU},
        {name for name, kind in found.items() if kind is Class.SEED},
    )
    if not fixed.pre:
        raise Unsplittable("no CPU operator comes before the accelerator's part")
    naive = cut.colouring(graph, fixed)
    regions = cut.minimum(graph, fixed, price=price)
    for way in (naive, regions):
        if wrong := cut.broken(graph, way):
            raise AssertionError(f"not convex at {wrong[0]}")
    chosen = _cost(graph, regions)
    if chosen.bytes > limit_bytes:
        raise Unsplittable(
            f"a request would send {chosen.bytes:,} B ({limit_bytes:,} B are allowed): {_largest(graph, chosen)}"
        )
    return Decision(found, regions, chosen, _cost(graph, naive), _why(graph, chosen, fixed))


def _cost(graph: OperatorGraph, regions: cut.Regions) -> Cost:
    sent, returned = cut.crossing(graph, regions)
    return Cost(
        tuple(sent), tuple(returned), sum(graph.tensors[name].bytes for name in sent),
        sum(graph.tensors[name].bytes for name in returned),
        {"pre": len(regions.pre), "hn": len(regions.hn), "post": len(regions.post)},
    )  # fmt: skip


def _largest(graph: OperatorGraph, cost: Cost) -> str:
    ranked = sorted(cost.sent, key=lambda name: -graph.tensors[name].bytes)[:3]
    return ", ".join(f"{graph.tensors[name].bytes:,} B of {name}" for name in ranked)


def _why(graph: OperatorGraph, cost: Cost, fixed: cut.Pins) -> str:
    if not cost.sent:
        return "nothing is sent to the accelerator"
    largest = max(cost.sent, key=lambda name: graph.tensors[name].bytes)
    share = graph.tensors[largest].bytes / max(cost.sent_bytes, 1)
    maker = graph.maker.get(largest)
    before = "an input of the model" if maker is None else f"made by {maker} ({graph.by_name[maker].kind})"
    readers = [each for each in graph.readers[largest] if each in fixed.seeds]
    after = f"; {', '.join(readers[:3])} multiplies it as it is" if readers else ""
    return f"most bytes ({share:.0%}) are of {largest}, {before}{after}"
