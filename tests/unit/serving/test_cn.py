"""A CN: a request's way, retries, cancelling, admission. Over real connections, with programs of the test's."""

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest

from recmesh.runtime.errors import Aborted, DeadlineExceeded, Internal, ResourceExhausted, Unavailable
from recmesh.serving.cn.admission import Asking, Decided, Grant
from recmesh.serving.cn.choice import LeastExpected
from recmesh.serving.cn.peers import HnLink
from tests.support.serving import running_cn, running_hn, until


def test_a_request_goes_through_pre_dense_and_post(tmp_path: Path) -> None:
    with running_hn(tmp_path) as hn:
        program = hn.install()
        with running_cn(tmp_path, hn) as (_, client):
            client.send([1, 2])
            message = client.answer()
            assert message.tensors[0].array.tolist() == [5.0, 8.0]
            assert program.runs == [[2, 3]]
            phases = message.header
            assert min(phases[f"{name}_ns"] for name in ("queue", "input", "compute", "output")) >= 0
            assert phases["split"]["hn"] == str(hn.endpoint) and phases["split"]["transfer_ns"] > 0


def test_requests_of_one_cn_are_run_together(tmp_path: Path) -> None:
    with running_hn(tmp_path) as hn:
        program = hn.install(max_batch_size=8)
        with running_cn(tmp_path, hn) as (_, client):
            program.hold.clear()
            client.send([0])
            assert program.running.wait(60.0)
            for x in (1, 2, 3):
                client.send([x])
            until(lambda: hn.server._models["m/1"].queued == 3)
            program.hold.set()
            answers = {client_answer.header["call"]: client_answer.tensors[0].array.tolist()
                       for client_answer in (client.answer() for _ in range(4))}  # fmt: skip
            assert answers == {1: [2.0], 2: [5.0], 3: [8.0], 4: [11.0]}
            assert program.runs == [[1], [2, 3, 4]]


def test_a_request_in_an_hn_that_dies_is_answered_by_another(tmp_path: Path) -> None:
    with running_hn(tmp_path, name="a") as first, running_hn(tmp_path, name="b") as second:
        programs = {str(hn.endpoint): hn.install() for hn in (first, second)}
        with running_cn(tmp_path, first, second) as (_, client):
            for program in programs.values():
                program.hold.clear()
            client.send([1])
            until(lambda: any(program.runs for program in programs.values()))
            [dying] = [hn for hn in (first, second) if programs[str(hn.endpoint)].runs]
            other = programs[str((second if dying is first else first).endpoint)]
            other.hold.set()
            dying.break_off()
            assert client.answer().tensors[0].array.tolist() == [5.0]
            assert other.runs == [[2]]
            programs[str(dying.endpoint)].hold.set()


def test_halves_of_two_models_are_never_mixed(tmp_path: Path) -> None:
    with running_hn(tmp_path, name="a") as first, running_hn(tmp_path, name="b") as second:
        other = first.install(digest="of another export")
        with running_cn(tmp_path, first, second) as (_, client):
            with pytest.raises(Unavailable) as caught:
                client.predict([1])
            assert caught.value.reason in ("OTHER_HALF", "NOT_LOADED") and other.runs == []
            second.install()
            assert [client.predict([1]) for _ in range(4)] == [[5.0]] * 4
            assert other.runs == []


def test_a_send_that_fails_unexpectedly_fails_its_request_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with running_hn(tmp_path) as hn, running_cn(tmp_path, hn) as (_, client):
        hn.install()
        with monkeypatch.context() as patch:
            patch.setattr(HnLink, "call", lambda *_, **__: 1 / 0)
            with pytest.raises(Internal, match="ZeroDivisionError"):
                client.predict([1])
        assert client.predict([1]) == [5.0]


def test_without_another_hn_it_fails_at_once_and_the_next_ones_say_who_is_missing(tmp_path: Path) -> None:
    with running_hn(tmp_path) as hn:
        program = hn.install()
        with running_cn(tmp_path, hn) as (_, client):
            program.hold.clear()
            client.send([1])
            assert program.running.wait(60.0)
            hn.break_off()
            with pytest.raises(Unavailable, match="ended before it answered"):
                client.answer()
            with pytest.raises(Unavailable, match=str(hn.endpoint)):
                client.predict([1])
            program.hold.set()
            with running_hn(tmp_path) as again:
                again.install()
                until(lambda: bool(again.transports))
                until(lambda: _predicts(client))


def test_a_cancel_reaches_the_hn(tmp_path: Path) -> None:
    with running_hn(tmp_path) as hn:
        program = hn.install()
        with running_cn(tmp_path, hn) as (server, client):
            program.hold.clear()
            client.send([0])
            assert program.running.wait(60.0)
            unwanted = client.send([1])
            until(lambda: hn.server._models["m/1"].queued == 1)
            client.cancel(unwanted)
            with pytest.raises(Aborted):
                client.answer()
            program.hold.set()
            assert client.answer().tensors[0].array.tolist() == [2.0]
            assert program.runs == [[1]] and not server._flights


def test_a_caller_that_goes_away_takes_its_requests_with_it(tmp_path: Path) -> None:
    with running_hn(tmp_path) as hn:
        program = hn.install()
        with running_cn(tmp_path, hn) as (server, client):
            program.hold.clear()
            client.send([0])
            assert program.running.wait(60.0)
            client.send([1])
            until(lambda: hn.server._models["m/1"].queued == 1)
            client.close()
            until(lambda: hn.server._models["m/1"].queued == 0)
            program.hold.set()
            until(lambda: not server._flights)
            assert program.runs == [[1]]


def test_an_hn_that_hangs_costs_the_deadline_and_no_more(tmp_path: Path) -> None:
    with running_hn(tmp_path) as hn:
        program = hn.install()
        with running_cn(tmp_path, hn) as (server, client):
            program.hold.clear()
            with pytest.raises(DeadlineExceeded):
                client.predict([1], left_s=0.2)
            assert not server._flights
            program.hold.set()
            assert client.predict([1]) == [5.0]


def test_a_request_whose_time_is_over_is_not_begun(tmp_path: Path) -> None:
    with running_hn(tmp_path) as hn:
        program = hn.install()
        with running_cn(tmp_path, hn) as (_, client), pytest.raises(DeadlineExceeded):
            client.predict([1], left_s=0.0)
        assert program.runs == []


@dataclass(slots=True)
class OneAtATime:
    """Admission that grants one request at a time, and refuses models of a name."""

    waiting: list[tuple[Asking, Decided]] = field(default_factory=list)
    asked: list[Asking] = field(default_factory=list)
    granted: int = 0
    most: int = 0

    def ask(self, asking: Asking, decided: Decided) -> None:
        self.asked.append(asking)
        if asking.priority == 9:
            decided(ResourceExhausted("no room", reason="NO_WINDOW"))
            return
        self.waiting.append((asking, decided))
        self._grant()

    def release(self, grant: Grant, *, sent: bool) -> None:
        self.granted -= 1
        self._grant()

    def _grant(self) -> None:
        if self.waiting and not self.granted:
            asking, decided = self.waiting.pop(0)
            self.granted += 1
            self.most = max(self.most, self.granted)
            decided(Grant(asking.hn))


def test_nothing_is_sent_before_it_is_granted_and_each_grant_comes_back(tmp_path: Path) -> None:
    admission = OneAtATime()
    with running_hn(tmp_path) as hn:
        program = hn.install()
        with running_cn(tmp_path, hn, admission=admission) as (_, client):
            program.hold.clear()
            for x in (0, 1, 2):
                client.send([x])
            assert program.running.wait(60.0)
            until(lambda: len(admission.asked) == 3)
            assert hn.server._models["m/1"].queued == 0
            program.hold.set()
            for _ in range(3):
                client.answer()
            with pytest.raises(ResourceExhausted, match="no room"):
                client.predict([1], priority=9)
            until(lambda: admission.granted == 0)
            assert admission.asked[0].size_bytes == np.zeros(1, np.float32).nbytes and len(program.runs) == 3


def test_the_hn_that_is_expected_to_answer_first_is_asked() -> None:
    choice = LeastExpected()
    assert choice.choose(["a", "b"], [3, 0]) == "b"          # none has answered yet: the idle one
    choice.observed("a", 0.010)
    choice.observed("b", 0.050)
    assert choice.choose(["a", "b"], [0, 0]) == "a"
    assert choice.choose(["a", "b"], [9, 0]) == "b"


def _predicts(client: object) -> bool:
    try:
        return client.predict([1]) == [5.0]  # type: ignore[attr-defined, no-any-return]  # a CnClient
    except Unavailable:
        return False
