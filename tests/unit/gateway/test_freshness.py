"""What is asked of models that follow no job, or are not there; and answers that name their version."""

import asyncio
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from prometheus_client import REGISTRY

from recmesh.runtime.errors import (
    DeadlineExceeded,
    FailedPrecondition,
    InvalidArgument,
    MeshError,
    NotFound,
    Unavailable,
)
from recmesh.serving.card import ModelCard
from recmesh.serving.settings import ServingSettings, check_stored, shown
from services.gateway.app import freshness
from services.gateway.domain.inference import InferRequest, InferResponse
from services.gateway.domain.models import ModelVersion, Registration
from services.gateway.domain.tensors import Tensor
from services.gateway.wire import inference as grpc_wire
from services.gateway.wire import oip_json
from services.gateway.wire import registry as registry_wire
from tests.support.gateway import FakeBucket, FakeRuntimes, Gateway, gateway, http

CARD: dict[str, Any] = {
    "framework": "torch",
    "inputs": [
        {"name": "tags", "kind": "bag", "dtype": "int64", "shape": [-1, -1]},
        {"name": "x", "kind": "dense", "dtype": "float32", "shape": [-1]},
    ],
    "outputs": [{"name": "predictions", "dtype": "float32", "shape": [-1]}],
    "apart": {
        "job_id": "j", "checkpoints": "", "dense": {"w": "model.w"},
        "tables": [
            {"name": "wide", "dim": 1, "features": ["tags"]}, {"name": "deep", "dim": 8, "features": ["tags"]},
        ],
    },
}


def test_the_program_takes_rows_where_the_model_takes_ids() -> None:
    card = ModelCard.parse(CARD)
    assert [spec.name for spec in card.inputs] == ["tags", "tags.lengths", "x"]
    assert [(spec.name, spec.datatype.name, spec.shape) for spec in card.program.inputs] == [
        ("at.0.tags", "INT64", (-1, -1)), ("at.1.tags", "INT64", (-1, -1)), ("tags.lengths", "INT64", (-1,)),
        ("x", "FP32", (-1,)), ("rows.0", "FP32", (-1, 1)), ("rows.1", "FP32", (-1, 8)),
    ]
    assert card.program.apart is None


def table(**fields: Any) -> dict[str, Any]:
    return {**CARD["apart"], "tables": [{"name": "wide", "dim": 1, "features": ["tags"], **fields}]}


@pytest.mark.parametrize(("wrong", "path"), [
    ([], ""), ({**CARD["apart"], "job_id": 3}, ".job_id"), ({**CARD["apart"], "tables": 3}, ".tables"),
    (table(dim=0), ".tables[0].dim"), (table(features="tags"), ".tables[0].features"),
    (table(features=["tags", "gone"]), ".tables[0].features"), (table(features=["x"]), ".tables[0].features"),
])
def test_what_is_wrong_with_apart_is_named(wrong: Any, path: str) -> None:
    with pytest.raises(InvalidArgument) as refused:
        ModelCard.parse({**CARD, "apart": wrong})
    assert [item.path for item in refused.value.violations] == ["model.json.apart" + path]


def test_inputs_that_the_program_would_have_twice_are_named() -> None:
    inputs = [*CARD["inputs"], {"name": "rows.0", "kind": "dense", "dtype": "float32", "shape": [-1]}]
    with pytest.raises(InvalidArgument) as refused:
        ModelCard.parse({**CARD, "inputs": inputs})
    assert [(item.path, item.reason) for item in refused.value.violations] == [
        ("model.json.inputs", "'rows.0' is there twice")
    ]


@pytest.mark.parametrize("address", ["tcp:x", "tcp:host:99999", "unix:relative", "http://host:1", "shm:"])
def test_an_address_of_an_hn_that_is_none_is_named(address: str) -> None:
    ServingSettings.parse({"hns": ["tcp:host:7000", "unix:/run/hn"]})
    with pytest.raises(InvalidArgument) as refused:
        ServingSettings.parse({"hns": ["tcp:host:7000", address]})
    assert refused.value.violations[0].path == "serving.hns.1"


@pytest.mark.asyncio
async def test_a_model_that_follows_no_job_has_no_freshness(tmp_path: Path) -> None:
    made = gateway(tmp_path)
    made.folder()
    await made.models.register(Registration("tiny", "1", "models/tiny/1", "torch", load=True))
    await made.settled()
    async with http(made) as client:
        for call in (
            client.get("/v1/models/tiny/freshness"), client.post("/v1/models/tiny/resume"),
            client.post("/v1/models/tiny/rollback", json={"fresh_version": 3}),
        ):
            answer = await call
            assert (answer.status_code, answer.json()["reason"]) == (409, "NOT_FRESH")
        assert (await client.get("/v1/models/nobody/freshness")).status_code == 404
        wrong = await client.post("/v1/models/tiny/rollback", json={"fresh_version": 0})
        assert (wrong.status_code, wrong.json()["violations"][0]["path"]) == (400, "fresh_version")
        await made.models.unload("tiny")
        refused = (await client.get("/v1/models/tiny/freshness")).json()
        assert (refused["reason"], refused["detail"]) == (
            "MODEL_NOT_READY", "model tiny/1 is unloaded, not serving: unloaded on request"
        )
        made.runtimes.broken["tiny/2"] = FailedPrecondition("snapshot 7 is gone", reason="NO_SNAPSHOT")
        made.folder(version="2")
        await made.models.register(Registration("tiny", "2", "models/tiny/2", "torch", load=True))
        await made.settled()
        for path in ("/v1/models/tiny/freshness", "/v2/models/tiny/ready"):
            text = (await client.get(path)).text
            assert "is failed" in text and "NO_SNAPSHOT: snapshot 7 is gone" in text
        made.runtimes.broken.clear()
        made.runtimes.hold_load, made.runtimes.waiting = asyncio.Event(), {"tiny/2": "no HN answers"}
        loading = asyncio.create_task(made.models.load("tiny", "2"))
        async with asyncio.timeout(10.0):
            while (await made.models.get("tiny", "2")).state != "loading":  # noqa: ASYNC110 (nobody signals it)
                await asyncio.sleep(0)
        waits = await client.get("/v1/models/tiny/freshness")
        assert (waits.status_code, waits.json()["reason"]) == (503, "MODEL_LOADING")
        assert "no HN answers" in waits.json()["detail"]
        made.runtimes.hold_load.set()
        await loading
    assert await made.freshness.measure() > 0


def test_an_answer_names_its_version_where_there_is_one() -> None:
    request = InferRequest("m", "", ())
    response = InferResponse("m", "1", (Tensor.of("predictions", np.zeros(1, np.float32)),))
    memory: Any = None
    for version, told in ((0, {}), (41, {"fresh_version": 41})):
        one = replace(response, fresh_version=version)
        message = grpc_wire.infer_response(request, one, memory=memory)
        assert grpc_wire.parameters(message.parameters) == told
        body, _ = oip_json.infer_response(request, one, memory=memory)
        assert (b'"fresh_version":41' in body) == bool(told)


@pytest.mark.parametrize(("url", "seen"), [
    ("redis://:secret@host:6379/1", "redis://:***@host:6379/1"),
    ("rediss://me:sec%40ret@host", "rediss://me:***@host"),
    ("unix:///run/valkey?db=2&password=secret", "unix:///run/valkey?db=2&password=***"),
    ("redis://host", "redis://host"),
])
def test_who_sees_a_model_does_not_see_the_password_of_its_valkey(url: str, seen: str) -> None:
    serving = {"max_batch_size": 8, "embeddings": {"cache_bytes": 1, "valkey": {"url": url}}}
    record = ModelVersion("m", "1", "models/m/1", "torch", serving=serving)
    shown = {"max_batch_size": 8, "embeddings": {"cache_bytes": 1, "valkey": {"url": seen}}}
    assert registry_wire.document(record)["serving"] == shown
    assert json.loads(registry_wire.model(record).serving_json) == shown
    assert record.serving == serving
    if url != seen:
        with pytest.raises(InvalidArgument, match="serving is wrong") as refused:
            ServingSettings.parse(shown)
        assert "give the password itself" in refused.value.violations[0].reason


def test_a_password_may_be_a_variable_which_is_shown_and_read_where_the_model_is_loaded() -> None:
    for url, resolved in (
        ("redis://:${RECMESH_VALKEY_A}@host:6379/1", "redis://:p%40ss@host:6379/1"),
        ("unix:///run/valkey?db=2&password=${RECMESH_VALKEY_A}", "unix:///run/valkey?db=2&password=p%40ss"),
    ):
        document = {"embeddings": {"valkey": {"url": url}}}
        settings = ServingSettings.parse(document)
        assert shown(document) == document, "it may be registered again as it is shown"
        check_stored(settings, path="export.serving")
        found = settings.with_secrets({"RECMESH_VALKEY_A": "p@ss"}).embeddings.valkey
        assert found is not None and found.url == resolved
        with pytest.raises(FailedPrecondition, match="names RECMESH_VALKEY_A"):
            settings.with_secrets({"RECMESH_VALKEY_B": "p@ss"})
    with pytest.raises(InvalidArgument) as refused:
        ServingSettings.parse({"embeddings": {"valkey": {"url": "redis://:${RECMESH_API_KEY}@host"}}})
    assert "only variables that begin with RECMESH_VALKEY_" in refused.value.violations[0].reason
    for plain in ("redis://:secret@host", "unix:///run/valkey?password=secret"):
        with pytest.raises(InvalidArgument) as refused:
            check_stored(ServingSettings.parse({"embeddings": {"valkey": {"url": plain}}}), path="export.serving")
        assert refused.value.violations[0].path == "export.serving.embeddings.valkey.url"


@pytest.mark.parametrize("url", [
    "redis://host:port", "redis://host:6379?socket_timeout=soon", "redis://:12/34@host", "redis://[::1"
])
def test_a_malformed_url_of_valkey_is_named(url: str) -> None:
    with pytest.raises(InvalidArgument) as refused:
        ServingSettings.parse({"embeddings": {"valkey": {"url": url}}})
    assert refused.value.violations[0].path == "serving.embeddings.valkey.url"


class FollowingRuntimes(FakeRuntimes):
    """A model server that follows a job at snapshot 44, and may have trouble."""

    def __init__(self, bucket: FakeBucket) -> None:
        super().__init__()
        self.bucket = bucket
        self.trouble: BaseException | None = None
        self.held = 0
        self.noted: list[bool] = []
        """At each order, whether the registry had it already."""
        self.loaded_with: list[ServingSettings] = []

    async def load(
        self, framework: str, key: str, folder: Path, *, settings: ServingSettings, timeout_s: float
    ) -> None:
        self.loaded_with.append(settings)
        await super().load(framework, key, folder, settings=settings, timeout_s=timeout_s)

    async def freshen(
        self, framework: str, key: str, act: str, version: int, *, settings: ServingSettings, timeout_s: float
    ) -> dict[str, Any]:
        if act != "status":
            self.noted.append(f'"held":{version}'.encode() in self.bucket.values["tiny.1"].value)
        if self.trouble is not None:
            raise self.trouble
        if act != "status":
            self.held = version
        tables = {"wide": dict.fromkeys(("fresh", "cache", "valkey", "disk", "absent"), 1)}
        status = {"version": self.held or 44, "held": bool(self.held), "committed_at": 5.0, "commit_to_install_s": 0.5}
        return {"status": {**status, "tables": tables}, "versions": [41, 44]}


async def following(root: Path, bucket: FakeBucket) -> tuple[Gateway, FollowingRuntimes]:
    runtimes = FollowingRuntimes(bucket)
    made = gateway(root, bucket=bucket, runtimes=runtimes)
    return made, runtimes


@pytest.mark.asyncio
async def test_a_hold_is_noted_before_the_model_server_hears_of_it_and_stands_whatever_comes_of_that(
    tmp_path: Path,
) -> None:
    bucket = FakeBucket()
    made, runtimes = await following(tmp_path, bucket)
    made.folder(card=CARD)
    wanted = Registration("tiny", "1", "models/tiny/1", "torch", load=True, serving={"freshness": {"poll_s": 1}})
    await made.models.register(wanted)
    await made.settled()
    assert (await made.freshness.roll_back("tiny", 41))["held"] is True
    assert runtimes.noted == [True]
    same = await made.models.register(wanted)
    assert (same.version, same.held, same.serving) == ("1", 41, wanted.serving), "a hold is no other content"

    runtimes.trouble = Unavailable("the torch model server is down")
    with pytest.raises(Unavailable, match="holds from its next load on") as told:
        await made.freshness.resume("tiny")
    assert told.value.reason == "HOLD_NOT_TOLD"
    again, other = await following(tmp_path, bucket)                  # the gateway starts again
    await again.models.start()
    await again.models.loading.restored.wait()
    assert [settings.freshness.held for settings in other.loaded_with] == [0]
    await made.freshness.measure()
    assert runtimes.held == 41, "it is still away"
    runtimes.trouble = None
    await made.freshness.measure()
    assert runtimes.held == 0, "it is told again until it answers"

    runtimes.trouble = NotFound("there is no version 77", reason="UNKNOWN_VERSION")
    with pytest.raises(MeshError, match="no version 77"):
        await made.freshness.roll_back("tiny", 77)
    assert b'"held":0' in bucket.values["tiny.1"].value, "what cannot be held is not noted"
    asked = len(runtimes.noted)
    runtimes.trouble = None
    await made.freshness.measure()
    assert len(runtimes.noted) == asked, "nobody waits to be told"


@pytest.mark.asyncio
async def test_all_who_ask_at_a_time_have_one_answer_within_its_deadline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, runtimes = await following(tmp_path, FakeBucket())
    made.folder(card=CARD)
    await made.models.register(Registration("tiny", "1", "models/tiny/1", "torch", load=True))
    await made.settled()
    told, asked, answer = runtimes.freshen, 0, asyncio.Event()

    async def slow(*args: Any, **more: Any) -> dict[str, Any]:
        nonlocal asked
        asked += 1
        await answer.wait()
        return await told(*args, **more)

    monkeypatch.setattr(runtimes, "freshen", slow)
    monkeypatch.setattr(freshness, "ASK_S", 0.01)
    waiting = [asyncio.create_task(made.freshness.status("tiny")) for _ in range(50)]
    for each in await asyncio.gather(*waiting, return_exceptions=True):
        assert isinstance(each, DeadlineExceeded)
    monkeypatch.setattr(freshness, "ASK_S", 60.0)
    again = asyncio.create_task(made.freshness.status("tiny"))
    await asyncio.sleep(0)
    answer.set()
    assert (await again)["fresh_version"] == 44 and asked == 1
    assert (await made.freshness.status("tiny"))["fresh_version"] == 44 and asked == 2


@pytest.mark.asyncio
async def test_a_model_that_is_gone_has_no_figures_any_more(tmp_path: Path) -> None:
    bucket = FakeBucket()
    made, _ = await following(tmp_path, bucket)
    made.folder(card=CARD)
    await made.models.register(Registration("tiny", "1", "models/tiny/1", "torch", load=True))
    await made.settled()

    mine = {f"recmesh_gateway_{name}" for name in ("fresh_version", "fresh_install_lag_seconds", "embedding_ids")}

    def shown() -> set[str]:
        return {
            sample.name for family in REGISTRY.collect() for sample in family.samples
            if sample.name in mine and sample.labels["model"] == "tiny"
        }

    await made.freshness.measure()
    assert len(shown()) == 3
    await made.models.unload("tiny")
    await made.freshness.measure()
    assert not shown()
