"""The log of predictions, and labels: what is logged, what it holds, what is refused."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest

from recmesh.runtime.errors import InvalidArgument, PermissionDenied
from recmesh.runtime.events import decode, serving
from recmesh.serving.settings import PredictionLog, ServingSettings
from services.gateway.domain.callers import Caller
from services.gateway.domain.inference import InferRequest
from services.gateway.domain.models import Registration
from services.gateway.domain.predictions import Label, Prediction, checked_labels, is_sampled, rows_of
from services.gateway.domain.tensors import Tensor
from services.gateway.events.topics import label_message, messages_of
from tests.support.gateway import CARD, Gateway, gateway, http

LOG = PredictionLog()


def prediction(form: str = "columns", log: PredictionLog = LOG, **arrays: Any) -> Prediction:
    tensors = tuple(Tensor.of(name.replace("__", "."), array) for name, array in arrays.items())
    samples = 1 if form == "rows" else len(tensors[0].array)
    outputs = (Tensor.of("predictions", np.arange(samples, dtype=np.float32)),)
    return Prediction("r1", "ctr", "2", 1000.5, log, form, tensors, outputs)


def test_samples_become_flat_rows_without_what_only_fills_rectangles() -> None:
    made = dict(rows_of(prediction(
        city=np.array(["Rome", "Ørsta"], object), city__null=np.array([False, True]),
        tags=np.array([[1, 2], [3, 0]]), tags__lengths=np.array([2, 1]),
        tags__weights=np.array([[0.5, 1], [2, 0]], np.float32),
    )))
    own = {"recmesh_model": "ctr", "recmesh_version": "2", "recmesh_time": 1000.5, "recmesh_raw": True}
    assert made["r1/0"] == own | {
        "recmesh_id": "r1/0", "city": "Rome", "tags": [1, 2], "tags.weights": [0.5, 1.0],
        "recmesh_outputs": {"predictions": 0.0},
    }
    assert (made["r1/1"]["city"], made["r1/1"]["tags"], made["r1/1"]["tags.weights"]) == (None, [3], [2.0])
    assert made["r1/1"]["recmesh_outputs"] == {"predictions": 1.0}


def test_rows_of_json_are_logged_as_they_came_and_one_has_the_request_s_id() -> None:
    document = np.array([orjson.dumps([{"city": None, "km": 1.5}])], object)
    ((id_, row),) = rows_of(prediction("rows", rows=document))
    assert (id_, row["city"], row["km"], row["recmesh_id"]) == ("r1", None, 1.5, "r1")
    ((_, bare),) = rows_of(prediction("rows", PredictionLog(features=False), rows=document))
    assert "km" not in bare


def test_a_message_is_a_cloud_event_of_the_catalogue() -> None:
    ((key, body, id_, headers),) = messages_of(prediction(x=np.array([1.0], np.float32)))
    event = decode(headers, body)
    assert event.type is serving.PREDICTION_LOGGED
    assert (event.data.recmesh_id, event.entity_id, key) == ("r1", "ctr", "r1")
    assert headers["Recmesh-Time"] == "1000.5"
    assert id_ == "/recmesh/gateway/ctr/r1"


def test_ids_are_sampled_by_their_share_and_always_the_same() -> None:
    ids = [f"request-{number}" for number in range(20_000)]
    chosen = {id_ for id_ in ids if is_sampled(id_, 0.1)}
    assert 1_800 < len(chosen) < 2_200
    assert chosen == {id_ for id_ in ids if is_sampled(id_, 0.1)}
    assert chosen < {id_ for id_ in ids if is_sampled(id_, 0.3)}
    assert all(is_sampled(id_, 1.0) for id_ in ids)


async def _served(made: Gateway, log: dict[str, Any] | None, **more: Any) -> None:
    await made.models.start()
    serving = {"log": log} if log is not None else {}
    await made.models.register(
        Registration("tiny", "", made.folder(), "torch", load=True, serving=serving), **more
    )
    await made.settled()


def _request(id_: str = "") -> InferRequest:
    x, ids = np.array([1.0], np.float32), np.array([2])
    return InferRequest("tiny", "", (Tensor.of("x", x), Tensor.of("id", ids)), id=id_)


@pytest.mark.asyncio
async def test_what_is_sampled_is_logged_with_the_version_that_answered(tmp_path: Path) -> None:
    made = gateway(tmp_path)
    await _served(made, {"share": 0.5})
    ids = [f"r{number}" for number in range(40)]
    for id_ in ids:
        assert (await made.models.infer(_request(id_))).id == id_
    logged = made.facts.predictions
    assert [item.id for item in logged] == [id_ for id_ in ids if is_sampled(id_, 0.5)]
    assert {(item.model, item.version, item.log.topic) for item in logged} == {("tiny", "1", "predictions")}


@pytest.mark.asyncio
async def test_a_logged_answer_has_an_id_though_the_request_had_none(tmp_path: Path) -> None:
    made = gateway(tmp_path)
    await _served(made, {})
    assert (await made.models.infer(_request())).id == "made"
    assert [item.id for item in made.facts.predictions] == ["made"]


@pytest.mark.asyncio
async def test_an_ensemble_is_logged_once_and_not_by_its_steps(tmp_path: Path) -> None:
    made = gateway(tmp_path)
    await _served(made, {})
    both = {
        "framework": "ensemble", "inputs": CARD["inputs"], "serving": {"log": {"topic": "of-both"}},
        "outputs": [{"name": "score", "dtype": "float32", "shape": [-1]}],
        "steps": [{"model": "tiny", "inputs": {"x": "x", "id": "id"}, "outputs": {"predictions": "score"}}],
    }
    await made.models.register(Registration("both", "", made.folder("both", card=both), "ensemble", load=True))
    await made.settled()
    await made.models.infer(replace(_request("r1"), model="both"))
    assert [(item.model, item.log.topic) for item in made.facts.predictions] == [("both", "of-both")]


@pytest.mark.asyncio
async def test_without_the_setting_nothing_is_logged(tmp_path: Path) -> None:
    made = gateway(tmp_path)
    await _served(made, None)
    assert (await made.models.infer(_request())).id == ""
    assert made.facts.predictions == []


@pytest.mark.asyncio
async def test_a_log_goes_to_topics_of_one_s_own_namespace(tmp_path: Path) -> None:
    caller = Caller("ads", frozenset({"models"}), namespaces=("ads",))
    made = gateway(tmp_path)
    folder = made.folder("ads--ctr", card=CARD | {"serving": {"log": {"topic": "others"}}})
    wanted = Registration("ads--ctr", "", folder, "torch")
    with pytest.raises(PermissionDenied, match=r"only to ads\.NAME"):
        await made.models.register(wanted, caller=caller)


@pytest.mark.parametrize("log", [{"share": 0}, {"share": 1.5}, {"topic": "a b"}, {"topic": "recmesh.v1"}, {"other": 1}])
def test_a_wrong_setting_is_refused(log: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgument) as failed:
        ServingSettings.parse({"log": log})
    assert failed.value.violations[0].path == f"serving.log.{next(iter(log))}"


def test_each_wrong_label_is_named() -> None:
    entries = [{"id": "a"}, {"id": ""}, {"id": "b", "value": "x"}, 5, {"id": "c", "time": 2e9}, {"id": "d", "if": 1}]
    with pytest.raises(InvalidArgument) as failed:
        checked_labels(entries, latest=1e9)
    assert [item.path for item in failed.value.violations] == [
        "labels[1].id", "labels[2].value", "labels[3]", "labels[4].time", "labels[5].if",
    ]
    assert checked_labels([{"id": "a"}, {"id": "b", "value": True, "time": 5}], latest=10) == [
        Label("a", 1.0), Label("b", 1.0, 5.0),
    ]


def test_equal_labels_are_one_message_and_others_are_not() -> None:
    _, id_, headers = label_message(Label("a", 1.0), at=7.0)
    assert id_ == label_message(Label("a", 1.0), at=9.0)[1]
    assert headers["Recmesh-Time"] == "7.0"
    others = (Label("b", 1.0), Label("a", 0.0), Label("a", 1.0, 7.0))
    assert len({id_, *(label_message(label, at=7.0)[1] for label in others)}) == 4


@pytest.mark.asyncio
async def test_labels_are_posted_again_without_effect(tmp_path: Path) -> None:
    made = gateway(tmp_path)
    body = {"labels": [{"id": "a"}, {"id": "b", "value": 0}]}
    async with http(made) as client:
        first, again = [(await client.post("/v1/labels", json=body)).json() for _ in range(2)]
        wrong = await client.post("/v1/labels", json={"labels": [{"id": 1}], "topic": "recmesh.v1.x"})
    assert (first, again) == ({"labels": 2, "known": 0}, {"labels": 2, "known": 2})
    assert (wrong.status_code, wrong.json()["violations"][0]["path"]) == (400, "topic")
