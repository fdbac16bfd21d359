"""Pods of the DLRM serving trace on simulated nodes: how much of an application's traffic stays under one switch.

A real kube-scheduler places the trace's instances twice, on the same nodes and in the same order: as it is, and asking
brain's extender with the configuration of infra/components/placement. Traffic goes between an application's CPU nodes
(CN) and GPU nodes (HN), each pair alike, as much per application as its HNs have of network cards. Then the extender's
latency on 1,000 nodes, over HTTP, beside the cluster's watches.
"""

import asyncio
import contextlib
import http.client
import json
import os
import random
import socket
import subprocess
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import yaml

from bench.criteo import DataMissing
from bench.figures import Result
from bench.mesh import ROOT, one_thread, say, scratch
from bench.workloads.openb import Serving, serving_instances

SWITCHES, QUICK_SWITCHES = 40, 10
NODES_PER_SWITCH, HN_PER_SWITCH = 25, 4
SWITCHES_PER_POD = 10
HN_NODE = {"cpu": "128", "memory": "1Ti", "pods": "250", "nvidia.com/gpu": "8", "recmesh.dev/nic": "200"}
CN_NODE = {"cpu": "192", "memory": "1Ti", "pods": "250", "recmesh.dev/nic": "200"}
"""The trace names no nodes. CPU as its largest instance asks for; two network cards each."""
FILL = 0.8
"""Of the cluster's cores or GPUs, whichever the chosen applications fill first."""
LARGEST = 0.15
"""An application that asks for more than this share of the cluster is left out: network pods are a quarter of it."""
SEED = 7
NODES_ASKED = 1000
CALLS, QUICK_CALLS = 2000, 600
AT_ONCE = 24
PATIENCE_S = 900.0
COMPONENT = ROOT / "infra" / "components" / "placement" / "scheduler-config.yaml"
OURS, DEFAULT = "recmesh-scheduler", "default-scheduler"


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a scheduler made of the pods: by pod, its node."""

    nodes: Mapping[str, str]
    seconds: float


def run(*, quick: bool) -> Result:
    """Both columns in the same run; the latency at its end."""
    tool = Path(os.environ.get("RECMESH_SHARED") or ROOT.parent / "shared") / "tools" / "kube-cluster"
    if not tool.exists():
        raise RuntimeError(f"{tool} is not there: it starts the API server")
    try:
        instances = serving_instances()
    except DataMissing as missing:
        say(str(missing))
        return Result("placement", {}, {"missing": str(missing)})
    switches = QUICK_SWITCHES if quick else SWITCHES
    chosen = choose(instances, switches)
    calls = QUICK_CALLS if quick else CALLS
    figures: dict[str, float] = {}
    outcomes: dict[str, Outcome] = {}
    latency: dict[str, Any] = {}
    for name in (DEFAULT, OURS):
        with scratch() as folder, cluster(tool, folder) as kubeconfig, contextlib.ExitStack() as stack:
            create_nodes(kubeconfig, node_bodies(switches))
            url = stack.enter_context(brain(folder, kubeconfig)) if name == OURS else ""
            stack.enter_context(scheduler(folder, kubeconfig, url))
            outcomes[name] = place(kubeconfig, chosen, name)
            placed = len(outcomes[name].nodes)
            say(f"{name}: {placed} of {len(chosen)} pods placed within {outcomes[name].seconds:.0f} s")
            if url:
                more = NODES_ASKED // NODES_PER_SWITCH
                create_nodes(kubeconfig, node_bodies(more)[switches * NODES_PER_SWITCH :])
                say(f"{len(node_bodies(more))} nodes")
                latency = measure(url, chosen, [each["metadata"]["name"] for each in node_bodies(more)], calls)
    for name, suffix in ((OURS, ""), (DEFAULT, "_default")):
        figures |= {key + suffix: value for key, value in shares(chosen, outcomes[name].nodes).items()}
        figures[f"pods_per_s{suffix}"] = len(outcomes[name].nodes) / outcomes[name].seconds
    return Result("placement", {**figures, **latency["figures"]}, {
        "pods": len(chosen), "applications": len({each.app for each in chosen}), "nodes": switches * NODES_PER_SWITCH,
        "switches": switches, "network_pods": -(-switches // SWITCHES_PER_POD),
        "hn_nodes_per_switch": HN_PER_SWITCH, "fill": FILL, "seed": SEED,
        "traffic": "between every CN and every HN of an application alike; as much as its HNs have of network cards",
        "over_density": "pods beyond the trace's max_instance_per_node, which a default scheduler is told nothing of",
        "latency": latency["context"],
        "left_out": f"applications that ask for more than {LARGEST:g} of the cluster; capacities of switches: "
        "the trace names none; deletions: all instances that were not deleted within the trace are there",
        "quick": f"{switches} switches instead of {SWITCHES}, {calls} calls instead of {CALLS}" if quick else "",
    })  # fmt: skip


def choose(instances: Sequence[Serving], switches: int) -> list[Serving]:
    """Whole applications, drawn until the cluster is full enough; in the order of the trace, and of those that were
    there before it began in any."""
    rng = random.Random(SEED)
    room = {
        "cpu": switches * (HN_PER_SWITCH * 128.0 + (NODES_PER_SWITCH - HN_PER_SWITCH) * 192.0),
        "gpu": switches * HN_PER_SWITCH * 8.0,
    }
    by_app: dict[str, list[Serving]] = defaultdict(list)
    for each in instances:
        if each.deleted is None:
            by_app[each.app].append(each)
    apps = sorted(app for app, members in by_app.items() if {each.role for each in members} == {"CN", "HN"})
    rng.shuffle(apps)
    used, chosen = Counter({"cpu": 0.0, "gpu": 0.0}), []
    for app in apps:
        asked = {"cpu": sum(each.cpu for each in by_app[app]), "gpu": sum(each.gpu for each in by_app[app])}
        if any(asked[kind] > LARGEST * room[kind] or used[kind] + asked[kind] > FILL * room[kind] for kind in room):
            continue
        used.update(asked)
        chosen += by_app[app]
    say(f"{len(chosen)} pods: {used['cpu'] / room['cpu']:.0%} of cores, {used['gpu'] / room['gpu']:.0%} of GPUs")
    order = {id(each): (each.created if each.created is not None else -1.0, rng.random()) for each in chosen}
    return sorted(chosen, key=lambda each: order[id(each)])


def shares(chosen: Sequence[Serving], nodes: Mapping[str, str]) -> dict[str, float]:
    """Of traffic between CN and HN under one switch: weighted by traffic, as a mean over applications, and over those
    that one empty switch could hold; and what was not placed, or placed beyond its density."""
    by_app: dict[str, list[Serving]] = defaultdict(list)
    for each in chosen:
        by_app[each.app].append(each)
    found, weights, small = [], [], []
    beyond = 0
    for members in by_app.values():
        under: dict[str, Counter[str]] = {"CN": Counter(), "HN": Counter()}
        on_node: Counter[tuple[str, int]] = Counter()     # of those that have the same bound: a role's
        for each in members:
            if each.name in nodes:
                under[each.role][nodes[each.name].rpartition("-")[0]] += 1
                on_node[nodes[each.name], each.most_per_node] += 1
        beyond += sum(max(0, many - d) for (_, d), many in on_node.items() if d)
        counts = Counter(each.role for each in members)
        pairs = counts["CN"] * counts["HN"]  # those without a node carry traffic under no switch
        found.append(sum(under["CN"][each] * under["HN"][each] for each in under["HN"]) / pairs)
        weights.append(sum(each.nic for each in members if each.role == "HN"))
        fits = sum(each.gpu for each in members) <= 8 * HN_PER_SWITCH and sum(
            each.cpu for each in members if each.role == "CN"
        ) <= 192 * (NODES_PER_SWITCH - HN_PER_SWITCH)
        small.append(fits)
    share, weight, fit = np.array(found), np.array(weights, dtype=float), np.array(small)
    return {
        "same_switch_share": float(share @ weight / weight.sum()),
        "same_switch_share_mean": float(share.mean()),
        "same_switch_share_fitting": float(share[fit].mean()) if fit.any() else float("nan"),
        "placed_share": len(nodes) / len(chosen),
        "over_density_share": beyond / len(chosen),
    }


# -- the cluster -----------------------------------------------------------------------------------------


@contextlib.contextmanager
def cluster(tool: Path, folder: Path) -> Iterator[Path]:
    """API server, controllers and simulated nodes, without a scheduler."""

    def control(verb: str, *args: str) -> None:
        command = [sys.executable, "-B", str(tool), verb, str(folder / "kube"), *args]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, timeout=300)

    control("up", "--kwok", "--ttl", "1800", "--without", "kube-scheduler")
    try:
        yield folder / "kube" / "kubeconfig"
    finally:
        control("down")


@contextlib.contextmanager
def scheduler(folder: Path, kubeconfig: Path, extender: str) -> Iterator[None]:
    """kube-scheduler as it comes, or with the component's configuration."""
    config: dict[str, Any] = {"apiVersion": "kubescheduler.config.k8s.io/v1", "kind": "KubeSchedulerConfiguration"}
    if extender:
        config = yaml.safe_load(COMPONENT.read_text())
        config["extenders"][0]["urlPrefix"] = extender
    config |= {
        "clientConnection": {"kubeconfig": str(kubeconfig), "qps": 1000, "burst": 2000},
        "leaderElection": {"leaderElect": False},
    }
    path = folder / "scheduler.json"
    path.write_text(json.dumps(config))
    binary = (kubeconfig.parent / "bin" / "kubectl").resolve()
    with (folder / "scheduler.log").open("wb") as log:
        process = subprocess.Popen(
            [str(binary), "kube-scheduler", f"--config={path}", "--secure-port=0"], stdout=log, stderr=log
        )
    try:
        yield
    finally:
        process.kill()
        process.wait(10)


@contextlib.contextmanager
def brain(folder: Path, kubeconfig: Path) -> Iterator[str]:
    """The extender's address: brain as a process, with a nats-server of its own."""
    from recmesh.cli.mesh.servers import nats_binary

    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    config, ready = folder / "nats.conf", folder / "brain.ready"
    config.write_text(f'listen: 127.0.0.1:{port}\njetstream {{ store_dir: "{folder}/jetstream" }}\n')
    env = {name: text for name, text in os.environ.items() if not name.startswith("RECMESH_")} | one_thread() | {
        "RECMESH_NATS_URL": f"nats://127.0.0.1:{port}", "RECMESH_DATA_DIR": str(folder / "brain"),
        "RECMESH_READY_FILE": str(ready), "RECMESH_PLACEMENT_ADDRESS": "127.0.0.1:0",
        "RECMESH_KUBE_CONFIG": str(kubeconfig),
    }  # fmt: skip
    with (folder / "brain.log").open("wb") as log:
        nats = subprocess.Popen([str(nats_binary()), "-c", str(config)], stdout=log, stderr=log)
        process = subprocess.Popen([sys.executable, "-m", "services.brain"], cwd=ROOT, env=env, stdout=log, stderr=log)
    try:
        began = time.monotonic()
        while not ready.exists():
            if process.poll() is not None or time.monotonic() - began > 90:
                raise RuntimeError(f"brain does not start:\n{(folder / 'brain.log').read_text()[-3000:]}")
            time.sleep(0.1)
        yield str(json.loads(ready.read_text())["addresses"]["placement"])
    finally:
        for each in (process, nats):
            each.kill()
            each.wait(10)


def node_bodies(switches: int) -> list[dict[str, Any]]:
    """Nodes `switch-number`, those with GPUs first."""
    bodies = []
    for switch in range(switches):
        for number in range(NODES_PER_SWITCH):
            name, capacity = f"s{switch}-{number}", HN_NODE if number < HN_PER_SWITCH else CN_NODE
            labels = {
                "kubernetes.io/hostname": name,
                "recmesh.dev/switch": f"s{switch}",
                "recmesh.dev/network-pod": f"p{switch // SWITCHES_PER_POD}",
            }
            bodies.append({
                "apiVersion": "v1", "kind": "Node",
                "metadata": {"name": name, "labels": labels, "annotations": {"kwok.x-k8s.io/node": "fake"}},
                "status": {"capacity": capacity, "allocatable": capacity},
            })  # fmt: skip
    return bodies


def pod_body(each: Serving, members: int, scheduler_name: str, *, uid: str = "", app: str = "") -> dict[str, Any]:
    """A pod of an application that is to have so many."""
    requests = {"cpu": f"{each.cpu:g}", "memory": f"{each.memory_gib:g}Gi"}
    requests |= {"nvidia.com/gpu": str(each.gpu)} if each.gpu else {}
    requests |= {"recmesh.dev/nic": str(each.nic)} if each.nic else {}
    notes = {"recmesh.dev/instances": str(members)}
    notes |= {"recmesh.dev/most-per-node": str(each.most_per_node)} if each.most_per_node else {}
    name = each.name.replace("_", "-")
    return {
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {
            "name": name, "namespace": "default", "labels": {"recmesh.dev/application": app or each.app},
            "annotations": notes, **({"uid": uid} if uid else {}),
        },
        "spec": {
            "schedulerName": scheduler_name, "automountServiceAccountToken": False,
            "tolerations": [{"operator": "Exists"}],
            "containers": [{"name": "role", "image": "i", "resources": {"requests": requests, "limits": requests}}],
        },
    }  # fmt: skip


def create_nodes(kubeconfig: Path, bodies: Sequence[dict[str, Any]]) -> None:
    """All. Nobody waits until they are ready: pods tolerate that, so that a busy machine takes no node away."""
    asyncio.run(_create(kubeconfig, "nodes", bodies))


async def _create(kubeconfig: Path, what: str, bodies: Sequence[dict[str, Any]]) -> None:
    from recmesh.runtime.kube import NODES, PODS, Access, connect

    client = await connect(Access(kubeconfig), field_manager="bench", calls_per_s=2000, burst=2000)
    turns = asyncio.Semaphore(AT_ONCE)

    async def one(body: dict[str, Any]) -> None:
        async with turns:
            await client.create(NODES if what == "nodes" else PODS, body, namespace="default" if what == "pods" else "",
                                timeout_s=60)  # fmt: skip

    try:
        await asyncio.gather(*map(one, bodies))
    finally:
        await client.close()


def place(kubeconfig: Path, chosen: Sequence[Serving], name: str) -> Outcome:
    """All pods in their order, until each has a node or nothing more happens."""
    members = Counter(each.app for each in chosen)
    bodies = [pod_body(each, members[each.app], name) for each in chosen]
    began = time.monotonic()
    asyncio.run(_create(kubeconfig, "pods", bodies))
    say(f"{name}: {len(bodies)} pods created within {time.monotonic() - began:.0f} s")
    found, at = asyncio.run(_settled(kubeconfig, len(bodies)))
    return Outcome({each.name: found[n] for each in chosen if (n := each.name.replace("_", "-")) in found}, at - began)


async def _settled(kubeconfig: Path, many: int) -> tuple[dict[str, str], float]:
    """Nodes by pod, and when the last one got its own: all have one, or for 20 s none has got one."""
    from recmesh.runtime.kube import PODS, Access, connect

    client = await connect(Access(kubeconfig), field_manager="bench")
    found: dict[str, str] = {}
    at = time.monotonic()
    try:
        async with asyncio.timeout(PATIENCE_S):
            while len(found) < many and time.monotonic() - at < 20:
                pods, _ = await client.list(PODS, namespace="default", timeout_s=60)
                now = {pod["metadata"]["name"]: pod["spec"]["nodeName"] for pod in pods if pod["spec"].get("nodeName")}
                if len(now) > len(found):
                    found, at = now, time.monotonic()
                await asyncio.sleep(2)
    finally:
        await client.close()
    return found, at


# -- latency ---------------------------------------------------------------------------------------------


def measure(url: str, chosen: Sequence[Serving], names: Sequence[str], calls: int) -> dict[str, Any]:
    """filter with all nodes by name, then prioritize with those that were kept, as a scheduler asks: half of the pods
    belong to applications that are there, half are the first of a new one, for which all nodes are looked at."""
    host = urlsplit(url)
    link = http.client.HTTPConnection(str(host.hostname), host.port, timeout=30)
    link.connect()
    members = Counter(each.app for each in chosen)
    rng = random.Random(SEED)
    times: dict[str, list[float]] = {"filter": [], "prioritize": []}
    pairs: list[float] = []
    kept = 0

    def post(verb: str, args: dict[str, Any]) -> Any:
        body = json.dumps(args).encode()
        began = time.perf_counter()
        link.request("POST", f"/{verb}", body, {"Content-Type": "application/json"})
        answer = link.getresponse().read()
        times[verb].append(1000 * (time.perf_counter() - began))
        return json.loads(answer)

    probe = pod_body(chosen[0], 1, OURS, uid="probe", app="nobody")
    until = time.monotonic() + 120          # the watch tells of the new nodes
    while len(post("filter", {"Pod": probe, "NodeNames": list(names)})["NodeNames"]) < len(names):
        if time.monotonic() > until:
            raise RuntimeError("brain does not hear of the nodes")
        time.sleep(0.5)
    for each in times.values():
        each.clear()
    for number in range(calls // 2):
        pick = rng.choice(chosen)
        app = f"new-{number}" if number % 2 else ""
        pod = pod_body(pick, members[pick.app], OURS, uid=f"bench-{number}", app=app)
        result = post("filter", {"Pod": pod, "Nodes": None, "NodeNames": list(names)})
        if result["Error"]:
            raise RuntimeError(result["Error"])
        took = times["filter"][-1]
        kept += len(result["NodeNames"])
        if len(result["NodeNames"]) > 1:
            post("prioritize", {"Pod": pod, "Nodes": None, "NodeNames": result["NodeNames"]})
            took += times["prioritize"][-1]
        pairs.append(took)
    link.close()
    both = [*times["filter"], *times["prioritize"]]
    figures = {"p50_ms": float(np.percentile(both, 50)), "p99_ms": float(np.percentile(both, 99))}
    for verb, taken in times.items():
        figures |= {
            f"{verb}_p50_ms": float(np.percentile(taken, 50)),
            f"{verb}_p99_ms": float(np.percentile(taken, 99)),
        }
    figures["pod_p99_ms"] = float(np.percentile(pairs, 99))
    return {"figures": figures, "context": {
        "nodes": len(names), "calls": len(both), "kept_mean": round(kept / len(pairs)),
        "what": "one client, one connection, as a scheduler's loop; pod_p99_ms: both calls of a pod together",
    }}  # fmt: skip
