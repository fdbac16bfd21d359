"""The page of serving: what people see, and the same as JSON, of all models and of one."""

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from starlette.applications import Starlette

from recmesh.runtime.errors import FailedPrecondition
from recmesh.serving.settings import Scaling
from recmesh.serving.split import manifest
from recmesh.serving.split.manifest import Batching, Manifest, Stage, TensorInfo, Transfer
from recmesh.serving.tensors import Tensor
from services.gateway.domain.inference import InferRequest
from services.gateway.domain.load import Load
from services.gateway.domain.models import Registration
from services.gateway.domain.scaling import Decision
from services.gateway.domain.statistics import Outcome, Times
from services.gateway.domain.traffic import Traffic
from services.gateway.ops.page import OpsFace
from services.gateway.ops.view import View
from services.gateway.peers.mesh import Mesh
from services.gateway.runtimes.pool import RuntimeStatus
from tests.support.gateway import Gateway, gateway

pytestmark = pytest.mark.asyncio

ADMISSION = {
    "window_bytes": 1 << 20, "in_flight_bytes": 1024, "congestion_level": 0.5, "bandwidth_bytes_per_s": 1e8,
    "base_s": 0.001, "waiting": 3, "waiting_bytes": 2048, "asked": 12, "granted": 9, "arrived": 9, "cancelled": 0,
    "came_too_late": 0, "refused": {"TOO_LATE": 2, "DRAINING": 0},
}  # fmt: skip
TIERS = {"tables": {"items": {"fresh": 10, "cached": 80, "shared": 8, "absent": 2, "hit_rate": 0.98,
                              "cached_rows": 500, "cache_bytes": 4000}}}  # fmt: skip
HN = {"models": ["tiny/1"], "queued": {"tiny/1": 4}, "idle": False, "busy_s": {"tiny/1": 3.0},
      "answered": {"tiny/1": 90}, "admission": ADMISSION, "fresh": {"tiny/1": TIERS}}  # fmt: skip
CN = {"models": ["tiny/1"], "queued": {"tiny/1": 2}, "hns": {}, "idle": True, "busy_s": 1.5, "answered": 90,
      "status": {"hns": {"shm:/hn-1.sock": {"connected": True, "why": "", "status": None}}, "models": {
          "tiny/1": {"hns": ["a", "b"], "without": [], "ejected": ["b"], "calls": 80, "hedges": 4},
          "beside/1": {"hns": ["a", "b"], "without": ["a"], "ejected": [], "calls": 0, "hedges": 0},
      }}}  # fmt: skip
FAR = {"models": ["far/1"], "queued": {"far/1": 0}, "busy_s": 1.0, "answered": 7, "status": {"hns": {
    "tcp:hn-0:7000": {"connected": True, "why": "", "status": {
        "models": {"far/1": {"queued": 6}}, "admission": {**ADMISSION, "window_bytes": 3 << 20},
    }},
    "tcp:hn-1:7000": {"connected": False, "why": "nobody listens", "status": None},
}}}  # fmt: skip


async def plan(*args: Any) -> list[Decision]:
    return [Decision("hn", 2, "SATURATED", "busy to <97%>", 100.0, 50.0), Decision("cn", 1, "FORECAST", "enough")]


async def world(root: Path) -> Gateway:
    """tiny/1 in halves with a canary tiny/2, other/1, requests of all kinds."""
    made = gateway(root, planned=plan)
    await made.models.start()
    for name, version in (("tiny", "1"), ("tiny", "2"), ("other", "1")):
        uri = made.folder(name, version)
        split(made.root / uri)
        await made.models.register(Registration(name, version, uri, "torch", load=True))
        if version == "1":
            await made.models.set_traffic(name, Traffic(latest=0))
        await made.settled()
    await made.models.set_traffic("tiny", Traffic(latest=0, weights={"1": 3.0, "2": 1.0}))
    await made.settled()
    inputs = (Tensor.of("x", np.array([0.5], np.float32)), Tensor.of("id", np.array([1], np.int64)))
    for version in ("1", "1", "2"):
        await made.models.infer(InferRequest("tiny", version, inputs))
    made.observation.add(Outcome(1.0, "tiny", "1", 1, 0.5, Times(1_000_000, 2_000_000, 3_000_000, 4_000_000)))
    made.observation.add(Outcome(1.0, "tiny", "1", 1, 0.5, error="HN_LOST: it ended"))
    made.runtimes.rules = {"tiny": Scaling.model_validate({"hn": {"max": 2}, "dry_run": True})}
    made.runtimes.loads = {"tiny": {"cn": Load(1, 0.1, 9.0), "hn": Load(1, 0.97, 9.0)}}
    statuses = [
        RuntimeStatus("torch HN", "2.0", 11, 1, 4, ("tiny/1",), "hn", 5, "2g.20gb of GPU 0", "split"),
        RuntimeStatus("torch CN", "2.0", 12, 0, 0, ("tiny/1",), "cn", 5, way="split"),
        RuntimeStatus("torch", "2.0", 0, 0, 0, ("other/1",), "hn"),
        RuntimeStatus("torch CN", "2.0", 13, 0, 0, ("far/1",), "cn", way="remote"),
    ]
    told: list[Mapping[str, Any]] = [HN, CN, {}, FAR]
    made.runtimes.status = lambda: statuses

    async def answers() -> list[tuple[RuntimeStatus, Mapping[str, Any]]]:
        return list(zip(statuses, told, strict=True))

    made.runtimes.told = answers
    for _ in range(2):
        made.clock.time += 10.0
        await made.scaling.look()
    return made


def split(folder: Path) -> None:
    """Halves by name alone, with a picture."""
    target = folder / manifest.FOLDER
    target.mkdir()
    tensors = (
        TensorInfo("x", "float32", (-1,), True, 4), TensorInfo("id", "int64", (-1,), True, 8),
        TensorInfo("rows", "float32", (-1, 4), True, 2048, "gather"),
        TensorInfo("predictions", "float32", (-1,), True, 4),
    )
    stages = (
        Stage("pre", "cn", "pre", ("id",), ("rows",), "a"),
        Stage("dense", "hn", "dense", ("rows", "x"), ("predictions",), "b"),
    )
    made = Manifest(
        "torch", "split", "limited by the rows", "c", ("x", "id"), ("predictions",), tensors, stages,
        (Transfer("pre", "dense", ("x",), ("rows",), 2052), Transfer("dense", "client", ("predictions",), (), 4)),
        Batching(True),
    )  # fmt: skip
    manifest.save(made, target)
    (target / manifest.PICTURE).write_text("<svg xmlns='http://www.w3.org/2000/svg'><text>rows</text></svg>")


def view_of(made: Gateway) -> View:
    mesh = Mesh({}, token=None, tls=None)
    return View(made.models, made.observation, made.runtimes, mesh, made.scaling, dashboards={})


def client(made: Gateway, view: View | None = None) -> httpx.AsyncClient:
    app = Starlette(routes=list(OpsFace(view or view_of(made), version="1.2.3").routes()))
    return httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://127.0.0.1:8000")


async def test_the_page_shows_versions_phases_processes_windows_and_failures(tmp_path: Path) -> None:
    made = await world(tmp_path)
    async with client(made) as http:
        page = (await http.get("/serving/")).text
        assert (await http.get("/serving?model=tiny")).headers["location"] == "/serving/?model=tiny"
        assert (await http.get("/serving/static/ops.css")).status_code == 200
        data = (await http.get("/serving/data")).json()
    for text in ("part-0", "queue", "infer", "2g.20gb of GPU 0", "1.0 MiB", "TOO_LATE: 2", "HN_LOST", "98.0 %"):
        assert text in page, text
    assert "&lt;97%&gt;" in page and "<97%>" not in page
    versions = {(row["model"], row["version"]): row for row in data["Versions"]}
    assert set(versions) == {("tiny", "1"), ("tiny", "2"), ("other", "1")}
    assert (versions["tiny", "1"]["weight"], versions["tiny", "2"]["weight"]) == ("75.0 %", "25.0 %")
    assert versions["tiny", "1"]["requests"] == 4 and versions["tiny", "1"]["errors"] == "1"
    [bars] = data["Where the time of a request goes"]
    assert bars["parts"] == ["queue", "input", "infer", "output"]
    assert [row["name"] for row in bars["rows"]] == ["tiny/2", "tiny/1"]
    first = bars["rows"][1]["parts"]
    assert first == pytest.approx([(1e-3 + 2e-8) / 3, (2e-3 + 4e-8) / 3, (3e-3 + 6e-8) / 3, (4e-3 + 8e-8) / 3])
    assert [(row["kind"], row["pid"], row["wait"]) for row in data["Processes"]] == [
        ("HN", "11", 4), ("CN", "12", 0), ("whole", "down", 0), ("CN", "13", 0),
    ]
    queues = [
        (row["process"], row["waits for the model"], row["window"], row["granted"])
        for row in data["Windows and queues"]
    ]
    assert queues == [
        ("HN 11", "tiny/1: 4", "1.0 MiB", "9 of 12"), ("CN 12", "tiny/1: 2", "", ""), ("CN 13", "far/1: 0", "", ""),
        ("HN tcp:hn-0:7000", "far/1: 6", "3.0 MiB", "9 of 12"), ("HN tcp:hn-1:7000", "nobody listens", "", ""),
    ]
    assert [tuple(row.values()) for row in data["Choice among HNs"]] == [
        ("tiny", 12, "a, b", "80", "4 (5.0 %)", "b", "none"), ("beside", 12, "a, b", "0", "none", "none", "a"),
    ]
    [tier] = data["Embeddings by tier"]
    assert (tier["table"], tier["hit rate"]) == ("items", "98.0 %") and "cached 80" in tier["answered by"]
    [failure] = data["Failures"]
    assert (failure["reason"], failure["requests"], failure["share of all"]) == ("HN_LOST", 1, "25.0 %")
    counts = next(plot for plot in data["Requests and processes"] if plot["title"] == "tiny: processes")
    assert "HN 2: SATURATED, busy to <97%>" in counts["note"]
    assert data["The cut"] == [] and data["What goes between CN and HN"] == []
    await made.models.stop()


async def test_one_model_has_its_own_page_with_its_cut(tmp_path: Path) -> None:
    made = await world(tmp_path)
    async with client(made) as http:
        page = (await http.get("/serving/?model=tiny")).text
        data = (await http.get("/serving/data?model=tiny")).json()
        picture = await http.get("/serving/cut/tiny/1.svg")
        assert (await http.get("/serving/cut/tiny/9.svg")).status_code == 404
        assert (await http.get("/serving/cut/..%2Ftiny/1.svg")).status_code == 404
        other = (await http.get("/serving/data?model=other")).json()
        (tmp_path / "models" / "tiny" / "1" / "split" / "cut.svg").unlink()
        without = (await http.get("/serving/data?model=tiny")).json()
    assert 'src="cut/tiny/1.svg"' in page and "limited by the rows" in page
    assert picture.headers["content-type"] == "image/svg+xml"
    assert "sandbox" in picture.headers["content-security-policy"]
    assert {row["model"] for row in data["Versions"]} == {"tiny"}
    assert [row["model"] for row in data["Choice among HNs"]] == ["tiny"]
    assert [row["version"] for row in data["What goes between CN and HN"]] == ["2"] * 3 + ["1"] * 3
    sent = [(row["from"], row["to"], row["tensor"], row["bytes"]) for row in data["What goes between CN and HN"][:3]]
    assert sent == [
        ("CN: pre", "HN: dense", "x", "4"), ("CN: pre", "HN: dense", "rows", "2,048"),
        ("HN: dense", "client", "predictions", "4"),
    ]
    assert other["Requests and processes"] == [] and [row["kind"] for row in other["Processes"]] == ["whole"]
    assert without["The cut"][1]["empty"] == "its folder has no split/cut.svg"
    await made.models.stop()


async def test_the_page_tells_what_is_in_halves_and_why_others_are_whole(tmp_path: Path) -> None:
    made = await world(tmp_path)
    shutil.rmtree(tmp_path / "models" / "other" / "1" / "split")
    async with client(made) as http:
        data = (await http.get("/serving/data")).json()
        other = (await http.get("/serving/data?model=other")).json()
        split(tmp_path / "models" / "other" / "1")
        since = (await http.get("/serving/data?model=other")).json()
    found = {(row["model"], row["version"]): row["runs as"] for row in data["Versions"]}
    why = "the model's folder has no split/split.json"
    assert (found["tiny", "1"], found["other", "1"]) == ("torch, in halves", f"torch, whole: {why}")
    assert [drawing["empty"] for drawing in other["The cut"]] == [f"served whole: {why}"]
    assert [row["runs as"] for row in since["Versions"]] == ["torch, whole: its folder was split since; load it again"]
    await made.models.stop()


async def test_what_could_not_be_loaded_is_there_with_the_reason(tmp_path: Path) -> None:
    made = await world(tmp_path)
    made.runtimes.broken["other/2"] = FailedPrecondition("no such GPU", reason="NO_SUCH_DEVICE")
    await made.models.register(Registration("other", "2", made.folder("other", "2"), "torch", load=True))
    await made.settled()
    await made.models.unload("tiny", "2")
    view = view_of(made)
    await view.refresh()
    async with client(made, view) as http:
        data = (await http.get("/serving/data")).json()
    states = {(row["model"], row["version"]): (row["state"], row["runs as"]) for row in data["Versions"]}
    assert states["other", "2"] == ("failed", "NO_SUCH_DEVICE: no such GPU")
    assert states["tiny", "2"] == ("not loaded", "unloaded on request")
    assert states["other", "1"][0] != "failed"
    await made.models.stop()


async def test_states_tell_rest_shadows_and_what_is_not_loaded(tmp_path: Path) -> None:
    made = await world(tmp_path)
    [resting] = made.models.serving.versions("other")
    await resting.rest(made.runtimes)
    made.observation.add(Outcome(1.0, "gone", "3", 1, 0.5))
    shadowed = made.models.serving.find("tiny", "2")
    assert shadowed is not None
    shadowed.runtime += "#shadow"
    shadowed.settings = shadowed.settings.model_copy(update={"scaling": Scaling()})
    async with client(made) as http:
        data = (await http.get("/serving/data")).json()
    states = {(row["model"], row["version"]): (row["state"], row["runs as"]) for row in data["Versions"]}
    assert states["other", "1"][0] == "at rest" and states["gone", "3"] == ("not loaded", "")
    assert states["tiny", "2"] == ("shadow", "torch, processes of its own")
    await made.models.stop()
