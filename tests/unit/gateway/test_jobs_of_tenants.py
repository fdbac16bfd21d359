"""Keys and tokens with namespaces reach jobs of these alone, and each call that is refused is in the audit."""

import hashlib
import time
from pathlib import Path
from typing import Any

import httpx
import jwt
import orjson
import pytest
from jwt.algorithms import HMACAlgorithm

from services.gateway.app.access import Access
from services.gateway.store.credentials import Credentials, Sources
from tests.support.gateway import FakeClock, Gateway, JobsInNamespaces, gateway, http

SECRET = "a-secret-that-is-long-enough-for-hs256"
KEYS: list[dict[str, Any]] = [
    {"name": "ads", "key": "a", "scopes": ["jobs"], "namespaces": ["ads"]},
    {"name": "two", "key": "t", "scopes": ["jobs"], "namespaces": ["ads", "shop"]},
    {"name": "all", "key": "j", "scopes": ["jobs"]},
    {"name": "chief", "key": "c", "scopes": ["admin"], "namespaces": ["ads"]},
    {"name": "reader", "key": "r", "scopes": ["infer"], "namespaces": ["ads"]},
]
CHANGES = [
    ("post", ":stop", None), ("post", ":suspend", None), ("post", ":resume", None), ("post", ":checkpoint", None),
    ("post", ":scale", {"role": "worker", "replicas": 2}), ("post", ":resize", {"role": "ps", "cpu": 1}),
    ("delete", "?force=true", None),
]  # fmt: skip
READS = ["", "/checkpoints", "/logs", "/events"]


def allowed(root: Path) -> Access:
    """By keys, and by tokens that SECRET signs."""
    keys, jwks = root / "keys.yaml", root / "jwks.json"
    keys.write_bytes(orjson.dumps({"keys": [
        {**{name: value for name, value in each.items() if name != "key"},
         "sha256": hashlib.sha256(str(each["key"]).encode()).hexdigest()} for each in KEYS
    ]}))  # fmt: skip
    jwks.write_bytes(orjson.dumps({"keys": [{**HMACAlgorithm.to_jwk(SECRET, as_dict=True), "kid": "k"}]}))
    return Access(Credentials(Sources(None, keys, jwks, "https://issuer", "recmesh")), clock=FakeClock())


def bearer(credential: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {credential}"}


def token(*namespaces: str) -> str:
    """Of the team that these are."""
    claims = {
        "sub": "team", "iss": "https://issuer", "aud": "recmesh", "exp": time.time() + 600, "scope": "jobs",
        "recmesh_namespaces": list(namespaces),
    }  # fmt: skip
    return jwt.encode(claims, SECRET, algorithm="HS256", headers={"kid": "k"})


def refused(made: Gateway) -> list[tuple[str, str, str, str, int]]:
    return [(each.data.actor, each.data.verb, each.data.object, each.data.reason, each.data.status)
            for each in made.facts.audit]  # fmt: skip


async def ask(client: httpx.AsyncClient, verb: str, path: str, body: Any, key: str) -> httpx.Response:
    return await client.request(verb, path, json=body, headers=bearer(key))


@pytest.mark.asyncio
@pytest.mark.parametrize("credential", ["a", "token"])
async def test_a_tenant_changes_and_reads_its_own_jobs_alone_and_each_refusal_is_told(
    tmp_path: Path, credential: str
) -> None:
    made, jobs = gateway(tmp_path), JobsInNamespaces(ours="ads", theirs="shop")
    key = token("ads") if credential == "token" else credential
    async with http(made, access=allowed(tmp_path), jobs=jobs) as client:
        for verb, act, body in CHANGES:
            assert (await ask(client, verb, f"/v1/jobs/ours{act}", body, key)).status_code in (200, 204), act
            answer = await ask(client, verb, f"/v1/jobs/theirs{act}", body, key)
            assert (answer.status_code, answer.json()["reason"]) == (403, "WRONG_NAMESPACE"), act
        for path in READS:
            assert (await ask(client, "get", f"/v1/jobs/theirs{path}", None, key)).status_code == 403, path
        assert (await ask(client, "get", "/v1/plans/theirs", None, key)).status_code == 403
        assert (await ask(client, "get", "/v1/plans/ours", None, key)).status_code == 200
        assert (await ask(client, "get", "/v1/jobs/ours", None, key)).status_code == 200
        assert (await ask(client, "get", "/v1/jobs/absent", None, key)).status_code == 404
    reached = {str(args[0]) for name, args, _ in jobs.calls if args}
    assert reached == {"ours"}, "nothing of another's job was asked of jobmaster"
    told = [line for line in refused(made) if line[2] == "theirs"]
    assert [(line[1], line[3], line[4]) for line in told] == [
        (act.strip(":") if verb == "post" else "delete", "WRONG_NAMESPACE", 403) for verb, act, _ in CHANGES
    ]
    assert {line[0] for line in told} == {"team" if credential == "token" else "ads"}


@pytest.mark.asyncio
async def test_a_job_that_a_tenant_submits_is_its_own(tmp_path: Path) -> None:
    made, jobs = gateway(tmp_path), JobsInNamespaces()
    async with http(made, access=allowed(tmp_path), jobs=jobs) as client:

        async def submit(key: str, **fields: Any) -> httpx.Response:
            spec = {"name": "f", "export": None, **fields}
            return await ask(client, "post", "/v1/jobs", spec, key)

        assert (await submit("a")).status_code == (await submit("a", namespace="ads")).status_code == 201
        assert [orjson.loads(args[0])["namespace"] for _, args, _ in jobs.calls] == ["ads", "ads"]
        for key, namespace in (("a", "shop"), ("t", "others"), ("t", "")):      # of two namespaces one must be named
            answer = await submit(key, namespace=namespace)
            assert (answer.status_code, answer.json()["reason"]) == (403, "WRONG_NAMESPACE"), (key, namespace)
        for key, namespace in (("t", "shop"), ("j", "x")):
            assert (await submit(key, namespace=namespace)).status_code == 201
        assert (await submit("r")).json()["reason"] == "NO_SCOPE"
    reasons = [line[3] for line in refused(made) if line[4] == 403]
    assert reasons == ["WRONG_NAMESPACE"] * 3 + ["NO_SCOPE"]


@pytest.mark.asyncio
async def test_a_tenant_lists_its_own_jobs(tmp_path: Path) -> None:
    made, jobs = gateway(tmp_path), JobsInNamespaces()
    async with http(made, access=allowed(tmp_path), jobs=jobs) as client:
        asked = (("a", "", 200), ("a", "shop", 403), ("t", "", 403), ("t", "shop", 200), ("j", "", 200))
        for key, namespace, status in asked:
            answer = await ask(client, "get", f"/v1/jobs?namespace={namespace}", None, key)
            assert answer.status_code == status, (key, namespace)
    assert [kwargs["namespace"] for _, _, kwargs in jobs.calls] == ["ads", "shop", ""]


@pytest.mark.asyncio
async def test_keys_without_namespaces_and_the_admin_s_reach_all_jobs(tmp_path: Path) -> None:
    made, jobs = gateway(tmp_path), JobsInNamespaces(ours="ads", theirs="shop")
    async with http(made, access=allowed(tmp_path), jobs=jobs) as client:
        for key in ("j", "c"):
            assert (await ask(client, "post", "/v1/jobs/theirs:stop", None, key)).status_code == 200, key
