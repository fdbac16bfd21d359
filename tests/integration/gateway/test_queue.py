"""What waits for a whole model in a real process: in which order it is run, and who is refused at once."""

import asyncio
import os
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
import pytest_asyncio
from google.protobuf import json_format

from services.gateway.config import child_environment
from services.gateway.domain.models import Registration
from services.gateway.runtimes import link
from services.gateway.runtimes.pool import Runtimes
from services.gateway.runtimes.process import Limits
from services.gateway.wire.model_config import model_config
from tests.support.gateway import Gateway, gateway, http
from tests.support.oip_models import torch_model

pytestmark = [pytest.mark.integration, pytest.mark.asyncio(loop_scope="module")]

QUEUE = 8
LONG_US = 60_000_000


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def served(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Gateway]:
    runtimes = Runtimes(environment=child_environment(os.environ), limits=Limits(queue=QUEUE), log=print)
    root = tmp_path_factory.mktemp("storage")
    made = gateway(root, runtimes=runtimes)
    await made.models.start()
    for name, products in (("slow", 4), ("slower", 64)):
        torch_model(root / "models" / name / "1", products=products)
        await made.models.register(Registration(name, "", f"models/{name}/1", "torch", load=True))
    await made.settled()
    yield made
    await made.models.stop()
    await runtimes.stop()


class Asked:
    """Requests that were sent at once, in this order, and the order in which they were answered."""

    def __init__(self, made: Gateway, model: str = "slow") -> None:
        self._client, self._model = http(made), model
        self.order: list[str] = []
        self.answers: dict[str, httpx.Response] = {}

    async def one(self, name: str, **parameters: int) -> httpx.Response:
        document: dict[str, Any] = {
            "inputs": [{"name": "x", "datatype": "FP32", "shape": [1], "data": [1.0]},
                       {"name": "id", "datatype": "INT64", "shape": [1], "data": [1]}],
            "parameters": {"timeout": LONG_US, **parameters},
        }  # fmt: skip
        self.answers[name] = await self._client.post(f"/v2/models/{self._model}/infer", json=document)
        self.order.append(name)
        return self.answers[name]

    async def all(self, requests: dict[str, dict[str, int]]) -> None:
        await asyncio.gather(*(self.one(name, **parameters) for name, parameters in requests.items()))

    def reasons(self) -> list[str]:
        """Why some were not answered with 200."""
        return [answer.json()["reason"] for answer in self.answers.values() if not answer.is_success]


async def warmed(made: Gateway) -> None:
    """It is known how long the model runs."""
    for _ in range(4):
        assert (await Asked(made).one("warm")).is_success


async def test_a_priority_goes_before_what_waits_though_the_model_has_no_settings(served: Gateway) -> None:
    asked = Asked(served)
    await asked.all({**{f"low{each}": {"priority": 50} for each in range(6)}, "high": {"priority": 1}})
    assert asked.reasons() == []
    assert asked.order.index("high") <= 2, asked.order       # what ran already went on


async def test_of_equal_priority_the_earliest_deadline_goes_first(served: Gateway) -> None:
    asked = Asked(served)
    await asked.all({**{f"late{each}": {} for each in range(6)}, "soon": {"timeout": LONG_US // 2}})
    assert asked.reasons() == []
    assert asked.order.index("soon") <= 2, asked.order


async def test_a_full_queue_refuses_at_once_and_makes_room_for_a_higher_priority(served: Gateway) -> None:
    asked = Asked(served)
    await asked.all({**{f"low{each}": {} for each in range(QUEUE + 4)}, "high": {"priority": 1}})
    assert sorted(set(asked.reasons())) == ["QUEUE_FULL", "SHED_FOR_PRIORITY"]
    assert asked.answers["high"].is_success
    full = next(answer for answer in asked.answers.values() if not answer.is_success)
    assert full.status_code == 429 and full.headers["Retry-After"]
    assert all(not asked.answers[name].is_success for name in asked.order[:3]), "refusals came late"


async def test_who_cannot_be_in_time_is_refused_at_once(served: Gateway) -> None:
    await warmed(served)
    run_s = served.observation.statistics["slow", "1"].compute_infer.ns / 1e9
    run_s /= served.observation.statistics["slow", "1"].compute_infer.count
    asked = Asked(served)
    await asked.all({f"{each}": {"timeout": int(3.5 * run_s * 1e6)} for each in range(QUEUE)})
    assert "DEADLINE_BEHIND_QUEUE" in asked.reasons()
    first = asked.answers[asked.order[0]]
    assert first.status_code == 429 and "by the time that runs of this model take" in first.json()["detail"]
    alone = await asked.one("alone", timeout=int(run_s * 1e6 / 10))
    assert (alone.status_code, alone.json()["reason"]) == (504, "DEADLINE_TOO_SHORT")
    assert "a run of this model takes" in alone.json()["detail"]


async def test_a_deadline_that_is_over_tells_the_whole_time_and_whether_it_waited(
    served: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a model that is new: nobody knows yet how long it runs, and refuses for that."""
    monkeypatch.setattr(link, "WORD_S", 60.0)
    running = asyncio.create_task(Asked(served, "slower").one("runs"))
    await asyncio.sleep(0.05)
    waits = await Asked(served, "slower").one("waits", timeout=100_000)
    assert (waits.status_code, waits.json()["reason"]) == (504, "DEADLINE_EXCEEDED")
    assert waits.json()["detail"] == (
        "the request's whole time of 0.1 s is over: it waited for the model, and was never run"
    )
    monkeypatch.setattr(link, "WORD_S", 0.0)
    assert (await running).is_success
    runs = await Asked(served, "slower").one("runs", timeout=100_000)
    assert (runs.status_code, runs.json()["reason"]) == (504, "DEADLINE_EXCEEDED")
    assert "0.1 s is over: the model did not answer until then" in runs.json()["detail"]


async def test_the_configuration_tells_the_batching_of_the_registration(served: Gateway) -> None:
    late = {"timeout_action": "DELAY", "default_timeout_microseconds": 5}
    batching = {"preferred_batch_size": [16], "priority_levels": 2, "default_priority_level": 1,
                "priority_queue_policy": {"2": late}}  # fmt: skip
    serving = {"max_batch_size": 64, "dynamic_batching": batching}
    await served.models.register(
        Registration("batched", "", "models/slow/1", "torch", load=True, serving=serving)
    )
    await served.settled()
    config = (await http(served).get("/v2/models/batched/config")).json()
    assert config["max_batch_size"] == 64
    assert [each["dims"] for each in config["input"]] == [[], []]
    assert config["dynamic_batching"]["preferred_batch_size"] == [16]
    assert config["dynamic_batching"]["priority_queue_policy"]["2"]["timeout_action"] == "DELAY"
    whole = (await http(served).get("/v2/models/slow/config")).json()
    assert (whole["max_batch_size"], whole["input"][0]["dims"]) == (0, [-1]) and "dynamic_batching" not in whole
    message = model_config(*await served.inference.config("batched"))
    assert json_format.MessageToDict(message, preserving_proto_field_name=True)["dynamic_batching"] == {
        "preferred_batch_size": [16], "priority_levels": "2", "default_priority_level": "1",
        "default_queue_policy": {},
        "priority_queue_policy": {"2": {"timeout_action": "DELAY", "default_timeout_microseconds": "5"}},
    }  # fmt: skip


async def test_a_misspelt_setting_is_named_with_the_one_that_is_meant(served: Gateway) -> None:
    document = {"name": "wrong", "uri": "models/slow/1", "framework": "torch",
                "serving": {"dynamic_batchin": {}, "scaling": {"hn": {"maxx": 2}}}}  # fmt: skip
    answer = await http(served).post("/v1/models", json=document)
    wrong = {each["path"].rpartition(".")[2]: each["reason"] for each in answer.json()["violations"]}
    assert answer.status_code == 400 and wrong == {
        "dynamic_batchin": "there is no such field; did you mean dynamic_batching?",
        "maxx": "there is no such field; did you mean max?",
    }


async def test_what_waits_and_is_taken_back_is_never_run(served: Gateway) -> None:
    async def answered() -> int:
        [(_, told)] = await served.runtimes.told()
        return int(told["status"]["models"]["slower/1"]["answered"])

    before = await answered()
    running = asyncio.create_task(Asked(served, "slower").one("runs"))
    await asyncio.sleep(0.05)
    waiting = [asyncio.create_task(Asked(served, "slower").one(f"waits{each}")) for each in range(QUEUE - 2)]
    await asyncio.sleep(0.05)
    for each in waiting:
        each.cancel()
    assert (await running).is_success
    assert (await Asked(served, "slower").one("after")).is_success
    assert await answered() - before < 2 + len(waiting)
