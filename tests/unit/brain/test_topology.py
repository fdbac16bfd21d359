"""The scheduler extender: rules over a cluster that changes, and the wire."""

import asyncio
from collections.abc import Iterator, Mapping
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from recmesh.runtime.errors import InvalidArgument
from services.brain.app.placing import Placing
from services.brain.config import BrainSettings
from services.brain.domain.placement import Instance, Node, Reason, Topology, place
from services.brain.domain.topology.choosing import BEST, keep, rank
from services.brain.domain.topology.fleet import Fleet
from services.brain.domain.topology.model import Machine, Objection, Rules, Tenant
from services.brain.domain.topology.objects import machine_of, tenant_of
from services.brain.rest.extender import Extender

RULES = Rules()
GPU, NIC = "nvidia.com/gpu", "recmesh.dev/nic"


def machine(name: str, switch: str = "s1", pod: str = "p1", *, gpus: float = 8, **more: Any) -> Machine:
    allocatable = {"cpu": 64.0, "pods": 110.0, NIC: 100.0} | ({GPU: gpus} if gpus else {})
    return Machine(name, pod, switch, allocatable, **more)


def tenant(uid: str, *, app: str = "ns/ads", node: str = "", gpu: float = 1, cpu: float = 1, **more: Any) -> Tenant:
    requests = {"pods": 1.0, "cpu": cpu} | ({GPU: gpu} if gpu else {}) | more.pop("asks", {})
    return Tenant(uid, f"ns/{uid}", app, requests, node, **more)


def fleet(*machines: Machine, tenants: tuple[Tenant, ...] = ()) -> Fleet:
    made = Fleet(assumed_s=10)
    made.take_machines(machines)
    made.take_tenants(tenants)
    return made


def best(asked: Tenant, known: Fleet, rules: Rules = RULES) -> str:
    feasible = [
        machine.name
        for machine in known.machines.values()
        if all(known.free(machine, name) >= amount for name, amount in asked.requests.items())
    ]
    found = rank(asked, feasible, known, rules)
    assert found is not None
    assert sorted(found.scores.values())[-1] == BEST and list(found.scores.values()).count(BEST) == 1
    return found.best


def objections(asked: Tenant, known: Fleet, rules: Rules = RULES) -> dict[str, Objection]:
    return {name: why for name, (why, _) in keep(asked, list(known.machines), known, rules).refused.items()}


def test_the_switch_with_most_instances_is_best_and_others_of_its_network_pod_come_before_those_of_another() -> None:
    known = fleet(
        machine("a", "s1"), machine("b", "s2"), machine("c", "s3", "p2"),
        tenants=(tenant("1", node="a"), tenant("2", node="b"), tenant("3", node="b")),
    )  # fmt: skip
    found = rank(tenant("new"), ["a", "b", "c"], known, Rules(one_network_pod=False))
    assert found is not None
    assert (found.best, found.reason) == ("b", Reason.BEST_SWITCH)
    assert found.scores["b"] > found.scores["a"] > found.scores["c"]


def test_nodes_of_other_network_pods_are_refused_for_good_unless_the_rule_is_off() -> None:
    known = fleet(machine("a"), machine("c", "s3", "p2"), tenants=(tenant("1", node="c"),))
    assert objections(tenant("new"), known) == {"a": Objection.OTHER_NETWORK_POD}
    assert objections(tenant("new"), known, Rules(one_network_pod=False)) == {}
    assert objections(tenant("new", app="ns/other"), known) == {}


def test_a_full_switch_gives_way_to_the_next_and_says_so() -> None:
    known = fleet(machine("a", "s1"), machine("b", "s2"), tenants=(tenant("1", node="a"),))
    found = rank(tenant("new"), ["b"], known, RULES)  # the scheduler found no room on a
    assert found is not None and found.reason is Reason.NEXT_SWITCH
    assert "s1 has most of ads, and cannot hold it; s2 is next, in the same network pod" in found.why


def test_nodes_and_switches_that_have_enough_of_it_are_refused() -> None:
    known = fleet(
        machine("a", "s1"), machine("b", "s1"), machine("c", "s2"),
        tenants=(tenant("1", node="a"), tenant("2", node="b"), tenant("3", node="b")),
    )  # fmt: skip
    assert objections(tenant("new", most_per_node=2), known) == {"b": Objection.NODE_HAS_ENOUGH}
    assert objections(tenant("new", most_per_switch=3), known) == dict.fromkeys("ab", Objection.SWITCH_HAS_ENOUGH)
    assert objections(tenant("new", most_per_switch=4), known) == {}


def test_a_switch_promises_no_more_than_its_share() -> None:
    def known(promised: float) -> Fleet:
        other = tenant("1", app="", node="a", asks={NIC: promised})
        return fleet(machine("a", switch_capacity=100), machine("b", switch_capacity=100), tenants=(other,))

    asked = tenant("new", asks={NIC: 30.0})
    assert objections(asked, known(50)) == {}
    assert objections(asked, known(51)) == dict.fromkeys("ab", Objection.NO_BANDWIDTH)
    assert objections(tenant("new"), known(51)) == {}
    assert "51 of its 100" in keep(asked, ["a"], known(51), RULES).refused["a"][1]


def test_the_first_of_a_known_number_goes_where_all_of_them_fit_most_tightly() -> None:
    known = fleet(
        machine("a1", "s1"), machine("a2", "s1"), machine("b1", "s2"), machine("c1", "s3", gpus=4),
    )  # fmt: skip
    assert best(tenant("new"), known) in ("a1", "a2")  # nothing is known: the most room
    assert best(tenant("new", instances=3), known) == "c1"
    assert best(tenant("new", instances=5), known) == "b1"
    assert best(tenant("new", instances=9), known) in ("a1", "a2")
    for uid in "1234":
        known.take(tenant(uid))  # they wait: it need not say it
    assert best(tenant("new"), known) == "b1"


def test_an_application_that_no_switch_holds_begins_in_the_network_pod_that_does() -> None:
    known = fleet(
        machine("a", "s1", "p1"), machine("b", "s2", "p2", gpus=6), machine("c", "s3", "p2", gpus=5),
    )  # fmt: skip
    assert best(tenant("new", instances=10), known) == "b"
    assert best(tenant("new", instances=8), known) == "a"


def test_room_that_others_are_still_to_have_is_not_given_twice() -> None:
    known = fleet(machine("a", "s1", gpus=4), machine("b", "s2", gpus=8))
    known.assume(tenant("1", app="ns/other", instances=4), "a", now=0)
    assert best(tenant("new", instances=2), known) == "b"           # three more of the other come to s1
    known.assume(tenant("1", app="ns/other", instances=2), "a", now=0)
    assert best(tenant("new", instances=2), known) == "a"
    known.take(tenant("2", app="ns/other"))
    known.take(tenant("3", app="ns/other"))
    assert best(tenant("new", instances=2), known) == "b"


def test_both_shapes_of_an_application_must_fit_under_the_switch() -> None:
    known = fleet(machine("a1", "s1"), machine("b1", "s2"), machine("b2", "s2", gpus=0))
    for uid in range(6):
        known.take(tenant(f"cn{uid}", gpu=0, cpu=16))  # 6 x 16 cores: more than one node has
    assert best(tenant("hn", cpu=4), known) == "b1"


def test_the_node_with_the_nearest_card_then_with_least_left_over_is_best() -> None:
    known = fleet(
        machine("far", gpu_nic_hops=2), machine("near", cpu_nic_hops=1), machine("used"), machine("cpu", gpus=0),
        tenants=(tenant("1", app="ns/x", node="used"),),
    )  # fmt: skip
    assert best(tenant("hn"), known) == "used"
    assert best(tenant("cn", gpu=0), known) == "cpu"  # devices are left to those that need them


def test_what_was_called_best_counts_as_taken_until_the_watch_or_time_says_otherwise() -> None:
    known = fleet(machine("a", "s1"), machine("b", "s2"))
    first, second = tenant("1", most_per_node=1), tenant("2", most_per_node=1)
    known.take(first)
    known.assume(first, "a", now=0)
    assert objections(second, known) == {"a": Objection.NODE_HAS_ENOUGH}
    assert known.take(first) == "" and known.instances("ns/ads") == {"a": 1}  # still waiting, as far as is known
    assert known.take(tenant("1", node="b", most_per_node=1)) == "a"  # the scheduler chose another
    assert known.instances("ns/ads") == {"b": 1}
    known.assume(second, "a", now=0)
    known.asks_again(second, now=1)  # it was not bound after all
    assert known.instances("ns/ads") == {"b": 1}
    known.assume(second, "a", now=2)
    known.asks_again(tenant("3"), now=11.9)
    assert known.instances("ns/ads") == {"b": 1, "a": 1}
    known.asks_again(tenant("3"), now=12)
    assert known.instances("ns/ads") == {"b": 1} and len(known) == 1  # nobody ever saw it
    known.drop("1")
    assert not known.used("b") and len(known) == 0


def test_assumptions_are_bounded() -> None:
    known = Fleet(most_assumed=2)
    known.take_machines([machine("a")])
    for uid in "123":
        known.assume(tenant(uid), "a", now=0)
    assert len(known) == 2 and known.used("a")[GPU] == 2


def test_a_list_takes_away_what_is_not_in_it() -> None:
    known = fleet(machine("a"), tenants=(tenant("1", node="a"), tenant("2", node="a")))
    known.take_tenants([tenant("2", node="a", gpu=2)])
    assert known.instances("ns/ads") == {"a": 1} and known.used("a")[GPU] == 2


@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3), st.integers(0, 3)), min_size=1, max_size=12),
    st.integers(0, 2),
)
def test_later_instances_go_under_the_switch_that_algorithm_1_names(rows: list[tuple[int, int, int]], d: int) -> None:
    """Each row: a node's switch, its free GPUs, and instances that it has."""
    nodes, machines, tenants = [], [], []
    for number, (switch, free, has) in enumerate(rows):
        name, switch_name, pod = f"n{number:02}", f"s{switch}", f"p{switch // 2}"
        nodes.append(Node(name, pod, switch_name, 64, gpus=(1000,) * free, apps=(("ads", has),) if has else ()))
        machines.append(machine(name, switch_name, pod, gpus=free + has))
        tenants += [tenant(f"{name}-{each}", node=name) for each in range(has)]
    known = fleet(*machines, tenants=tuple(tenants))
    if not tenants:
        return
    expected = place(Instance("ads", "HN", 1, gpu=1000, gpus=1, most_per_node=d), Topology(tuple(nodes)))
    asked = tenant("new", most_per_node=d)
    feasible = [each.name for each in machines if known.free(each, GPU) >= 1]
    kept = keep(asked, feasible, known, RULES).names
    assert bool(kept) == bool(expected.node)
    if kept:
        found = rank(asked, kept, known, RULES)
        assert found is not None
        has_most = {each.name: sum(many for _, many in each.apps) for each in nodes}
        under = {each.name: sum(has_most[peer.name] for peer in nodes if peer.switch == each.switch) for each in nodes}
        assert under[found.best] == under[expected.node]  # of switches with equally many, either will do
        assert (found.reason is Reason.BEST_SWITCH) == (under[found.best] == max(under.values()))


# -- Kubernetes' objects ---------------------------------------------------------------------------------


def node_object(name: str, **labels: str) -> dict[str, Any]:
    status = {"allocatable": {"cpu": "8", "memory": "16Gi", "pods": "110", "nvidia.com/mig-1g.10gb": "7"}}
    return {"metadata": {"name": name, "labels": labels}, "status": status}


def pod_object(
    name: str = "w0",
    *,
    labels: Mapping[str, str] | None = None,
    notes: Mapping[str, str] | None = None,
    spec: Mapping[str, Any] | None = None,
    phase: str = "Pending",
) -> dict[str, Any]:
    own = {"recmesh.dev/job": "ads"} if labels is None else dict(labels)
    requests = {"resources": {"requests": {"cpu": "500m", "nvidia.com/mig-1g.10gb": "2"}}}
    return {
        "metadata": {
            "uid": f"u-{name}", "name": name, "namespace": "ml", "labels": own, "annotations": dict(notes or {}),
        },
        "spec": {"containers": [requests], **(spec or {})}, "status": {"phase": phase},
    }  # fmt: skip


def test_the_first_of_the_labels_names_switch_and_network_pod() -> None:
    found = machine_of(
        node_object("n", **{"topology.kubernetes.io/zone": "z", "topology.kubernetes.io/rack": "r"}), RULES
    )
    assert (found.network_pod, found.switch, found.allocatable["nvidia.com/mig-1g.10gb"]) == ("z", "r", 7)
    found = machine_of(node_object("n", **{"topology.kubernetes.io/zone": "z", "recmesh.dev/network-pod": "p"}), RULES)
    assert (found.network_pod, found.switch) == ("p", "n")
    own = Rules(switch_labels=["tor"], network_pod_labels=["agg"])
    found = machine_of(node_object("n", tor="t", agg="a", **{"recmesh.dev/switch-capacity": "100G"}), own)
    assert (found.network_pod, found.switch, found.switch_capacity) == ("a", "t", 1e11)
    assert machine_of(node_object("n", **{"recmesh.dev/nic-hops": "many"}), RULES).cpu_nic_hops == 0


def test_a_pods_requests_are_those_of_its_containers_at_once_or_of_the_largest_before_them() -> None:
    before = {"resources": {"requests": {"cpu": "2", "nvidia.com/mig-1g.10gb": "1"}}}
    notes = {"recmesh.dev/most-per-node": "2", "recmesh.dev/instances": "x"}
    found = tenant_of(pod_object(notes=notes, spec={"initContainers": [before], "overhead": {"cpu": "100m"}}), RULES)
    assert found.requests == {"pods": 1, "cpu": 2, "nvidia.com/mig-1g.10gb": 2} and found.has_devices
    assert (found.app, found.most_per_node, found.most_per_switch, found.instances) == ("ml/ads", 2, 0, 0)
    assert tenant_of(pod_object(), Rules(most_per_node=3)).most_per_node == 3
    both = pod_object(labels={"recmesh.dev/job": "j", "recmesh.dev/application": "served"})
    assert tenant_of(both, RULES).app == "ml/served"


@pytest.mark.parametrize(("pod", "field"), [
    ({}, "Pod.metadata"), ({"metadata": {"name": "x"}}, "Pod.spec"), ({"metadata": {}, "spec": {}}, "Pod.metadata.uid"),
])  # fmt: skip
def test_what_is_no_pod_is_refused_by_its_field(pod: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        tenant_of(pod, RULES)
    assert caught.value.violations[0].path == field


# -- the wire --------------------------------------------------------------------------------------------


class Still:
    """A clock that stands."""

    def now(self) -> float:
        return 1000.0

    def monotonic(self) -> float:
        return 0.0

    async def sleep(self, delay_s: float) -> None:
        raise AssertionError("nothing waits")


@pytest.fixture
def placing() -> Placing:
    made = Placing(Rules(most_per_node=1), clock=Still())
    made.take_nodes([
        node_object("a", **{"recmesh.dev/switch": "s1", "recmesh.dev/network-pod": "p1"}),
        node_object("b", **{"recmesh.dev/switch": "s2", "recmesh.dev/network-pod": "p1"}),
        node_object("c", **{"recmesh.dev/switch": "s3", "recmesh.dev/network-pod": "p2"}),
    ])  # fmt: skip
    made.take_pods([pod_object("old", spec={"nodeName": "a"}, phase="Running")])
    return made


@pytest.fixture
def http(placing: Placing) -> Iterator[Any]:
    transport = httpx.ASGITransport(Extender(placing).routes())

    async def post(path: str, content: Any) -> httpx.Response:
        async with httpx.AsyncClient(transport=transport, base_url="http://extender") as client:
            return await client.post(path, json=content) if not isinstance(content, bytes) else await client.post(
                path, content=content
            )  # fmt: skip

    yield post


@pytest.mark.asyncio
async def test_filter_answers_by_name_and_tells_what_no_eviction_helps(http: Any, placing: Placing) -> None:
    asked = {"Pod": pod_object(), "Nodes": None, "NodeNames": ["a", "b", "c", "d"]}
    answer = (await http("/filter", asked)).json()
    assert answer == {
        "NodeNames": ["b"],
        "FailedNodes": {
            "a": "recmesh: 1 of ads are on the node: no more are allowed",
            "d": "recmesh: brain has not heard of the node yet",
        },
        "FailedAndUnresolvableNodes": {"c": "recmesh: ads lives in network pod p1"}, "Error": "",
    }  # fmt: skip
    assert placing.decisions[-1].node == "b"  # the scheduler asks no more where one is left
    answer = (await http("/filter", asked | {"Pod": pod_object("w1")})).json()
    assert answer["NodeNames"] == [] and placing.decisions[-1].reason == "unknown_node"
    assert placing.counts == {"placed": 1, "refused": 1}


@pytest.mark.asyncio
async def test_nodes_that_come_whole_go_back_whole(http: Any) -> None:
    nodes = [node_object(name) for name in "abc"]
    answer = (await http("/filter", {"Pod": pod_object(), "Nodes": {"items": nodes}})).json()
    assert answer["Nodes"] == {"items": [nodes[1]]} and "NodeNames" not in answer


@pytest.mark.asyncio
async def test_prioritize_scores_every_node_that_was_asked_for(http: Any, placing: Placing) -> None:
    names = ["a", "b", "c", "unknown"]
    answer = (await http("/prioritize", {"Pod": pod_object(), "NodeNames": names})).json()
    assert answer == [
        {"Host": "a", "Score": 10}, {"Host": "b", "Score": 8}, {"Host": "c", "Score": 0},
        {"Host": "unknown", "Score": 0},
    ]  # fmt: skip
    alone = (await http("/prioritize", {"Pod": pod_object("x", labels={}), "NodeNames": names})).json()
    assert {each["Score"] for each in alone} == {0}
    placing.take_pod(pod_object(spec={"nodeName": "b"}), gone=False)
    assert placing.counts["overruled"] == 1


@pytest.mark.asyncio
@pytest.mark.parametrize(("content", "field"), [
    (b"{", "(body)"), ({"NodeNames": []}, "Pod"), ({"Pod": {}}, "NodeNames"),
    ({"Pod": {}, "NodeNames": [1]}, "NodeNames"),
    ({"Pod": {}, "Nodes": {"items": [{}]}}, "Nodes.items"), ({"Pod": {}, "NodeNames": []}, "Pod.metadata"), ([], "Pod"),
])  # fmt: skip
async def test_wrong_arguments_are_named(http: Any, content: Any, field: str) -> None:
    answer = (await http("/filter", content)).json()
    assert f"({field}: " in answer["Error"] and answer.keys() == {"Error"}
    refused = await http("/prioritize", content)
    assert refused.status_code == 400 and f"({field}: " in refused.text


@pytest.mark.asyncio
async def test_before_all_is_listed_it_says_so() -> None:
    empty = Placing(RULES, clock=Still())
    empty.take_nodes([])
    async with httpx.AsyncClient(
        transport=httpx.ASGITransport(Extender(empty).routes()), base_url="http://extender"
    ) as client:
        asked = {"Pod": pod_object(), "NodeNames": []}
        assert "not listed" in (await client.post("/filter", json=asked)).json()["Error"]
        assert (await client.post("/prioritize", json=asked)).status_code == 503


class Served:
    """Living pods, by application and by node."""

    def __init__(self, *uids: str) -> None:
        self.uids, self.asked = set(uids), list[str]()

    async def of_app(self, app: str) -> set[str]:
        self.asked.append(app)
        return self.uids

    async def on_node(self, node: str) -> set[str]:
        self.asked.append(node)
        return self.uids


@pytest.mark.asyncio
async def test_who_stands_in_the_way_is_asked_for_before_a_pod_is_refused_everywhere() -> None:
    living = Served("u-old")
    made = Placing(Rules(most_per_node=1), clock=Still(), living=living)
    made.take_nodes([node_object("a")])
    made.take_pods([pod_object("old", spec={"nodeName": "a"}, phase="Running")])
    assert (await made.filter(pod_object(), ["a"])).names == [] and living.asked == ["ml/ads"]
    living.uids.clear()  # the watch has not told of it
    assert (await made.filter(pod_object(), ["a"])).names == ["a"]
    made.take_pod(pod_object("old", spec={"nodeName": "a"}, phase="Running"), gone=False)  # told late, and out of date
    made.take_pod(pod_object("old", spec={"nodeName": "a"}, phase="Running"), gone=True)
    living.asked.clear()
    assert (await made.filter(pod_object(), ["a"])).names == ["a"] and living.asked == []


@pytest.mark.asyncio
async def test_bandwidth_that_pods_on_the_switch_have_given_back_is_found() -> None:
    living = Served("w0")
    made = Placing(Rules(), clock=Still(), living=living)
    made.take_nodes([node_object("a", **{"recmesh.dev/switch-capacity": "100"}), node_object("b")])
    asks = {"containers": [{"resources": {"requests": {NIC: "60"}}}]}
    made.take_pods([pod_object("other", labels={}, spec={"nodeName": "a", **asks}, phase="Running")])
    assert (await made.filter(pod_object(spec=asks), ["a"])).names == ["a"] and living.asked == ["ml/ads", "a"]


@pytest.mark.asyncio
async def test_a_node_that_only_the_scheduler_knows_is_waited_for() -> None:
    made = Placing(RULES, clock=Still())
    made.take_nodes([])
    made.take_pods([])
    asking = asyncio.create_task(made.filter(pod_object(), ["a"]))
    await asyncio.sleep(0)
    made.take_node(node_object("a"), gone=False)
    assert (await asking).names == ["a"]


@pytest.mark.asyncio
async def test_pods_that_have_ended_take_no_room(placing: Placing) -> None:
    asked = pod_object("w1")
    assert "a" in (await placing.filter(asked, ["a", "b"])).refused
    placing.take_pod(pod_object("old", spec={"nodeName": "a"}, phase="Succeeded"), gone=False)
    assert "a" in (await placing.filter(asked, ["a", "b"])).names


def test_an_extender_that_others_reach_needs_certificates_or_a_word() -> None:
    env = {"RECMESH_PLACEMENT_ADDRESS": "0.0.0.0:7100"}
    with pytest.raises(InvalidArgument) as caught:
        _ = BrainSettings.from_env(env, "RECMESH_").placement_tls
    assert caught.value.violations[0].path == "RECMESH_PLACEMENT_ADDRESS"
    told = env | {
        "RECMESH_PLACEMENT_INSECURE": "true",
        "RECMESH_TLS_CA": "/ca",
        "RECMESH_PLACEMENT_SWITCH_LABELS": '["tor"]',
    }
    settings = BrainSettings.from_env(told, "RECMESH_")
    assert settings.placement_tls is None and settings.placement_rules.switch_labels == ["tor"]
    closed = BrainSettings.from_env(env | {"RECMESH_TLS_CA": "/ca"}, "RECMESH_").placement_tls
    assert closed is not None and str(closed.ca) == "/ca"
