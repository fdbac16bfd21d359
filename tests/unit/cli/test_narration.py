"""`recmesh events`: a line for each event, in words, and what is only measured hidden unless it is asked for."""

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest

from recmesh.cli import job_verbs, narration
from recmesh.cli.output import Shape
from recmesh.client.views import Event
from recmesh.runtime.errors import InvalidArgument
from recmesh.runtime.events import types

AT = 1_700_000_000.0
PARTITION = {"partition": "jetstream:flights-0", "offset": 3, "end": 10, "lag_s": 4.5, "state": "assigned"}
EVENTS: list[tuple[str, dict[str, Any]]] = [
    ("job.submitted", {"name": "ads", "owner": "me", "submitter": "rest"}),
    ("topic.observed", {"at": AT, "lag_s": 4.5,
                        "partitions": [PARTITION, PARTITION | {"partition": "p1", "end": 2003}]}),
    ("job.progressed", {"samples": 5000, "total": 0, "samples_per_s": 250.0, "loss": 0.5, "auc": None}),
    ("job.measured", {"at": AT, "samples": 36351, "loss": 0.365, "auc": {"late": 0.649}}),
    ("job.decided", {"decision": 2, "matter": "demand", "place": "", "seen": "589/s come", "decided": "worker 1 → 4"}),
    ("job.role_exited", {"role": "worker", "index": 1, "incarnation": "ab" * 16, "exit_code": 75,
                         "reason": "asked to go", "expected": True}),
    ("job.role_exited", {"role": "ps", "index": 0, "exit_code": -9, "reason": "killed", "expected": False}),
    ("forecast.updated", {"series": "topic/a", "model": "mean", "step_s": 10.0, "start": AT, "horizon": 24}),
]  # fmt: skip


class FakeMesh:
    """Has one job."""

    def __enter__(self) -> "FakeMesh":
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def find_job(self, job: str) -> str:
        return job

    def events(self, job_id: str) -> Iterator[Event]:
        for n, (name, data) in enumerate(EVENTS):
            told = {"job_id": job_id, **data}
            yield Event.model_validate({"sequence": n + 1, "type": name, "time": AT + n, "data": told})


@pytest.fixture
def mesh(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_verbs, "connect", lambda home: FakeMesh())


def shown(capsys: pytest.CaptureFixture[str], **asked: Any) -> tuple[list[str], str]:
    job_verbs.events("ads", **asked)
    told = capsys.readouterr()
    return told.out.splitlines(), told.err


@pytest.mark.usefixtures("mesh")
def test_what_is_measured_again_and_again_is_hidden_and_counted(capsys: pytest.CaptureFixture[str]) -> None:
    lines, told = shown(capsys)
    assert [line.split()[2] for line in lines] == [
        "job.submitted", "job.decided", "job.role_exited", "job.role_exited", "forecast.updated",
    ]
    assert "hidden: 1 job.measured, 1 job.progressed, 1 topic.observed" in told and "--all" in told
    everything, told = shown(capsys, everything=True)
    assert len(everything) == len(EVENTS) and told == ""
    [one], told = shown(capsys, type_=["topic.*"])
    assert "topic.observed" in one and told == ""


@pytest.mark.usefixtures("mesh")
def test_json_has_every_event_whole(capsys: pytest.CaptureFixture[str]) -> None:
    lines, told = shown(capsys, shape=Shape.JSON)
    assert [(each["type"], each["data"]) for each in map(json.loads, lines)] == [
        (name, {"job_id": "ads", **data}) for name, data in EVENTS
    ]
    assert told == ""


@pytest.mark.usefixtures("mesh")
def test_each_event_is_one_line_of_words_without_raw_times_or_dicts(capsys: pytest.CaptureFixture[str]) -> None:
    lines, _ = shown(capsys, everything=True)
    text = "\n".join(lines)
    assert len(lines) == len(EVENTS) and not re.search(r"[{}\[\]]|1,?700,?000", text)
    told = [line.split(maxsplit=3)[3] for line in lines]
    assert told[1] == "2,007 messages behind on 2 partitions, the oldest came 4s ago"
    assert told[2] == "5,000 samples, 250 samples/s, loss 0.5000"
    assert told[3].endswith(": 36,351 samples, loss 0.3650, AUC of late 0.6490")
    assert told[4] == "2, demand: worker 1 → 4, for 589/s come"
    assert told[5] == "worker-1, as was to be: asked to go"
    assert told[6] == "ps-0, exit code -9: killed"


def test_a_type_that_no_event_has_is_refused_with_the_nearest() -> None:
    with pytest.raises(InvalidArgument) as caught:
        narration.check_types(["topic.observd", "job.*"])
    assert [str(each) for each in caught.value.violations] == [
        "--type: no event is topic.observd; did you mean topic.observed?"
    ]


def test_the_words_are_of_types_and_fields_that_there_are() -> None:
    known = {each.name: each for each in types.EVENTS}
    assert set(narration._WORDS) | narration.PERIODIC <= set(known)


def test_an_event_of_another_version_is_told_by_its_fields() -> None:
    event = Event.model_validate({"type": "job.decided", "time": AT, "data": {"verdict": "stay", "seen_bytes": 2048}})
    assert narration.line(event).endswith("verdict stay, seen_bytes 2.0 KiB")
