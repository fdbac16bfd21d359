"""The cut: golden numbers, and what holds for any graph."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recmesh.serving.split import cut
from recmesh.serving.split.classes import Classes
from recmesh.serving.split.decide import decide
from recmesh.serving.split.graph import OperatorGraph, Unsplittable
from tests.unit.serving.split.graphs import Build, cheapest, split_ones

CLASSES = Classes.parse({"torch": {"cpu": "cpu", "seed": "seed", "lookup": "lookup", "whole": "whole"}}, "test")


def pooled() -> OperatorGraph:
    """512 ids, 16 numbers each, summed, multiplied."""
    return (
        Build("ids", size=4096, dtype="int64")
        .op("lookup", "ids", kind="lookup", shape=(1, 512, 16), size=32_768, table=1 << 20)
        .op("sum", "lookup", shape=(1, 16), size=64)
        .op("matmul", "sum", kind="seed", shape=(1, 4), size=16)
        .graph("matmul")
    )


def test_of_a_pooled_lookup_the_colouring_sends_all_rows_and_the_cut_their_sum() -> None:
    found = decide(pooled(), "torch", CLASSES)
    assert found.naive.sent_bytes == 32_768
    assert found.cost.sent_bytes == 64
    assert found.regions.pre == {"lookup", "sum"}
    assert found.reduction == pytest.approx(1 - 80 / 32_784)


def test_a_source_is_sent_instead_of_its_larger_derivatives() -> None:
    graph = (
        Build("ids")
        .op("lookup", "ids", kind="cpu", size=64)
        .op("outer", "lookup", size=1024)
        .op("mask", "lookup", size=256)
        .op("matmul", "outer", "mask", kind="seed", size=16)
        .graph("matmul")
    )
    found = decide(graph, "torch", CLASSES)
    assert found.cost.sent == ("lookup",)


def test_a_tensor_with_many_readers_is_sent_once() -> None:
    build = Build("ids").op("lookup", "ids", kind="cpu", size=64)
    for number in range(5):
        build.op(f"matmul{number}", "lookup", kind="seed", size=4)
    found = decide(build.graph(*(f"matmul{n}" for n in range(5))), "torch", CLASSES)
    assert found.cost.sent_bytes == 64
    assert found.cost.returned_bytes == 20


def test_what_must_be_on_a_cpu_after_a_product_is_a_third_stage_and_brings_what_follows_it() -> None:
    graph = (
        Build("ids")
        .op("lookup", "ids", kind="cpu", size=64)
        .op("matmul", "lookup", kind="seed", size=400)
        .op("best", "matmul", size=4)
        .op("label", "best", kind="cpu", size=8)
        .op("upper", "label", size=8)
        .graph("upper")
    )
    found = decide(graph, "torch", CLASSES)
    assert found.regions.post == {"label", "upper"}
    assert found.cost.returned == ("best",)


def test_of_equal_cuts_the_one_that_leaves_more_to_the_cpu_is_taken_and_none_makes_a_third_stage() -> None:
    graph = (
        Build("ids")
        .op("lookup", "ids", kind="cpu", size=64)
        .op("half", "lookup", size=64)
        .op("matmul", "half", kind="seed", size=16)
        .op("sigmoid", "matmul", size=16)
        .graph("sigmoid")
    )
    found = decide(graph, "torch", CLASSES)
    assert found.regions.pre == {"lookup", "half"}
    assert found.regions.hn == {"matmul", "sigmoid"}


def test_rows_that_are_not_of_samples_are_sent_only_where_they_are_less_than_half() -> None:
    def graph(size: int) -> OperatorGraph:
        return (
            Build("ids")
            .op("lookup", "ids", kind="cpu", size=64)
            .op("turned", "lookup", size=size, batched=False)
            .op("matmul", "turned", kind="seed", size=16)
            .graph("matmul")
        )

    assert decide(graph(40), "torch", CLASSES).cost.sent == ("lookup",)
    assert decide(graph(24), "torch", CLASSES).cost.sent == ("turned",)


@pytest.mark.parametrize(
    ("graph", "why"),
    [
        (Build("x").op("lookup", "x", kind="cpu").graph("lookup"), "no operator that an accelerator"),
        (Build("x").op("matmul", "x", kind="seed").graph("matmul"), "no operator that must be on a CPU"),
        (Build("x").op("lookup", "x", kind="lookup").op("m", "lookup", kind="seed").graph("m"), "must be on a CPU"),
        (
            Build("x").op("c", "x", kind="cpu").op("a", "c", kind="seed").op("between", "a", kind="cpu")
            .op("b", "between", kind="seed").graph("b"),
            "between must be on a CPU and lies between",
        ),
        (
            Build("x").op("c", "x", kind="cpu", dtype="string").op("m", "c", kind="seed").graph("m"),
            "cannot be sent",
        ),
        (Build("x").op("c", "x", kind="cpu").op("loop", "c", kind="whole").graph("loop"), "loop .* control flow"),
        (
            Build("x").op("c", "x", kind="cpu", size=17 << 20).op("m", "c", kind="seed").graph("m"),
            "would send 17,825,800 B .* of c",
        ),
    ],
)  # fmt: skip
def test_what_cannot_be_split_says_why(graph: OperatorGraph, why: str) -> None:
    with pytest.raises(Unsplittable, match=why):
        decide(graph, "torch", CLASSES)


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10_000))
def test_any_split_is_convex_keeps_what_is_pinned_and_costs_no_more_than_the_colouring(seed: int) -> None:
    (graph, fixed), = split_ones(seed, 1, 30)
    naive, found = cut.colouring(graph, fixed), cut.minimum(graph, fixed)
    for each in (naive, found):
        assert not cut.broken(graph, each)
        assert sorted([*each.pre, *each.hn, *each.post]) == sorted(graph.by_name)
        assert fixed.pre <= each.pre and fixed.seeds <= each.hn and fixed.post <= each.post
        outside = graph.by_name.keys() - each.hn
        ahead, behind = graph.ancestors(each.hn), graph.descendants(each.hn)
        assert not outside & ahead & behind, "a path leaves the HN and comes back"
    assert cut.cost(graph, found, fixed) <= cut.cost(graph, naive, fixed)


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10_000))
def test_the_first_boundary_is_the_cheapest_of_all_that_leave_the_second_as_it_is(seed: int) -> None:
    (graph, fixed), = split_ones(seed, 1, 8)
    found = cut.minimum(graph, fixed)
    assert cut.cost(graph, found, fixed) == cheapest(graph, fixed, found.post)


def test_nearly_all_small_graphs_get_the_cheapest_split_of_three_regions() -> None:
    graphs = split_ones(11, 150, 7)
    worse = [1 for graph, fixed in graphs if cut.cost(graph, cut.minimum(graph, fixed), fixed) > cheapest(graph, fixed)]
    assert len(worse) <= 1


def test_a_graph_with_a_hole_is_refused() -> None:
    from recmesh.runtime.errors import InvalidArgument

    with pytest.raises(InvalidArgument, match="a reads y, which nothing before it makes"):
        Build("x").op("a", "y").graph("a")
    with pytest.raises(InvalidArgument, match="output b is made by no operator"):
        Build("x").op("a", "x").graph("b")
