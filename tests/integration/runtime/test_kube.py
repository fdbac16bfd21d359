"""The layer over Kubernetes' client, with a real API server."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path

import pytest
import pytest_asyncio

from recmesh.runtime.deadline import deadline
from recmesh.runtime.errors import (
    Aborted,
    AlreadyExists,
    DeadlineExceeded,
    FailedPrecondition,
    InvalidArgument,
    NotFound,
    Unauthenticated,
    Unavailable,
)
from recmesh.runtime.kube import CONFIG_MAPS, PODS, Access, KubeClient, Listing, Object, connect, follow
from tests.support.kube import KubeCluster, kube_cluster, tool

pytestmark = [pytest.mark.asyncio, pytest.mark.integration]


@pytest_asyncio.fixture
async def client(simulated_cluster: KubeCluster) -> AsyncIterator[KubeClient]:
    made = await connect(Access(simulated_cluster.kubeconfig), field_manager="one")
    yield made
    await made.close()


@pytest.fixture(scope="module")
def namespace(simulated_cluster: KubeCluster) -> str:
    return simulated_cluster.namespace()


def config_map(name: str, **data: str) -> Object:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": data}


async def test_what_a_manager_applies_no_more_goes_and_others_fields_stay(
    client: KubeClient, namespace: str, simulated_cluster: KubeCluster
) -> None:
    other = await connect(Access(simulated_cluster.kubeconfig, "test"), field_manager="two")
    await client.apply(CONFIG_MAPS, config_map("a", mine="1", ours="1"), namespace=namespace)
    await other.apply(CONFIG_MAPS, config_map("a", theirs="2"), namespace=namespace)
    made = await client.apply(CONFIG_MAPS, config_map("a", ours="1"), namespace=namespace)
    assert made["data"] == {"ours": "1", "theirs": "2"}
    with pytest.raises(Aborted) as raised:
        await other.apply(CONFIG_MAPS, config_map("a", ours="3"), namespace=namespace, force=False)
    assert "one" in str(raised.value) and raised.value.violations[0].path == ".data.ours"
    made = await other.apply(CONFIG_MAPS, config_map("a", ours="3"), namespace=namespace)
    assert made["data"]["ours"] == "3"
    await other.close()


async def test_refusals_come_in_the_servers_words(client: KubeClient, namespace: str, tmp_path: Path) -> None:
    await client.create(CONFIG_MAPS, config_map("b"), namespace=namespace)
    with pytest.raises(AlreadyExists, match='"b" already exists'):
        await client.create(CONFIG_MAPS, config_map("b"), namespace=namespace)
    with pytest.raises(NotFound, match='"nothing" not found'):
        await client.get(CONFIG_MAPS, "nothing", namespace=namespace)
    with pytest.raises(InvalidArgument) as raised:
        await client.create(CONFIG_MAPS, config_map("Not-A-Name"), namespace=namespace)
    assert raised.value.violations[0].path == "metadata.name"
    stale = {"metadata": {"resourceVersion": "1"}, "data": {"x": "y"}}
    with pytest.raises(Aborted):
        await client.patch(CONFIG_MAPS, "b", stale, namespace=namespace)
    dry = await client.apply(CONFIG_MAPS, config_map("dry"), namespace=namespace, dry_run=True)
    assert dry["metadata"]["uid"]
    with pytest.raises(NotFound):
        await client.get(CONFIG_MAPS, "dry", namespace=namespace)
    with pytest.raises(FailedPrecondition, match="no kubeconfig"):
        await connect(Access(tmp_path / "nothing"), field_manager="one")


async def test_a_wrong_token_is_told(simulated_cluster: KubeCluster, tmp_path: Path) -> None:
    wrong = tmp_path / "kubeconfig"
    wrong.write_text(simulated_cluster.kubeconfig.read_text().replace('"token": "', '"token": "not-'))
    client = await connect(Access(wrong), field_manager="one")
    with pytest.raises(Unauthenticated):
        await client.list(PODS)
    await client.close()


async def test_lists_are_whole_and_deletions_by_label_are_one_call(client: KubeClient, namespace: str) -> None:
    await asyncio.gather(*(
        client.create(CONFIG_MAPS, config_map(f"n{i}") | {"metadata": {"name": f"n{i}", "labels": {"of": "us"}}},
                      namespace=namespace) for i in range(30)
    ))  # fmt: skip
    found, version = await client.list(CONFIG_MAPS, namespace=namespace, labels="of=us")
    assert len(found) == 30 and int(version) > 0
    client.calls.clear()
    await client.delete_all(CONFIG_MAPS, namespace=namespace, labels="of=us")
    assert client.calls == {("deletecollection", "configmaps"): 1}
    assert (await client.list(CONFIG_MAPS, namespace=namespace, labels="of=us"))[0] == []


async def test_no_call_outlives_the_deadline_of_whoever_asked(simulated_cluster: KubeCluster) -> None:
    if simulated_cluster.folder is None:
        pytest.skip("stops an API server of the test's own")
    client = await connect(Access(simulated_cluster.kubeconfig), field_manager="one")
    with deadline(-1.0), pytest.raises(DeadlineExceeded):
        await client.list(PODS)
    await client.close()


async def test_calls_wait_for_their_turn_and_not_for_ever(simulated_cluster: KubeCluster) -> None:
    client = await connect(Access(simulated_cluster.kubeconfig), field_manager="one", calls_per_s=0.01, burst=1)
    await client.get(CONFIG_MAPS, "kube-root-ca.crt", namespace="default")
    with pytest.raises(Unavailable, match="wait for their turn"):
        await client.get(CONFIG_MAPS, "kube-root-ca.crt", namespace="default")
    assert client.calls == {("get", "configmaps"): 1}
    await client.close()


class Follower:
    """What was heard of config maps with a label, as it came."""

    def __init__(self, client: KubeClient, namespace: str) -> None:
        self.listings = 0
        self.data: dict[str, str] = {}
        self._task = asyncio.create_task(self._run(client, namespace))

    async def _run(self, client: KubeClient, namespace: str) -> None:
        async with aclosing(follow(client, CONFIG_MAPS, namespace=namespace, labels="watched=yes")) as news:
            async for item in news:
                if isinstance(item, Listing):
                    self.listings += 1
                    self.data = {thing["metadata"]["name"]: thing["data"]["x"] for thing in item.objects}
                elif item.kind == "DELETED":
                    self.data.pop(item.object["metadata"]["name"])
                else:
                    self.data[item.object["metadata"]["name"]] = item.object["data"]["x"]

    async def until(self, data: dict[str, str]) -> None:
        async with asyncio.timeout(60):
            while self.data != data:  # noqa: ASYNC110  # any state
                await asyncio.sleep(0.02)

    async def close(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)


def watched(name: str, x: str) -> Object:
    return config_map(name, x=x) | {"metadata": {"name": name, "labels": {"watched": "yes"}}}


@pytest.mark.long
async def test_a_watch_goes_on_behind_a_restart_of_the_api_server(tmp_path: Path) -> None:
    tool()
    with kube_cluster(tmp_path / "cluster", "--without", "kube-scheduler,kube-controller-manager") as cluster:
        if cluster.folder is None:
            pytest.skip("restarts an API server of the test's own")
        client = await connect(Access(cluster.kubeconfig), field_manager="one")
        follower = Follower(client, "default")
        try:
            await client.apply(CONFIG_MAPS, watched("a", "1"), namespace="default")
            await client.apply(CONFIG_MAPS, watched("b", "1"), namespace="default")
            await follower.until({"a": "1", "b": "1"})
            await asyncio.to_thread(cluster.control, "kill", "kube-apiserver")
            with pytest.raises((Unavailable, DeadlineExceeded)):
                await client.apply(CONFIG_MAPS, watched("a", "2"), namespace="default", timeout_s=0.5)
            await asyncio.to_thread(cluster.control, "start", "kube-apiserver")
            await client.apply(CONFIG_MAPS, watched("a", "3"), namespace="default", timeout_s=30)
            await client.delete(CONFIG_MAPS, "b", namespace="default", timeout_s=30)
            await follower.until({"a": "3"})
            with pytest.raises(Aborted) as raised:      # what was before the restart is not in its memory any more
                async with client.stream(CONFIG_MAPS, version="1", life_s=5, silence_s=10) as events:
                    async for _ in events:
                        pass
            assert raised.value.reason == "Expired"
        finally:
            await follower.close()
            await client.close()

