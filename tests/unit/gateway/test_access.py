"""Credentials: what each may do, to which models, how often."""

import base64
import hashlib
import hmac
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import grpc
import jwt
import orjson
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from jwt.algorithms import HMACAlgorithm, RSAAlgorithm

from recmesh.pb import inference_pb2 as pb
from recmesh.pb import inference_pb2_grpc
from recmesh.runtime.errors import InvalidArgument, PermissionDenied, Unauthenticated, Unavailable
from services.gateway.app.access import Access
from services.gateway.config import PREFIX, Config
from services.gateway.domain.callers import Caller, Rate, TokenBucket, needed, parse
from services.gateway.domain.models import Registration
from services.gateway.rpc.server import server
from services.gateway.store.credentials import Credentials, Sources
from tests.support.gateway import CARD, FakeClock, Gateway, gateway, http

KEYS: list[dict[str, Any]] = [
    {"name": "reader", "key": "r", "scopes": ["infer"], "models": ["ti*"]},
    {"name": "ads", "key": "a", "scopes": ["infer", "models"], "namespaces": ["ads"]},
    {"name": "planner", "key": "p", "scopes": ["jobs"], "namespaces": ["ads"]},
    {"name": "busy", "key": "b", "scopes": ["infer"], "rate": {"per_s": 0.5, "burst": 2}},
]
INPUTS = [
    {"name": "x", "datatype": "FP32", "shape": [1], "data": [1.0]},
    {"name": "id", "datatype": "INT64", "shape": [1], "data": [2]},
]


def keys_file(root: Path) -> Path:
    entries = [{**{name: value for name, value in entry.items() if name != "key"},
                "sha256": hashlib.sha256(str(entry["key"]).encode()).hexdigest()} for entry in KEYS]  # fmt: skip
    path = root / "keys.yaml"
    path.write_bytes(orjson.dumps({"keys": entries}))
    return path


def bearer(credential: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {credential}"}


async def serving(root: Path) -> Gateway:
    made = gateway(root)
    await made.models.start()
    for name in ("tiny", "ads--ctr"):
        await made.models.register(Registration(name, "1", made.folder(name), "torch", load=True))
    await made.settled()
    return made


@pytest.mark.parametrize(
    ("method", "path", "scope", "model"),
    [
        ("POST", "/v2/models/m/infer", "infer", "m"), ("GET", "/v2/models/m/versions/1/stats", "infer", "m"),
        ("GET", "/v2/models/stats", "infer", ""), ("POST", "/v2/repository/models/m/load", "models", "m"),
        ("POST", "/v2/repository/index", "infer", ""), ("GET", "/v1/models/m", "infer", "m"),
        ("POST", "/v1/models/m:load", "models", "m"), ("PUT", "/v1/models/m/traffic", "models", "m"),
        ("POST", "/v1/models", "models", ""), ("POST", "/v1/jobs", "jobs", ""), ("GET", "/", "admin", ""),
        ("GET", "/metrics", "admin", ""), ("GET", "/v1/serving", "infer", ""), ("GET", "/v1/models", "infer", ""),
        ("GET", "/v1/datasets", "jobs", ""),
    ],
)  # fmt: skip
def test_what_a_request_needs(method: str, path: str, scope: str, model: str) -> None:
    assert needed(method, path) == (scope, model)


@pytest.mark.parametrize(("namespaces", "series", "may"), [
    ((), "model/other--ctr", True), ((), "topic/clicks", True), ((), "shop/orders", True),
    (("ads",), "shop/orders", True), (("ads",), "model/other--ctr", False), (("ads",), "model/ads--ctr", False),
    (("ads",), "topic/clicks", False), (("ads",), "job/j/samples", False),
])  # fmt: skip
def test_whose_rates_a_key_may_tell(namespaces: tuple[str, ...], series: str, may: bool) -> None:
    caller = Caller("k", scopes=frozenset({"jobs"}), namespaces=namespaces)
    with nullcontext() if may else pytest.raises(PermissionDenied, match=series):
        caller.check_series(series)
    with pytest.raises(PermissionDenied, match="may not use model 'b'"):
        Caller("k", scopes=frozenset({"jobs"}), models=("a",)).check_series("model/b")


def test_a_bucket_lets_a_burst_through_and_then_the_rate() -> None:
    bucket = TokenBucket(Rate(per_s=2.0, burst=3.0))
    assert [bucket.take(10.0) for _ in range(4)] == [0.0, 0.0, 0.0, 0.5]
    assert [bucket.take(10.5), bucket.take(10.5)] == [0.0, 0.5]
    assert [bucket.take(1000.0) for _ in range(4)] == [0.0, 0.0, 0.0, 0.5]


def test_a_namespace_is_a_whole_prefix() -> None:
    caller = Caller("c", frozenset({"infer"}), namespaces=("ads",))
    assert caller.sees("ads--ctr")
    assert not caller.sees("adsx--ctr") and not caller.sees("ads") and not caller.sees("other--ads--ctr")


@pytest.mark.asyncio
async def test_keys_reach_their_models_alone(tmp_path: Path) -> None:
    made = await serving(tmp_path)
    access = Access(Credentials(Sources("master", keys_file(tmp_path))), clock=FakeClock())
    async with http(made, access=access, loopback=False) as client:
        async def infer(model: str, key: str) -> int:
            answer = await client.post(f"/v2/models/{model}/infer", json={"inputs": INPUTS}, headers=bearer(key))
            return answer.status_code

        assert [await infer("tiny", key) for key in ("r", "a", "master", "wrong", "")] == [200, 403, 200, 401, 401]
        assert [await infer("ads--ctr", key) for key in ("r", "a")] == [403, 200]
        index = await client.post("/v2/repository/index", headers=bearer("a"))
        assert [item["name"] for item in index.json()] == ["ads--ctr"]
        listed = await client.get("/v1/models", headers=bearer("r"))
        assert [item["name"] for item in listed.json()["models"]] == ["tiny"]
        unload = "/v2/repository/models/{}/unload"
        assert (await client.post(unload.format("tiny"), headers=bearer("r"))).json()["reason"] == "NO_SCOPE"
        assert (await client.post(unload.format("ads--ctr"), headers=bearer("a"))).status_code == 200
        body = {"name": "other--x", "uri": "models/tiny/1", "framework": "torch"}
        assert (await client.post("/v1/models", json=body, headers=bearer("a"))).json()["reason"] == "WRONG_MODEL"
        assert (await client.get("/v1/jobs", headers=bearer("a"))).status_code == 403


@pytest.mark.asyncio
async def test_an_ensemble_is_no_way_to_models_of_others(tmp_path: Path) -> None:
    made = await serving(tmp_path)
    step = {"model": "tiny", "inputs": {"x": "x", "id": "id"}, "outputs": {"predictions": "predictions"}}
    uri = made.folder("ads--both", card={**CARD, "framework": "ensemble", "steps": [step]})
    access = Access(Credentials(Sources("master", keys_file(tmp_path))), clock=FakeClock())
    async with http(made, access=access, loopback=False) as client:
        body = {"name": "ads--both", "uri": uri, "framework": "ensemble"}
        refused = await client.post("/v1/models", json=body, headers=bearer("a"))
        assert (refused.status_code, refused.json()["reason"]) == (403, "WRONG_MODEL")
        assert (await client.post("/v1/models", json=body, headers=bearer("master"))).status_code == 201
        await made.settled()
        unload, all_of_it = "/v2/repository/models/ads--both/unload", {"parameters": {"unload_dependents": True}}
        refused = await client.post(unload, json=all_of_it, headers=bearer("a"))
        assert (refused.status_code, refused.json()["reason"]) == (403, "WRONG_MODEL")
        for model in ("tiny", "ads--both"):
            assert (await client.get(f"/v2/models/{model}/ready", headers=bearer("master"))).status_code == 200


def test_beyond_loopback_the_registry_of_the_mesh_is_closed_too() -> None:
    env = {"RECMESH_RPC_ADDRESS": "0.0.0.0:7000", "RECMESH_PUBLIC_API_KEY": "callers"}
    with pytest.raises(InvalidArgument) as caught:
        Config.from_env(env, PREFIX)
    assert "RECMESH_API_KEY, must be set" in caught.value.violations[0].reason
    assert Config.from_env({**env, "RECMESH_API_KEY": "services"}, PREFIX).token == "services"


@pytest.mark.parametrize("name", ["models", "namespaces"])
def test_an_empty_list_is_not_taken_for_everything(name: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        parse("reader", {"scopes": ["infer"], name: []}, "keys[0]")
    assert [item.path for item in caught.value.violations] == [f"keys[0].{name}"]


@pytest.mark.parametrize("namespace", ["ads--eu", "ads-", "-ads"])
def test_a_key_has_no_namespace_whose_names_could_be_another_s(namespace: str) -> None:
    """`ads--eu--ctr` would be `ctr` of it, and `eu--ctr` of `ads`."""
    with pytest.raises(InvalidArgument) as caught:
        parse("reader", {"scopes": ["infer"], "namespaces": ["ads", namespace]}, "keys[0]")
    (violation,) = caught.value.violations
    assert violation.path == "keys[0].namespaces" and "another namespace's" in violation.reason
    assert parse("reader", {"namespaces": ["ads", "ads-eu"]}, "keys[0]").namespaces == ("ads", "ads-eu")


@pytest.mark.asyncio
async def test_a_key_above_its_rate_is_told_when_to_come_back(tmp_path: Path) -> None:
    made, clock = await serving(tmp_path), FakeClock()
    access = Access(Credentials(Sources(None, keys_file(tmp_path))), clock=clock)
    async with http(made, access=access, loopback=False) as client:
        path, body = "/v2/models/tiny/infer", {"inputs": INPUTS}
        answers = [await client.post(path, json=body, headers=bearer("b")) for _ in range(3)]
        assert [item.status_code for item in answers] == [200, 200, 429]
        assert (answers[2].json()["reason"], answers[2].headers["retry-after"]) == ("RATE_LIMITED", "2")
        assert (await client.get("/v2/models/tiny", headers=bearer("b"))).status_code == 200
        clock.time += 2.0
        assert (await client.post(path, json=body, headers=bearer("b"))).status_code == 200


@pytest.mark.asyncio
async def test_the_same_over_grpc(tmp_path: Path) -> None:
    made = await serving(tmp_path)
    access = Access(Credentials(Sources(None, keys_file(tmp_path))), clock=FakeClock())
    listening = server("127.0.0.1:0", made.models, made.inference, made.regions, token="m", access=access, tls=None)
    await listening.start()
    async with grpc.aio.insecure_channel(listening.address) as channel:
        stub: Any = inference_pb2_grpc.GRPCInferenceServiceStub(channel)

        async def code(name: str, key: str) -> str:
            request = pb.ModelInferRequest(model_name=name)
            request.inputs.add(name="x", datatype="FP32", shape=[1]).contents.fp32_contents.append(1.0)
            request.inputs.add(name="id", datatype="INT64", shape=[1]).contents.int64_contents.append(2)
            try:
                await stub.ModelInfer(request, metadata=(("authorization", f"Bearer {key}"),), timeout=30)
            except grpc.aio.AioRpcError as error:
                trailing: Any = error.trailing_metadata() or ()
                return error.code().name + (" retry-after" if "retry-after" in [key for key, _ in trailing] else "")
            return "OK"

        assert [await code("tiny", key) for key in "raw"] == ["OK", "PERMISSION_DENIED", "UNAUTHENTICATED"]
        assert [await code("tiny", "b") for _ in range(3)] == ["OK", "OK", "RESOURCE_EXHAUSTED retry-after"]
    await listening.stop()


def test_a_key_that_is_taken_out_of_the_file_is_refused_at_once(tmp_path: Path) -> None:
    path = keys_file(tmp_path)
    credentials = Credentials(Sources(None, path))
    assert credentials.caller("Bearer r").name == "reader"
    path.write_text("keys: []\n")
    with pytest.raises(Unauthenticated):
        credentials.caller("Bearer r")


def test_a_file_that_is_wrong_after_a_change_lets_nobody_in_and_tells_nothing_of_its_keys(tmp_path: Path) -> None:
    path = keys_file(tmp_path)
    credentials, right = Credentials(Sources(None, path)), path.read_bytes()
    digest = hashlib.sha256(b"r").hexdigest()
    changes: list[Callable[[], object]] = [
        lambda: path.write_text(f"keys: [{{name: reader, sha256: {digest}]"), path.unlink
    ]  # fmt: skip
    for change in changes:
        assert credentials.caller("Bearer r").name == "reader"
        change()
        for _ in range(2):
            with pytest.raises(Unavailable) as caught:
                credentials.caller("Bearer r")
            assert caught.value.reason == "NO_CREDENTIALS_FILE"
            assert digest[:8] not in str(caught.value) and not caught.value.violations
        path.write_bytes(right)
    assert credentials.caller("Bearer r").name == "reader"


@pytest.mark.parametrize(
    "text",
    ["[]", "keys: 1", "keys: [{name: a}]", f"keys: [{{name: a, sha256: {'0' * 64}, scopes: [all]}}]",
     f"keys: [{{name: a, sha256: {'0' * 64}, model: [x]}}]", f"keys: [{{name: a, sha256: {'0' * 64}, rate: 1}}]"],
)  # fmt: skip
def test_a_wrong_file_is_told_of_at_the_start(tmp_path: Path, text: str) -> None:
    (tmp_path / "keys.yaml").write_text(text)
    with pytest.raises(InvalidArgument):
        Credentials(Sources(None, tmp_path / "keys.yaml")).check_files()


SECRET = "0123456789abcdef0123456789abcdef"


@pytest.fixture(scope="module")
def rsa_key() -> rsa.RSAPrivateKey:
    return rsa.generate_private_key(public_exponent=65537, key_size=2048)


@pytest.fixture
def tokens(tmp_path: Path, rsa_key: rsa.RSAPrivateKey) -> Credentials:
    shared = {**HMACAlgorithm.to_jwk(SECRET, as_dict=True), "kid": "hs"}
    public = {**RSAAlgorithm.to_jwk(rsa_key.public_key(), as_dict=True), "kid": "rs"}
    (tmp_path / "jwks.json").write_bytes(orjson.dumps({"keys": [shared, public]}))
    return Credentials(Sources(None, None, tmp_path / "jwks.json", "https://issuer", "recmesh"))


def claims(**changes: Any) -> dict[str, Any]:
    rights = {"scope": "infer openid", "recmesh_models": ["ti*"]}
    return {"sub": "u", "iss": "https://issuer", "aud": "recmesh", "exp": time.time() + 600, **rights, **changes}


def test_tokens_of_both_kinds_carry_rights(tokens: Credentials, rsa_key: rsa.RSAPrivateKey) -> None:
    for key, algorithm, kid in ((SECRET, "HS256", "hs"), (rsa_key, "RS256", "rs")):
        token = jwt.encode(claims(), key, algorithm=algorithm, headers={"kid": kid})
        caller = tokens.caller(f"Bearer {token}")
        assert (caller.name, caller.scopes, caller.models) == ("u", frozenset({"infer"}), ("ti*",))
        with pytest.raises(PermissionDenied):
            caller.check("models")


@pytest.mark.parametrize(
    "changes",
    [{"exp": time.time() - 60}, {"iss": "https://other"}, {"aud": "other"}, {"recmesh_models": "all"}, {"nbf": 9e9}],
)
def test_tokens_that_are_over_or_for_others_are_refused(tokens: Credentials, changes: dict[str, Any]) -> None:
    token = jwt.encode(claims(**changes), SECRET, algorithm="HS256", headers={"kid": "hs"})
    with pytest.raises(Unauthenticated):
        tokens.caller(f"Bearer {token}")


def test_who_shows_nothing_is_told_what_to_show(tokens: Credentials) -> None:
    one = Credentials(Sources("k"))
    for known, said in ((tokens, "an API key or a token (JWT) is needed"), (one, "an API key is needed")):
        with pytest.raises(Unauthenticated) as refused:
            known.caller("")
        assert refused.value.message == f"{said}: Authorization: Bearer ..."


def test_a_public_key_is_no_shared_secret_and_no_algorithm_is_none(
    tokens: Credentials, rsa_key: rsa.RSAPrivateKey
) -> None:
    public = rsa_key.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    head, payload, _ = jwt.encode(claims(), SECRET, algorithm="HS256", headers={"kid": "rs"}).split(".")
    signature = hmac.digest(public, f"{head}.{payload}".encode(), "sha256")     # as the attack does it
    forged = f"{head}.{payload}.{base64.urlsafe_b64encode(signature).decode().rstrip('=')}"
    unsigned = jwt.encode(claims(), "", algorithm="none", headers={"kid": "hs"})
    unknown = jwt.encode(claims(), SECRET, algorithm="HS256", headers={"kid": "other"})
    for token in (forged, unsigned, unknown, "a.b.c"):
        with pytest.raises(Unauthenticated):
            tokens.caller(f"Bearer {token}")


@pytest.mark.asyncio
async def test_rates_of_the_mesh_are_not_told_by_a_key_of_a_namespace(tmp_path: Path) -> None:
    made = await serving(tmp_path)
    access = Access(Credentials(Sources(None, keys_file(tmp_path))), clock=FakeClock())
    body = {"step_s": 60, "points": [{"at": 1790000000, "value": 1}]}
    async with http(made, access=access) as client:
        codes = [
            (await client.post(f"/v1/rates/{series}", json=body, headers=bearer("p"))).status_code
            for series in ("shop/orders", "model/other--ctr")
        ]
    assert codes == [200, 403]
    await made.models.stop()
