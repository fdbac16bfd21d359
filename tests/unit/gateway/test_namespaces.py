"""Keys with namespaces: which folders they may serve, which models their jobs may make; and registrations by event."""

import json
from pathlib import Path
from typing import Any

import pytest

from recmesh.pb import gateway_pb2
from recmesh.runtime.errors import InvalidArgument, NotFound, PermissionDenied
from recmesh.runtime.events import Event, serving
from services.gateway.app.audit import Audit
from services.gateway.domain.callers import Caller
from services.gateway.domain.models import Registration, State
from services.gateway.events.registrations import RegisterCommands
from services.gateway.rest.jobs import check_export, chosen, in_namespace
from services.gateway.wire import registry as wire
from tests.support.gateway import CARD, Gateway, gateway

ADS = Caller("ads", frozenset({"infer", "models", "jobs"}), namespaces=("ads",))
ROOT = Caller("root", namespaces=("ads",))


def folder(made: Gateway, where: str) -> str:
    path = made.root / where
    path.mkdir(parents=True)
    (path / "model.json").write_text(json.dumps(CARD))
    return where


@pytest.mark.asyncio
@pytest.mark.parametrize("where", ["namespaces/ads/ctr/1", "models/ads--ctr/1"])
async def test_a_namespace_s_own_folders_are_served(tmp_path: Path, where: str) -> None:
    made = gateway(tmp_path)
    await made.models.start()
    record = await made.models.register(
        Registration("ads--ctr", "", folder(made, where), "torch", load=True), caller=ADS
    )
    await made.settled()
    assert (await made.models.get("ads--ctr")).state is State.READY
    assert record.namespace == "ads"


@pytest.mark.asyncio
@pytest.mark.parametrize("where", ["namespaces/others/ctr/1", "models/others--ctr/1", "models/ctr/1"])
async def test_another_s_folder_is_refused_to_a_key_and_not_to_the_mesh(tmp_path: Path, where: str) -> None:
    made = gateway(tmp_path)
    wanted = Registration("ads--ctr", "", folder(made, where), "torch")
    with pytest.raises(InvalidArgument, match="lies outside namespaces/ads"):
        await made.models.register(wanted, caller=ADS)
    for caller in (ROOT, Caller("the mesh")):
        assert (await made.models.register(wanted, caller=caller)).namespace == ""


@pytest.mark.asyncio
async def test_a_link_that_leads_out_later_is_not_followed(tmp_path: Path) -> None:
    made = gateway(tmp_path)
    await made.models.start()
    uri = folder(made, "namespaces/ads/ctr/1")
    await made.models.register(Registration("ads--ctr", "", uri, "torch"), caller=ADS)
    (tmp_path / "models" / "ctr").mkdir(parents=True)
    (tmp_path / "models" / "ctr" / "model.pt2").write_text("secret")
    (tmp_path / uri / "model.pt2").symlink_to(tmp_path / "models" / "ctr" / "model.pt2")
    with pytest.raises(InvalidArgument, match="link out of namespace ads"):
        await made.models.load("ads--ctr")


@pytest.mark.asyncio
async def test_a_key_s_model_follows_jobs_of_its_namespace_alone(tmp_path: Path) -> None:
    made = gateway(tmp_path)

    def following(where: str, job_id: str, checkpoints: str) -> str:
        folder(made, where)
        apart = {
            "job_id": job_id, "checkpoints": checkpoints, "dense": {},
            "tables": [{"name": "item", "dim": 1, "features": [CARD["inputs"][1]["name"]]}],
        }
        (tmp_path / where / "model.json").write_text(json.dumps({**CARD, "apart": apart}))
        return where

    own, others = f"{tmp_path}/checkpoints/own", f"{tmp_path}/checkpoints/others"
    exported = following("models/ads--ctr/1", "own", own)
    by_key = Registration("ads--ctr", "", exported, "torch", "own")
    with pytest.raises(InvalidArgument, match="not checkpoints/own of a job"):
        await made.models.register(by_key, caller=ADS)
    await made.models.register(Registration("ads--ctr", "", exported, "torch", "own"))
    again = Registration("ads--again", "", exported, "torch", "own")
    assert (await made.models.register(again, caller=ADS)).namespace == "ads"
    for number, (job_id, place) in enumerate([("own", others), ("others", others), ("own", "namespaces/ads/made")]):
        where = following(f"namespaces/ads/{number}", job_id, place)
        wanted = Registration(f"ads--m{number}", "", where, "torch", "others")
        with pytest.raises(InvalidArgument) as refused:
            await made.models.register(wanted, caller=ADS)
        assert refused.value.violations[0].path == "model.json.apart.checkpoints"


@pytest.mark.parametrize(("spec", "error"), [
    ({"name": "ctr", "export": {"namespace": "ads"}}, ""),
    ({"name": "ads--ctr"}, ""),
    ({"name": "ctr", "export": None}, ""),
    ({"name": "ctr"}, "may not use model 'ctr'"),
    ({"name": "ads--ctr", "export": {"model_name": "others--ctr"}}, "may not use model 'others--ctr'"),
    ({"name": "ctr", "export": {"namespace": "others"}}, "may not use model 'others--ctr'"),
    ({"name": "c", "export": {"namespace": "ads", "serving": {"log": {}}}}, "may not write to topic 'predictions'"),
    ({"name": "c", "export": {"namespace": "ads", "serving": {"log": {"topic": "ads.seen"}}}}, ""),
])
def test_a_job_s_model_and_log_are_of_its_submitter_s_namespace(spec: dict[str, Any], error: str) -> None:
    check_export(spec, Caller("root"))
    if not error:
        check_export(spec, ADS)
        return
    with pytest.raises(PermissionDenied, match=error):
        check_export(spec, ADS)


def test_settings_of_serving_travel_over_grpc() -> None:
    message = gateway_pb2.RegisterRequest(name="a", serving_json='{"log": {"share": 0.5}, "max_batch_size": 8}')
    assert wire.registration(message).serving == {"log": {"share": 0.5}, "max_batch_size": 8}
    for wrong in ("{", "[]"):
        with pytest.raises(InvalidArgument, match="serving_json"):
            wire.registration(gateway_pb2.RegisterRequest(name="a", serving_json=wrong))


@pytest.mark.asyncio
async def test_a_registration_by_event_is_one_however_often_it_comes(tmp_path: Path) -> None:
    made = gateway(tmp_path)
    await made.models.start()
    data = serving.ModelRegister(name="tiny", uri=made.folder(), framework="torch", serving={"max_batch_size": 4})
    event = Event(serving.MODEL_REGISTER, "tiny", data, id="e1", source="/elsewhere")
    commands = RegisterCommands(made.models, Audit(made.facts.publish, clock=made.clock))
    for _ in range(2):
        await commands.handle(event)
    await made.settled()
    (record,) = await made.models.versions("tiny")
    assert (record.state, record.request_id, record.serving) == (State.READY, "/elsewhere/e1", {"max_batch_size": 4})
    early = serving.ModelRegister(name="tiny", uri="models/none", framework="torch")
    with pytest.raises(NotFound, match="is not there"):      # it comes again: the folder may be on its way
        await commands.handle(Event(serving.MODEL_REGISTER, "tiny", early))
    wrong = serving.ModelRegister(name="tiny", uri="models/tiny/1", framework="none")
    with pytest.raises(InvalidArgument, match="cannot be registered"):
        await commands.handle(Event(serving.MODEL_REGISTER, "tiny", wrong))
    lines = [(item.data, item.id) for item in made.facts.audit]
    told = [(line.actor, line.verb, line.object, line.outcome, id_) for line, id_ in lines]
    assert [entry[:4] for entry in told] == [
        ("/elsewhere", "register", "tiny", "done"), ("/elsewhere", "register", "tiny", "done"),
        ("", "register", "tiny", "refused"),
    ]
    assert told[0][4] == told[1][4], "a redelivery is no second line of the audit"


JOB: dict[str, Any] = {"name": "ctr", "model": {"zoo": "dlrm"}}
TWO = Caller("two", frozenset({"jobs"}), namespaces=("ads", "search"))


@pytest.mark.parametrize(("caller", "said", "meant"), [
    (ADS, None, "ads"), (ADS, "ads", "ads"), (TWO, "search", "search"), (ROOT, None, None), (ROOT, "x", "x"),
    (Caller("free", frozenset({"jobs"})), "x", "x"),
])  # fmt: skip
def test_a_job_is_in_its_key_s_namespace(caller: Caller, said: str | None, meant: str | None) -> None:
    spec = JOB | ({"namespace": said} if said else {})
    assert in_namespace(spec, caller).get("namespace") == meant
    assert chosen(said or "", caller) == (meant or "")


@pytest.mark.parametrize(("caller", "said", "words"), [
    (ADS, "search", "ads may have jobs in ads, not in 'search'"), (TWO, "", "must say which"),
])  # fmt: skip
def test_a_job_in_another_s_namespace_is_refused(caller: Caller, said: str, words: str) -> None:
    with pytest.raises(PermissionDenied, match=words):
        in_namespace(JOB | {"namespace": said}, caller)
    with pytest.raises(PermissionDenied, match=words):
        chosen(said, caller)
