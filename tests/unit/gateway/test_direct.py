"""Inference requests go around the router, and are in nothing different from those that do not."""

from pathlib import Path

import pytest
from prometheus_client import REGISTRY

from tests.support.gateway import http
from tests.unit.gateway.test_encoding import PATH, body, serving

pytestmark = pytest.mark.asyncio

TEMPLATES = ("/v2/models/{name}/infer", "/v2/models/{name}/versions/{version}/infer")


def counted(route: str, status: str = "200") -> float:
    labels = {"service": "gateway", "method": "POST", "route": route, "status": status}
    return REGISTRY.get_sample_value("recmesh_http_server_seconds_count", labels) or 0.0


async def test_requests_are_counted_by_the_template_of_their_route(tmp_path: Path) -> None:
    made = await serving(tmp_path)
    before = [counted(route) for route in TEMPLATES]
    async with http(made) as client:
        for path in (PATH, PATH.replace("/infer", "/versions/1/infer")):
            response = await client.post(path, content=body())
            assert response.status_code == 200, response.text
            assert response.json()["model_version"] == "1"
    assert [counted(route) for route in TEMPLATES] == [item + 1 for item in before]


async def test_a_version_that_is_not_there_is_refused(tmp_path: Path) -> None:
    async with http(await serving(tmp_path)) as client:
        response = await client.post(PATH.replace("/infer", "/versions/77/infer"), content=body())
    assert (response.status_code, response.json()["reason"]) == (404, "UNKNOWN_VERSION")
    assert response.json()["request_id"] == response.headers["x-request-id"]


@pytest.mark.parametrize(
    ("path", "status", "reason"),
    [
        (f"/v2/models/{'n' * 64}/infer", 400, "INVALID_REQUEST"),
        (f"/v2/models/tiny/versions/{'1' * 19}/infer", 400, "INVALID_REQUEST"),
        ("/v2/models//infer", 404, "NO_ROUTE"),
        ("/v2/models/tiny/infer/", 404, "NO_ROUTE"),
    ],
)
async def test_what_is_unusual_about_a_path_is_the_router_s(
    path: str, status: int, reason: str, tmp_path: Path
) -> None:
    async with http(await serving(tmp_path)) as client:
        response = await client.post(path, content=body())
    assert (response.status_code, response.json()["reason"]) == (status, reason)


async def test_another_method_is_refused(tmp_path: Path) -> None:
    async with http(await serving(tmp_path)) as client:
        assert (await client.get(PATH)).status_code == 405
