from hypothesis import given
from hypothesis import strategies as st

from services.brain.domain.placement import (
    SEVENTH,
    Instance,
    Node,
    Reason,
    Rule,
    Switch,
    Topology,
    place,
    place_all,
    taken,
)


def node(name: str, *, pod: str = "p1", switch: str = "s1", cpu: float = 96, gpus: int = 8, **more: object) -> Node:
    return Node(name, pod, switch, cpu, gpus=(1000,) * gpus, **more)  # type: ignore[arg-type]  # by keyword


def hn(app: str = "ads", *, gpu: int = 1000, **more: object) -> Instance:
    return Instance(app, "HN", 8, gpu=gpu, gpus=1, **more)  # type: ignore[arg-type]  # by keyword


def test_later_instances_stay_in_the_pod_of_the_first_even_when_it_is_full() -> None:
    topology = Topology((node("a", gpus=1), node("b", pod="p2", switch="s9", gpus=1)))
    found, _ = place_all([hn(), hn()], topology)
    assert [each.node for each in found] == ["a", ""]
    assert found[0].reason is Reason.FIRST and found[1].reason is Reason.NO_ROOM
    assert "not spread over pods" in found[1].why


def test_the_switch_with_most_instances_comes_before_an_emptier_one() -> None:
    topology = Topology(
        (
            node("a", switch="s1", gpus=2, apps=(("ads", 1),)),
            node("b", switch="s2", gpus=8),
            node("c", switch="s3", gpus=2, apps=(("ads", 3),)),
        )
    )
    found = place(hn(), topology)
    assert (found.node, found.reason) == ("c", Reason.BEST_SWITCH)


def test_a_full_switch_gives_way_to_the_next_in_the_same_pod_and_never_to_another_pod() -> None:
    topology = Topology(
        (
            node("a", switch="s1", gpus=0, apps=(("ads", 3),)),
            node("b", switch="s2", gpus=1),
            node("z", pod="p2", switch="s9", gpus=8),
        )
    )
    found = place(hn(), topology)
    assert (found.node, found.reason) == ("b", Reason.NEXT_SWITCH)


def test_the_first_instance_considers_all_pods() -> None:
    topology = Topology((node("a", gpus=0), node("z", pod="p2", switch="s9", gpus=1)))
    assert place(hn(), topology).node == "z"


def test_no_node_has_more_than_d_instances_of_an_application() -> None:
    topology = Topology((node("a"), node("b")))
    found, _ = place_all([hn(most_per_node=2)] * 5, topology)
    assert [each.node for each in found] == ["a", "a", "b", "b", ""]
    assert found[-1].reason is Reason.TOO_MANY_ON_NODES and "2 instances of it each" in found[-1].why


def test_an_hn_takes_the_gpu_nearest_to_a_nic_and_a_cn_the_cores_nearest_to_one() -> None:
    topology = Topology(
        (
            node("a", gpus=2, gpu_nic_hops=(3, 2), cpu_nic_hops=0),
            node("b", gpus=2, gpu_nic_hops=(2, 0), cpu_nic_hops=1),
        )
    )
    found = place(hn(), topology)
    assert (found.node, found.gpus) == ("b", (1,))
    assert place(Instance("ads", "CN", 48), topology).node == "a"


def test_a_switch_promises_no_more_than_four_fifths_of_its_capacity() -> None:
    topology = Topology((node("a", cpu=1000),), (Switch("s1", 10.0),))
    cn = Instance("ads", "CN", 1, bandwidth=4.0)
    found, left = place_all([cn] * 3, topology)
    assert [each.reason for each in found] == [Reason.FIRST, Reason.BEST_SWITCH, Reason.NO_BANDWIDTH]
    assert "could hold" in found[-1].why and "cannot promise it 4 more within 0.8" in found[-1].why
    assert left.switches[0].promised == 8.0


def test_140_parts_of_two_sevenths_need_6_nodes_where_whole_services_needed_70() -> None:
    """MATH section 4: 24 HN of 2g.20gb per node of 8 GPUs; a whole service of 48 cores fits a host of 96 twice."""
    nodes = tuple(node(f"n{index:02}", cpu=1000) for index in range(80))
    split, after = place_all([hn(gpu=2 * SEVENTH)] * 140, Topology(nodes))
    assert all(each.node for each in split)
    assert len({each.node for each in split}) == 6
    assert max(each.instances("ads") for each in after.nodes) == 24
    hosts = Topology(tuple(node(f"n{index:02}") for index in range(80)))
    whole, left = place_all([Instance("ads", "HN", 48, gpu=1000, gpus=1)] * 140, hosts)
    used = {each.node for each in whole}
    assert len(used) == 70 and round(1 - 6 / 70, 3) == 0.914
    stranded = [sum(each.gpus) for each in left.nodes if each.name in used]
    assert set(stranded) == {6000}


def test_what_fits_nowhere_is_refused_in_words() -> None:
    found = place(Instance("ads", "HN", 8, gpu=1000, gpus=9), Topology((node("a"),)))
    assert found.reason is Reason.NO_ROOM_ANYWHERE and "9 × 1 GPU" in found.why


@given(
    st.lists(st.tuples(st.integers(0, 2), st.integers(0, 3), st.integers(0, 4)), min_size=1, max_size=8),
    st.lists(st.tuples(st.integers(0, 2), st.integers(1, 1000), st.integers(0, 3)), max_size=20),
)
def test_nothing_is_ever_given_out_twice(shapes: list[tuple[int, int, int]], asked: list[tuple[int, int, int]]) -> None:
    nodes = tuple(
        node(f"n{index}", pod=f"p{pod}", switch=f"p{pod}s{switch}", cpu=32, gpus=gpus)
        for index, (pod, switch, gpus) in enumerate(shapes)
    )
    topology = Topology(nodes, tuple(Switch(name, 5.0) for name in sorted({each.switch for each in nodes})))
    instances = [
        Instance(f"app{app}", "HN", 8, gpu=gpu, gpus=gpus, bandwidth=1.0, most_per_node=3) for app, gpu, gpus in asked
    ]
    found, left = place_all(instances, topology)
    assert all(each.cpu >= 0 and all(gpu >= 0 for gpu in each.gpus) for each in left.nodes)
    assert all(each.promised <= Rule().switch_share * each.capacity + 1e-9 for each in left.switches)
    for app in {each.app for each in instances}:
        assert len({each.pod for each in left.nodes if each.instances(app)}) <= 1
        assert all(each.instances(app) <= 3 for each in left.nodes)
    assert len(found) == len(instances)


def test_a_placed_instance_counts_from_then_on() -> None:
    topology = Topology((node("a", gpus=1),))
    after = taken(hn(), place(hn(), topology), topology)
    assert after.nodes[0].instances("ads") == 1 and after.nodes[0].gpus == (0,)
