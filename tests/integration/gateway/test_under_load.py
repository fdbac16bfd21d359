"""What callers feel of swaps, canaries, shadows and rest, with real model servers: nothing. And the docs' examples."""

import os
import re
import shutil
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from tests.integration.gateway.test_service import Service, running
from tests.support.oip_models import torch_model
from tests.support.servers import nats_server
from tests.support.waiting import until

pytestmark = pytest.mark.integration

CALLERS = 3
VERSIONS = (1, 2, 3, 4, 5)
STEP = 100
"""A version's predictions are so much above those of the one before: an answer's value tells who computed it."""
DOCS = Path(__file__).resolve().parents[3] / "docs" / "reference" / "inference.md"
TRITON_PYTHON = "RECMESH_BENCH_TRITON_PYTHON"


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    root = tmp_path_factory.mktemp("gateway")
    models = root / "storage" / "models"
    for version in VERSIONS[:3]:
        torch_model(models / f"swapped/{version}", bias=STEP * version)
    for model in ("canary", "shadowed", "resting"):
        shutil.copytree(models / "swapped", models / model)
    torch_model(models / "flights/1", bias=STEP, names=("distance", "origin"))
    for version in VERSIONS[1:]:
        shutil.copytree(models / "flights/1", models / f"flights/{version}")
    (models / "canary/2/model.pt2").write_bytes(b"no program")
    with nats_server(root / "nats") as nats, running(Service(root, nats)) as made:
        yield made


def register(service: Service, model: str, version: int, *, load: bool = True) -> None:
    document = {"name": model, "version": str(version), "uri": f"models/{model}/{version}", "framework": "torch",
                "load": load}  # fmt: skip
    response = httpx.post(f"{service.url}/v1/models", json=document, timeout=60.0)
    assert response.is_success, response.text


def rules(service: Service, model: str, **traffic: Any) -> None:
    response = httpx.put(f"{service.url}/v1/models/{model}/traffic", json=traffic, timeout=60.0)
    assert response.is_success, response.text


def state(service: Service, model: str, version: int) -> str:
    return str(httpx.get(f"{service.url}/v1/models/{model}?version={version}", timeout=60.0).json()["state"])


def counted(service: Service, model: str, version: int) -> int:
    """Inferences of a version that were answered."""
    found = httpx.get(f"{service.url}/v2/models/{model}/versions/{version}/stats", timeout=60.0).json()
    return int(found["model_stats"][0]["inference_stats"]["success"]["count"])


@dataclass
class Asked:
    """Answers so far: which version says that it computed them, and which value has."""

    answers: list[tuple[str, int]] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)

    def by(self, version: int) -> int:
        """How many a version has answered."""
        return sum(said == str(version) for said, _ in self.answers)


@contextmanager
def asking(service: Service, model: str) -> Iterator[Asked]:
    """Callers that ask one request after another while the block runs."""
    asked, stop = Asked(), threading.Event()

    def ask(number: int) -> None:
        inputs = [
            {"name": "x", "datatype": "FP32", "shape": [1], "data": [1.0]},
            {"name": "id", "datatype": "INT64", "shape": [1], "data": [number]},
        ]
        with httpx.Client(timeout=60.0) as client:
            while not stop.is_set():
                reply = client.post(f"{service.url}/v2/models/{model}/infer", json={"inputs": inputs})
                if reply.status_code != 200:
                    asked.failures.append(reply.text)
                    continue
                value = reply.json()["outputs"][0]["data"][0] - 1 - number
                asked.answers.append((reply.json()["model_version"], round(value / STEP)))

    callers = [threading.Thread(target=ask, args=(number,)) for number in range(CALLERS)]
    for caller in callers:
        caller.start()
    try:
        yield asked
    finally:
        stop.set()
        for caller in callers:
            caller.join(120.0)


def answered(asked: Asked, version: int, *, more: int = 5) -> None:
    """Wait until a version has answered some more."""
    wanted = asked.by(version) + more
    until(lambda: asked.by(version) >= wanted or asked.failures, timeout_s=240.0)


def all_well(asked: Asked) -> None:
    assert asked.failures == []
    assert all(str(computed) == said for said, computed in asked.answers)


@pytest.mark.long
def test_versions_are_swapped_under_load_and_every_request_is_answered(service: Service) -> None:
    register(service, "swapped", 1)
    service.serves("swapped")
    with asking(service, "swapped") as asked:
        answered(asked, 1)
        for version in (2, 3):
            register(service, "swapped", version)
            answered(asked, version)
        until(lambda: state(service, "swapped", 2) == "unloaded", timeout_s=120.0)
        answered(asked, 3)
    all_well(asked)


def test_a_canary_gets_its_share_when_it_is_ready_and_nothing_before(service: Service) -> None:
    register(service, "canary", 1)
    service.serves("canary")
    register(service, "canary", 2, load=False)
    register(service, "canary", 3, load=False)
    with asking(service, "canary") as asked:
        answered(asked, 1)
        rules(service, "canary", weights={"1": 50, "2": 50})          # which cannot be loaded
        until(lambda: state(service, "canary", 2) == "failed", timeout_s=120.0)
        answered(asked, 1)
        rules(service, "canary", weights={"1": 50, "3": 50})
        answered(asked, 3)
        answered(asked, 1)
    all_well(asked)
    assert asked.by(2) == 0


@pytest.mark.long
def test_a_shadow_gets_copies_and_answers_nobody(service: Service) -> None:
    register(service, "shadowed", 1)
    service.serves("shadowed")
    register(service, "shadowed", 2, load=False)
    with asking(service, "shadowed") as asked:
        rules(service, "shadowed", shadow={"version": "2", "share": 1.0})
        until(lambda: counted(service, "shadowed", 2) > 5 or asked.failures, timeout_s=240.0)
    all_well(asked)
    assert asked.by(2) == 0


def test_a_model_that_rests_comes_back_for_all_who_ask_at_once(service: Service) -> None:
    register(service, "resting", 1)
    service.serves("resting")

    for model in ("swapped", "canary", "shadowed", "resting"):
        if model == "resting":
            rules(service, model, idle_s=0.5)
        else:
            httpx.post(f"{service.url}/v2/repository/models/{model}/unload", json={}, timeout=60.0)
    assert service.process is not None
    gateway = psutil.Process(service.process.pid)
    until(lambda: not gateway.children(), timeout_s=120.0)            # the last model's process ended with it
    assert httpx.get(f"{service.url}/v2/models/resting/ready", timeout=60.0).status_code == 200
    with asking(service, "resting") as asked:
        until(lambda: len(asked.answers) >= 5 * CALLERS or asked.failures, timeout_s=240.0)
    all_well(asked)
    assert gateway.children()


def examples(language: str) -> list[str]:
    """The code blocks of the page, as they stand there."""
    return re.findall(rf"```{language}\n(.*?)```", DOCS.read_text(), re.DOTALL)


@pytest.fixture(scope="module")
def flights(service: Service) -> None:
    for version in VERSIONS:
        register(service, "flights", version, load=version == 1)
    service.serves("flights")


@pytest.mark.usefixtures("flights")
def test_the_docs_curl_calls_are_answered(service: Service, tmp_path: Path) -> None:
    """As they are printed: curl's own settings send localhost:8000 to this gateway."""
    (tmp_path / ".curlrc").write_text(f'connect-to = "localhost:8000:{service.http}"\nfail-with-body\nsilent\n')
    for path, expected in (("/infer", '"data":[558.0,1301.0]'), ("/traffic", '"idle_s":600')):
        command = next(each for each in examples("sh") if path in each)
        done = subprocess.run(
            ["bash", "-c", command], env={**os.environ, "HOME": str(tmp_path)}, capture_output=True, text=True,
            timeout=120.0, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        assert expected in done.stdout


@pytest.mark.usefixtures("flights")
def test_the_docs_client_of_triton_is_answered(service: Service) -> None:
    python = os.environ.get(TRITON_PYTHON, "")
    if not python:
        pytest.skip(f"{TRITON_PYTHON} names no environment with tritonclient[http]")
    [example] = [block for block in examples("python") if "tritonclient" in block]
    assert "127.0.0.1:8000" in example
    done = subprocess.run(
        [python, "-c", example.replace("127.0.0.1:8000", service.http).replace("50_000", "5_000_000")],
        capture_output=True, text=True, timeout=120.0, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert re.search(r"\[ *558\. +1301\.\]", done.stdout), done.stdout
