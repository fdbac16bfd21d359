"""How requests of a CN get to HNs and back: hedging, ejection, giving places up, asks beside messages, what is told."""

import threading
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from recmesh.runtime.errors import Aborted, DeadlineExceeded, MeshError, ResourceExhausted
from recmesh.serving import metrics
from recmesh.serving.admission.domain.admission import Admission, Effects
from recmesh.serving.admission.domain.hedging import HedgeRules
from recmesh.serving.admission.messages import Ask, ToHn
from recmesh.serving.admission.settings import Settings
from recmesh.serving.cn.alarms import Alarms
from recmesh.serving.cn.peers import HnLink
from recmesh.serving.hn.desk import Desk
from recmesh.serving.hn.holders import Holders
from recmesh.serving.tensors import Tensor
from recmesh.serving.transport.endpoints import Endpoint, Listener, dialling
from tests.support.serving import Calls, CnClient, hn_link, running_cn, running_hn, until

PATIENT = Settings(grant_min_s=30.0)


class Noting(Admission):
    """Rules that note what they are asked."""

    def __init__(self) -> None:
        super().__init__(PATIENT)
        self.asks: list[Ask] = []

    def receive(self, peer: str, message: ToHn, now: float) -> Effects:
        if isinstance(message, Ask):
            self.asks.append(message)
        return super().receive(peer, message, now)


def test_a_second_hn_is_asked_when_the_first_takes_longer_than_usual(tmp_path: Path) -> None:
    with running_hn(tmp_path, name="a") as first, running_hn(tmp_path, name="b") as second:
        hns = [first, second]
        programs = [hn.install() for hn in hns]
        with running_cn(tmp_path, *hns, hedging=HedgeRules(share=1.0, quantile=0.5)) as (server, client):
            for _ in range(40):
                client.predict([1])
            for program in programs:
                program.hold.clear()
                program.running.clear()
            client.send([7])
            until(lambda: all(program.running.is_set() for program in programs))
            programs[0].hold.set()               # whichever was asked first: one answer is enough
            assert client.answer().tensors[0].array.tolist() == [23.0]
            [model] = server.state()["models"].values()
            assert 1 <= model["hedges"] <= model["calls"]
            programs[1].hold.set()
            until(lambda: all(hn.server.status()["models"]["m/1"]["running"] == 0 for hn in hns))
            assert client.predict([1]) == [5.0] and not server._flights


def test_a_second_hn_that_refuses_does_not_end_what_the_first_one_answers(tmp_path: Path) -> None:
    with running_hn(tmp_path, name="a") as first, running_hn(tmp_path, name="b") as second:
        programs = [hn.install() for hn in (first, second)]
        with running_cn(tmp_path, first, second, hedging=HedgeRules(share=1.0, quantile=0.5)) as (server, client):
            for _ in range(40):
                client.predict([1])
            for program in programs:
                program.hold.clear()
                program.running.clear()
            client.send([7])
            until(lambda: all(program.running.is_set() for program in programs))
            programs[0].broken = True            # not a reason to ask a third one
            programs[0].hold.set()
            until(lambda: any(len(flight.under_way) == 1 for flight in server._flights.values()))
            programs[1].hold.set()
            assert client.answer().tensors[0].array.tolist() == [23.0]


def test_whatever_one_request_runs_into_others_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with running_hn(tmp_path) as hn:
        hn.install()
        with running_cn(tmp_path, hn) as (server, client):
            def broken(*_: Any) -> None:
                raise KeyError("of nobody's knowledge")

            with monkeypatch.context() as patched:
                patched.setattr(server._dispatch, "_done", broken)
                client.send([1])
                with pytest.raises(MeshError, match="of nobody's knowledge"):
                    client.answer()
            assert client.predict([1]) == [5.0]


def test_a_large_message_that_is_cancelled_before_it_is_sent_never_is(tmp_path: Path) -> None:
    with running_hn(tmp_path) as hn, hn_link(hn) as link:
        program = hn.install()
        link._unsent.add(7)                      # as `call` leaves it for the thread that sends
        assert link.cancel(7) and not link.cancel(7)
        calls = Calls(link)
        calls.infer("next", [1.0])
        assert calls.scores("next") == [2.0] and len(program.runs) == 1


def test_without_a_budget_no_second_hn_is_asked(tmp_path: Path) -> None:
    with running_hn(tmp_path, name="a") as first, running_hn(tmp_path, name="b") as second:
        programs = [hn.install() for hn in (first, second)]
        with running_cn(tmp_path, first, second, hedging=HedgeRules(share=0.0, quantile=0.5)) as (server, client):
            for _ in range(40):
                client.predict([1])
            before = sum(len(program.runs) for program in programs)
            for program in programs:
                program.hold.clear()
            client.send([7])
            until(lambda: sum(len(program.runs) for program in programs) == before + 1)
            time.sleep(0.1)                      # far beyond the usual
            assert sum(len(program.runs) for program in programs) == before + 1 == 41
            for program in programs:
                program.hold.set()
            client.answer()
            assert server.state()["models"]["m/1"]["hedges"] == 0


def test_an_hn_that_fails_in_a_row_is_left_alone_and_no_request_fails_by_it(tmp_path: Path) -> None:
    with running_hn(tmp_path, name="a") as without, running_hn(tmp_path, name="b") as second:
        second.install()
        with running_cn(tmp_path, without, second) as (server, client):
            ejected: Callable[[], list[str]] = lambda: server.state()["models"]["m/1"]["ejected"]  # noqa: E731 (typed)
            until(lambda: client.predict([1]) == [5.0] and ejected() == [str(without.endpoint)])


def test_a_request_that_waits_for_a_grant_gives_its_place_up_when_it_is_cancelled(tmp_path: Path) -> None:
    made = Desk(Settings(grant_min_s=60.0, window_start_bytes=1, window_min_bytes=1))
    with running_hn(tmp_path, desk=made) as hn, hn_link(hn) as holder:
        hn.install()
        holder.tell(Ask(1, "m/1", 1000))
        until(lambda: made.snapshot().in_flight_bytes == 1000)
        with running_cn(tmp_path, hn) as (server, client):
            call = client.send([1])
            until(lambda: made.snapshot().waiting == 1)
            client.cancel(call)
            with pytest.raises(Aborted):
                client.answer()
            until(lambda: made.snapshot().waiting == 0)
            assert made.snapshot().in_flight_bytes == 1000 and not server._flights
            client.send([1])
            until(lambda: made.snapshot().waiting == 1)
            client.close()                       # who goes away without a word is the same
            until(lambda: made.snapshot().waiting == 0)


def test_an_hn_is_told_how_large_the_answer_will_be(tmp_path: Path) -> None:
    rules = Noting()
    with running_hn(tmp_path, desk=Desk(PATIENT, rules=rules)) as hn:
        hn.install()
        with running_cn(tmp_path, hn) as (_, client):
            client.predict([1, 2])
            client.predict([1, 2, 3, 4])
            assert [ask.return_bytes for ask in rules.asks] == [0, 16]


def test_over_tcp_asks_have_a_connection_of_their_own_and_a_cn_that_is_gone_holds_no_window(tmp_path: Path) -> None:
    made = Desk(Settings(grant_min_s=60.0))
    with running_hn(tmp_path, desk=made, carrier="tcp") as hn:
        hn.install()
        with running_cn(tmp_path, hn) as (_, client):
            for x in range(20):
                assert client.predict([x]) == [2.0 * (x + 1) + x]
            assert len(hn.transports) == 2
            until(lambda: made.snapshot().in_flight_bytes == 0)
            seen = made.snapshot()
            assert (seen.granted, seen.arrived, seen.came_too_late) == (20, 20, 0)
            with hn_link(hn) as dying:
                dying.tell(Ask(1, "m/1", 1000))
                until(lambda: made.snapshot().in_flight_bytes == 1000)
            until(lambda: made.snapshot().in_flight_bytes == 0)
            assert client.predict([1]) == [5.0]


def test_a_grant_is_its_peers_alone(tmp_path: Path) -> None:
    made = Desk(PATIENT)
    with running_hn(tmp_path, desk=made, carrier="tcp") as hn, hn_link(hn) as one, hn_link(hn) as other:
        program = hn.install()
        one.tell(Ask(1, "m/1", 4))
        until(lambda: made.snapshot().granted == 1)
        calls = Calls(other)
        calls.infer("a", [1], grant=1)
        refused = calls.of("a")
        assert isinstance(refused, ResourceExhausted) and refused.reason == "NOT_GRANTED" and program.runs == []


def test_a_cn_tells_its_state_and_that_of_its_hns(tmp_path: Path) -> None:
    with running_hn(tmp_path, name="a", desk=Desk(PATIENT)) as first, running_hn(tmp_path, name="b") as gone:
        first.install()
        with running_cn(tmp_path, first, gone) as (_, client):
            client.predict([1])
            gone.break_off()
            until(lambda: not status(client)["hns"][str(gone.endpoint)]["connected"])
            told = status(client)
            assert told["role"] == "cn" and told["models"]["m/1"]["hns"] == [str(first.endpoint), str(gone.endpoint)]
            hn = told["hns"][str(first.endpoint)]
            assert hn["connected"] and hn["admits"] and (hn["in_flight"], hn["asks"]) == (0, 0)
            assert hn["status"]["models"]["m/1"]["queued"] == 0
            assert hn["status"]["admission"]["granted"] == 1 and hn["status"]["admission"]["refused"] == {}
            assert hn["status"]["admission"]["window_bytes"] == PATIENT.window_start_bytes
            missing = told["hns"][str(gone.endpoint)]
            assert missing["status"] is None and missing["why"]


def test_an_hn_that_takes_nothing_costs_a_large_message_its_deadline_and_nobody_has_to_wait_for_it() -> None:
    listener, ended = Listener(Endpoint.parse("tcp:127.0.0.1:0"), token=None, log=print), threading.Event()
    threading.Thread(target=listener.accept, args=(lambda transport: ended.wait() and None,), daemon=True).start()
    link = HnLink(listener.endpoint, dial=dialling(token=None), alarms=Alarms(), log=print)
    until(lambda: link.connected)
    outcomes: list[object] = []
    large = [Tensor.of("rows", np.zeros(64 << 20, np.uint8))]    # more than any buffer on the way
    for _ in range(2):
        link.call({"op": "infer"}, large, deadline=time.monotonic() + 0.2, done=outcomes.append)
    until(lambda: len(outcomes) == 2)
    assert all(isinstance(each, DeadlineExceeded) for each in outcomes), outcomes
    ended.set()
    link.close()
    listener.close()


def test_alarms_ring_in_order_and_not_when_they_were_taken_back() -> None:
    alarms, rang, now = Alarms(), [], time.monotonic()
    kept = [alarms.set(now + 0.02 * (3 - number), lambda number=number: rang.append(number)) for number in range(3)]  # type: ignore[misc]  # bound to this one
    for _ in range(2000):                        # enough for the heap to be made anew
        alarms.set(now + 30.0, lambda: rang.append(-1)).cancel()
    kept[1].cancel()
    until(lambda: len(rang) == 2)
    assert rang == [2, 0] and len(alarms._heap) < 1000


def test_a_model_is_unloaded_by_its_last_holder_or_long_after_that_one_was_lost() -> None:
    holders = Holders(keep_s=10.0)
    holders.hold("m/1", "a")
    holders.hold("m/1", "b")
    assert not holders.release("m/1", "a") and holders.release("m/1", "b") and not holders.release("m/1", "b")
    holders.hold("m/2", "a")
    holders.hold("m/3", "a")
    holders.lost("a", now=5.0)
    holders.hold("m/2", "b")                     # it came back, by another connection
    assert holders.unwanted(14.9) == [] and holders.unwanted(15.0) == ["m/3"] and holders.of("m/2") == 1


def status(client: CnClient) -> dict[str, Any]:
    client._transport.send({"op": "status", "call": 99})
    told: dict[str, Any] = client.answer().header["status"]
    return told


def test_state_is_told_to_prometheus(tmp_path: Path) -> None:
    with running_hn(tmp_path, desk=Desk(PATIENT)) as hn:
        hn.install()
        with running_cn(tmp_path, hn) as (server, client):
            client.predict([1])
            until(lambda: hn.server.status()["models"]["m/1"]["running"] == 0)
            told = "".join(scraped(state) for state in (hn.server.status, server.state))
            assert 'recmesh_hn_queued{model="m/1"} 0.0' in told and 'recmesh_cn_calls_total{model="m/1"} 1.0' in told
            assert "recmesh_hn_admission_granted_total 1.0" in told
            assert "recmesh_hn_admission_window_bytes 1.048576e+06" in told


def scraped(state: Callable[[], dict[str, Any]]) -> str:
    url = metrics.serve("127.0.0.1:0", state)
    text: str = urllib.request.urlopen(f"{url}/metrics", timeout=10).read().decode()
    return text
