"""Keys with namespaces reach datasets of these alone, and each change that is refused is in the audit."""

from pathlib import Path
from typing import Any

import httpx
import pytest

from recmesh.runtime.errors import PermissionDenied
from services.gateway.domain.callers import Caller
from tests.support.gateway import FakePeer, gateway, http
from tests.unit.gateway.test_jobs_of_tenants import allowed, ask, refused

OTHERS = ["search--clicks", "clicks", "ads", "ads-clicks", "adsx--clicks", "two--ads--clicks"]


class Registry(FakePeer):
    """Datasets by name."""

    def __init__(self, *names: str) -> None:
        super().__init__()
        self.names = list(names)

    async def list(self) -> dict[str, Any]:
        return {"datasets": [{"name": name, "revision": 1} for name in self.names]}

    async def remove(self, name: str) -> bool:
        self.calls.append(("remove", (name,), {}))
        return name in self.names


class NoUsers(FakePeer):
    """No job trains on any dataset."""

    async def using(self, dataset: str) -> list[str]:
        self.calls.append(("using", (dataset,), {}))
        return []


async def register(client: httpx.AsyncClient, key: str, name: str) -> httpx.Response:
    return await ask(client, "post", "/v1/datasets", {"name": name, "dataset": {"label": "y"}}, key)


@pytest.mark.asyncio
@pytest.mark.parametrize("other", OTHERS)
async def test_another_s_dataset_is_not_read_overwritten_or_removed(tmp_path: Path, other: str) -> None:
    made, data, jobs = gateway(tmp_path), Registry(other), NoUsers()
    async with http(made, access=allowed(tmp_path), data=data, jobs=jobs) as client:
        answers = [
            await register(client, "a", other),
            await ask(client, "delete", f"/v1/datasets/{other}?force=true", None, "a"),
            await ask(client, "delete", f"/v1/datasets/{other}", None, "a"),
            await ask(client, "get", f"/v1/datasets/{other}", None, "a"),
        ]
        assert (await ask(client, "get", "/v1/datasets", None, "a")).json()["datasets"] == []
    assert {(each.status_code, each.json()["reason"]) for each in answers} == {(403, "WRONG_NAMESPACE")}
    assert data.calls == jobs.calls == [], "neither service was asked"
    assert refused(made) == [
        ("ads", verb, other, "WRONG_NAMESPACE", 403) for verb in ("register", "delete", "delete")
    ]


@pytest.mark.asyncio
async def test_a_tenant_registers_lists_reads_and_removes_its_own(tmp_path: Path) -> None:
    data = Registry("ads--clicks", "search--clicks", "shop--views", "clicks")
    async with http(gateway(tmp_path), access=allowed(tmp_path), data=data, jobs=NoUsers()) as client:
        for key, own in (("a", ["ads--clicks"]), ("t", ["ads--clicks", "shop--views"]), ("j", data.names),
                         ("c", data.names)):  # fmt: skip
            listed = (await ask(client, "get", "/v1/datasets", None, key)).json()["datasets"]
            assert [each["name"] for each in listed] == own
            for name in own:
                assert (await register(client, key, name)).status_code == 201
                assert (await ask(client, "get", f"/v1/datasets/{name}", None, key)).status_code == 200
                assert (await ask(client, "delete", f"/v1/datasets/{name}", None, key)).status_code == 204


def test_the_refusal_says_what_a_name_must_be() -> None:
    two = Caller("two", frozenset({"jobs"}), namespaces=("ads", "shop"))
    with pytest.raises(PermissionDenied, match="two may use datasets ads--NAME or shop--NAME alone, not 'clicks'"):
        two.check_dataset("clicks")
