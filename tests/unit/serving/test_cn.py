"""A CN: a request's way, retries, cancelling, admission. Over real connections, with programs of the test's."""

import functools
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from recmesh.runtime.errors import Aborted, DeadlineExceeded, Internal, MeshError, ResourceExhausted, Unavailable
from recmesh.serving.cn import halves
from recmesh.serving.cn.fleet import Fleet
from recmesh.serving.cn.loaded import Loaded
from recmesh.serving.cn.peers import HnLink
from recmesh.serving.transport.endpoints import Endpoint
from tests.support.serving import Calls, Held, RunningHn, cn_model, running_cn, running_hn, until


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
            first, together = program.runs
            assert (first, sorted(together)) == ([1], [2, 3, 4]), "by deadline, which may be equal"


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


def test_an_hn_that_is_no_longer_listed_answers_what_it_has_and_gets_nothing_more(tmp_path: Path) -> None:
    with running_hn(tmp_path, name="a") as first, running_hn(tmp_path, name="b") as second:
        programs = {str(hn.endpoint): hn.install() for hn in (first, second)}
        with running_cn(tmp_path, first, second) as (cn, client):
            for program in programs.values():
                program.hold.clear()
            client.send([1])
            until(lambda: any(program.runs for program in programs.values()))
            [leaving] = [hn for hn in (first, second) if programs[str(hn.endpoint)].runs]
            staying = second if leaving is first else first
            link = cn._hns.link(str(leaving.endpoint))
            assert link is not None
            cn.use([staying.endpoint])
            programs[str(staying.endpoint)].hold.set()
            assert client.predict([5]) == [17.0] and programs[str(staying.endpoint)].runs == [[6]]
            assert link.connected
            programs[str(leaving.endpoint)].hold.set()
            assert client.answer().tensors[0].array.tolist() == [5.0]
            until(lambda: not link.connected)
            cn.use([staying.endpoint, leaving.endpoint])    # it comes back
            again = cn._hns.link(str(leaving.endpoint))
            assert again is not None and again is not link
            until(lambda: again.connected)


def test_hns_are_reached_before_those_in_whose_place_they_are_are_left(tmp_path: Path) -> None:
    with running_hn(tmp_path, name="a") as first, running_hn(tmp_path, name="b") as second:
        runs = {str(hn.endpoint): hn.install().runs for hn in (first, second)}
        with running_cn(tmp_path, first) as (cn, client):
            for hn in (second, first) * 10:      # each time by a new connection
                cn.use([hn.endpoint])
                before = len(runs[str(hn.endpoint)])
                assert client.predict([1]) == [5.0] and len(runs[str(hn.endpoint)]) == before + 1


def test_an_hn_that_is_there_again_can_be_asked_when_the_cn_has_said_so(tmp_path: Path) -> None:
    with running_hn(tmp_path) as hn:
        hn.install()
        with running_cn(tmp_path, hn) as (cn, client):
            assert client.predict([1]) == [5.0]
            hn.break_off()
            until(lambda: bool(cn._hns.links()[0].refusal))
            cn.use([hn.endpoint])                # it is not: that does not take long to know
            with pytest.raises(Unavailable, match=str(hn.endpoint)):
                client.predict([1])
            with running_hn(tmp_path) as again:
                again.install()
                cn.use([again.endpoint])
                assert client.predict([1]) == [5.0]


def test_of_two_lists_of_hns_the_later_one_holds(tmp_path: Path) -> None:
    with running_hn(tmp_path, name="a") as first, running_hn(tmp_path, name="b") as second:
        first.install()
        second.install()
        silent = Endpoint.parse("tcp:127.0.0.1:9")
        with running_cn(tmp_path, first) as (cn, client):
            dial, tried, go_on = cn._hns._dial, threading.Event(), threading.Event()

            def slow(endpoint: Endpoint, **more: Any) -> Any:
                if endpoint == silent:
                    tried.set()
                    go_on.wait(60.0)
                    raise Unavailable("nobody is there")
                return dial(endpoint, **more)

            cn._hns._dial = slow
            earlier = threading.Thread(target=cn.use, args=([silent],), kwargs={"patience_s": 60.0})
            earlier.start()
            assert tried.wait(60.0)
            cn.use([second.endpoint])
            go_on.set()
            earlier.join(60.0)
            assert cn._hns.usual == (str(second.endpoint),) and client.predict([1]) == [5.0]


def test_a_cn_and_an_hn_tell_how_busy_they_were(tmp_path: Path) -> None:
    with running_hn(tmp_path) as hn:
        program = hn.install()
        with running_cn(tmp_path, hn) as (cn, client):
            program.hold.clear()
            client.send([1])
            assert program.running.wait(60.0)
            assert not cn.pinged()["idle"] and not hn.server.pinged()["idle"]
            first = hn.server.pinged()["busy_s"]["m/1"]
            until(lambda: hn.server.pinged()["busy_s"]["m/1"] > first)   # what runs counts, too
            program.hold.set()
            client.answer()
            until(lambda: hn.server.pinged()["idle"] and cn.pinged()["idle"])
            until(lambda: hn.server.pinged()["answered"] == {"m/1": 1} and cn.pinged()["answered"] == 1)
            still = hn.server.pinged()["busy_s"]["m/1"]
            assert hn.server.pinged()["busy_s"]["m/1"] == still and cn.pinged()["busy_s"] > 0


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
            until(lambda: hn.server._models["m/1"].queued == 0)
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


def test_a_model_that_is_asked_for_more_than_its_lookups_can_do_stops_no_other(tmp_path: Path) -> None:
    with running_hn(tmp_path) as hn, running_cn(tmp_path, hn, most_waiting=3) as (cn, client):
        order: list[str] = []
        heavy, light = Held("heavy", order), Held("light", order)
        light.hold.set()
        for key, pre in (("heavy/1", heavy), ("light/1", light)):
            hn.install(key)
            cn.install(cn_model(key, before=pre))
        client.send([1], model="heavy/1", left_s=30.0)
        until(lambda: bool(order))
        for _ in range(3):
            client.send([1], model="heavy/1", left_s=30.0)
        with pytest.raises(ResourceExhausted, match="3 requests wait"):
            client.predict([1], model="heavy/1", left_s=30.0)
        client.send([1], model="light/1")        # it is due after all of them
        until(lambda: cn.pinged()["queued"]["light/1"] == 1)
        heavy.hold.set()
        assert [client.answer().tensors[0].array.tolist() for _ in range(5)] == [[5.0]] * 5
        assert order == ["heavy", "light", "heavy", "heavy", "heavy"]


def test_a_request_whose_time_is_over_is_not_begun(tmp_path: Path) -> None:
    with running_hn(tmp_path) as hn:
        program = hn.install()
        with running_cn(tmp_path, hn) as (_, client), pytest.raises(DeadlineExceeded):
            client.predict([1], left_s=0.0)
        assert program.runs == []


@pytest.mark.parametrize("how", ["fails", "is slow"])
def test_an_hn_that_did_not_load_a_half_is_told_again_while_it_is_connected(
    how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(halves, "AGAIN_S", (0.01,))
    ready, told = threading.Event(), threading.Event()
    with running_hn(tmp_path, roots=[tmp_path]) as hn:

        def load(key: str, folder: Path, **_: Any) -> int:
            told.set()
            if how == "is slow":
                ready.wait(60.0)
            elif not ready.is_set():
                raise Unavailable("its storage is away")
            hn.install(key)
            return 0

        monkeypatch.setattr(hn.server, "load", load)
        with running_cn(tmp_path, hn) as (cn, client):
            fleet = cn._models["m/1"].fleet
            header = {"folder": str(tmp_path), "part": "dense", "settings": {}}
            until_s = time.monotonic() + (0.3 if how == "is slow" else 60.0)
            with pytest.raises(MeshError):
                cn._halves.load("m/1", header, fleet, until=until_s)
            assert told.wait(60.0) and fleet.able == []
            ready.set()
            until(lambda: fleet.able == [str(hn.endpoint)])
            assert client.predict([1]) == [5.0]


def test_a_half_that_is_wanted_no_more_is_not_asked_for_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(halves, "AGAIN_S", (0.01,))
    times: list[str] = []
    with running_hn(tmp_path, roots=[tmp_path]) as hn:

        def load(key: str, folder: Path, **_: Any) -> int:
            times.append(key)
            raise Unavailable("its storage is away")

        monkeypatch.setattr(hn.server, "load", load)
        with running_cn(tmp_path, hn) as (cn, _):
            fleet = cn._models["m/1"].fleet
            for key in ("m/1", "m/2"):
                header = {"folder": str(tmp_path), "part": "dense", "settings": {}}
                with pytest.raises(Unavailable, match="storage"):
                    cn._halves.load(key, header, fleet, until=time.monotonic() + 60.0)
            until(lambda: times.count("m/1") > 2)
            cn._halves.unload("m/1")
            at, others = times.count("m/1"), times.count("m/2")
            until(lambda: times.count("m/2") > others + 3)
            assert times.count("m/1") <= at + 1  # one may have been under way


def test_a_connection_to_an_hn_ends_with_the_last_model_that_named_it(tmp_path: Path) -> None:
    with running_hn(tmp_path, name="usual") as usual, running_hn(tmp_path, name="own") as own:
        program = own.install()
        with running_cn(tmp_path, usual) as (cn, _):
            known = cn._hns
            for _ in range(2):
                assert known.know([own.endpoint]) == (str(own.endpoint),)
            until(lambda: known.link(str(own.endpoint)).connected)  # type: ignore[union-attr]  # it is known
            known.forget([str(own.endpoint)])
            link = known.link(str(own.endpoint))
            assert link is not None and link.connected
            calls = Calls(link)
            program.hold.clear()
            calls.infer("asked", [1])
            assert program.running.wait(60.0)
            known.forget([str(own.endpoint)])
            assert [each.name for each in known.links()] == [str(usual.endpoint)] and len(own.listener._open) == 1
            program.hold.set()
            assert calls.scores("asked") == [2.0]
            until(lambda: not own.listener._open)
            known.know([own.endpoint])           # as if the model were loaded again
            until(lambda: known.link(str(own.endpoint)).connected)  # type: ignore[union-attr]  # as above


def test_an_hn_that_a_model_names_no_more_unloads_its_half(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with (
        running_hn(tmp_path, name="a", roots=[tmp_path]) as first,
        running_hn(tmp_path, name="b", roots=[tmp_path]) as second,
        running_cn(tmp_path, first, second) as (cn, client),
    ):

        def load(key: str, folder: Path, *, hn: RunningHn, **_: Any) -> int:
            hn.install(key)
            return 0

        for hn in (first, second):
            monkeypatch.setattr(hn.server, "load", functools.partial(load, hn=hn))
            fleet = Fleet(cn._hns.know([hn.endpoint]))
            header = {"folder": str(tmp_path), "part": "dense", "settings": {}}
            cn._halves.load("m/1", header, fleet, until=time.monotonic() + 60.0)
            cn._install(Loaded(cn_model(), fleet, is_usual=False))
            assert client.predict([1]) == [5.0]
        until(lambda: not first.server._models)
        assert client.predict([1]) == [5.0] and list(second.server._models) == ["m/1"]


def _predicts(client: object) -> bool:
    try:
        return client.predict([1]) == [5.0]  # type: ignore[attr-defined, no-any-return]  # a CnClient
    except Unavailable:
        return False
