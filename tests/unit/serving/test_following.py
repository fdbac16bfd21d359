"""Halves of a model that follows its job: both are of one version, whichever HN is late, forgets, dies, comes back."""

import contextlib
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from recmesh.runtime.errors import InvalidArgument, MeshError, ResourceExhausted, Unavailable
from recmesh.serving.frames import Header
from recmesh.serving.fresh import asking
from recmesh.serving.fresh.sparse import MOST_ASKED
from recmesh.serving.hn.followed import MOST_OF_ONE, Followed
from recmesh.serving.tensors import Tensor
from tests.support.halves_that_follow import PLACES, ROWS, Summing, World
from tests.support.serving import Calls, hn_link, running_hn, until


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def test_a_version_serves_once_all_hns_hold_it_and_those_before_are_released(world: World) -> None:
    with running_hn(world.folder, name="a") as first, running_hn(world.folder, name="b", carrier="tcp") as second:
        (_, early), (late, held) = world.install(first), world.install(second)
        with world.cn(first, second) as cn:
            assert cn.ask() == 1
            late.gate.clear()
            world.commit(2)
            until(lambda: early.versions == [1, 2])
            assert [cn.ask() for _ in range(10)] == [1] * 10, "the other does not hold it"
            late.gate.set()
            cn.serves(2)
            until(lambda: early.versions == held.versions == [2])
            told = cn.following.status()
            assert (told["version"], list(told["hns"].values())) == (2, [[2], [2]])
            assert (told["left_out"], told["error"]) == ([], "")


def test_an_hn_that_is_late_is_left_out_until_it_holds_what_serves(world: World) -> None:
    with running_hn(world.folder, name="a") as first, running_hn(world.folder, name="b") as second:
        (prompt, _), (late, held) = world.install(first), world.install(second)
        with world.cn(first, second, patience_s=0.05) as cn:
            until(lambda: len(cn.fleet.able) == 2)
            late.gate.clear()
            world.commit(2)
            cn.serves(2)
            world.commit(3)
            cn.serves(3)
            assert cn.fleet.able == [str(first.endpoint)]
            assert cn.following.status()["left_out"] == [str(second.endpoint)]
            asked = len(prompt.sizes)
            assert {cn.ask() for _ in range(10)} == {3} and len(prompt.sizes) == asked + 10
            late.gate.set()
            until(lambda: len(cn.fleet.able) == 2)
            until(lambda: held.versions == [3])


def test_an_old_version_is_held_until_no_request_is_of_it(world: World) -> None:
    with running_hn(world.folder) as hn:
        program, half = world.install(hn)
        with world.cn(hn) as cn:
            program.running.clear()
            program.hold.clear()
            cn.send()
            assert program.running.wait(60.0)
            for number in (2, 3):
                world.commit(number)
                until(lambda number=number: cn.following.sparse.version.number == number)  # type: ignore[misc]
            until(lambda: half.versions == [1, 3])
            program.hold.set()
            assert cn.answer() == 1, "it was begun by version 1, and ends by it"
            until(lambda: half.versions == [3])


def test_an_hn_that_dies_is_not_waited_for_and_one_that_comes_back_is_told(world: World) -> None:
    with running_hn(world.folder, name="a") as first, contextlib.ExitStack() as stack:
        second = stack.enter_context(running_hn(world.folder, name="b"))
        world.install(first)
        late, _ = world.install(second)
        with world.cn(first, second) as cn:
            until(lambda: len(cn.fleet.able) == 2)
            late.gate.clear()
            world.commit(2)
            until(lambda: 2 in cn.following.status()["hns"][str(first.endpoint)])
            assert cn.ask() == 1
            second.break_off()
            late.gate.set()
            cn.serves(2)
            again = stack.enter_context(running_hn(world.folder, name="b"))
            _, held = world.install(again)
            until(lambda: len(cn.fleet.able) == 2)
            assert held.versions == [2]
            world.commit(3)
            cn.serves(3)
            until(lambda: held.versions == [3])


def test_a_request_of_a_version_that_an_hn_has_forgotten_is_begun_anew(world: World) -> None:
    with running_hn(world.folder, name="a") as first, running_hn(world.folder, name="b") as second:
        halves = [world.install(hn)[1] for hn in (first, second)]
        with world.cn(first, second) as cn:
            until(lambda: len(cn.fleet.able) == 2)
            for half in halves:
                half.keep([])                    # as if it had been loaded anew
                until(lambda half=half: cn.ask() == 1 and half.versions == [1])  # type: ignore[misc]  # this one


def test_a_request_whose_version_nobody_holds_any_more_is_made_one_of_the_newest(world: World) -> None:
    with running_hn(world.folder, name="a") as first, running_hn(world.folder, name="b") as second:
        hns = [(hn, *world.install(hn)) for hn in (first, second)]
        with world.cn(first, second) as cn:
            until(lambda: len(cn.fleet.able) == 2)
            for _, program, _ in hns:
                program.running.clear()
                program.hold.clear()
            cn.send()
            until(lambda: any(program.running.is_set() for _, program, _ in hns))
            hns.sort(key=lambda each: not each[1].running.is_set())
            (busy, _, _), (_, program, half) = hns
            world.commit(2)
            until(lambda: cn.following.sparse.version.number == 2 and half.versions == [1, 2])
            half.release([1], next(iter(half._holders[1])))
            program.hold.set()
            busy.break_off()
            assert cn.answer() == 2


def test_without_an_hn_that_holds_it_no_version_is_installed(world: World) -> None:
    with running_hn(world.folder) as hn:
        program, _ = world.install(hn)
        with world.cn(hn, most_s=0.05) as cn:
            program.gate.clear()
            world.commit(2)
            until(lambda: "no HN holds version 2" in cn.following.status()["error"])
            assert cn.ask() == 1
            program.gate.set()
            cn.serves(2)
            assert not cn.following.status()["error"]


def test_a_rollback_is_of_both_halves_and_answers_when_it_serves(world: World) -> None:
    with running_hn(world.folder) as hn:
        _, half = world.install(hn)
        with world.cn(hn) as cn:
            for number in (2, 3):
                world.commit(number)
            cn.serves(3)
            follower = cn.following.sparse.follower
            follower.roll_back(2)
            assert cn.ask() == 2
            world.commit(4)
            assert not follower.look() and cn.ask() == 2
            until(lambda: half.versions == [2])
            follower.resume()
            cn.serves(4)


def test_what_a_cn_had_held_goes_with_its_connection(world: World) -> None:
    with running_hn(world.folder) as hn:
        _, half = world.install(hn)
        with world.cn(hn) as cn:
            assert (cn.ask(), half.versions) == (1, [1])
            before = set(half._holders[1])
            for transport in hn.transports:
                transport.close()
            until(lambda: before.isdisjoint(half._holders.get(1, ())))
            until(lambda: half.versions == [1])  # it connects again
            until(lambda: bool(cn.fleet.able))
            assert cn.ask() == 1
        until(lambda: half.versions == [])


def test_an_hn_that_joins_is_asked_once_it_holds_what_serves_and_one_that_leaves_no_more(world: World) -> None:
    with running_hn(world.folder, name="a") as first, running_hn(world.folder, name="b") as second:
        world.install(first)
        program, held = world.install(second)
        with world.cn(first) as cn:
            world.commit(2)
            cn.serves(2)
            program.gate.clear()
            cn.server.use([first.endpoint, second.endpoint], patience_s=0.05)
            until(lambda: str(second.endpoint) in cn.following.status()["hns"])
            assert cn.fleet.able == [str(first.endpoint)]
            program.gate.set()
            until(lambda: len(cn.fleet.able) == 2)
            assert held.versions == [2]
            cn.server.use([second.endpoint])
            assert [cn.ask() for _ in range(3)] == [2] * 3 and cn.fleet.able == [str(second.endpoint)]
            world.commit(3)
            cn.serves(3)


def test_an_hn_is_asked_until_the_one_in_its_place_holds_what_serves(world: World) -> None:
    with running_hn(world.folder, name="a") as first, running_hn(world.folder, name="b") as second:
        world.install(first)
        program, _ = world.install(second)
        with world.cn(first) as cn:
            world.commit(2)
            cn.serves(2)
            program.gate.clear()
            change = threading.Thread(
                target=cn.server.use, args=([second.endpoint],), kwargs={"patience_s": 60.0}
            )
            change.start()
            until(lambda: str(second.endpoint) in cn.following.status()["hns"])
            assert cn.ask() == 2 and cn.fleet.able == [str(first.endpoint)]
            program.gate.set()
            change.join(60.0)
            assert cn.ask() == 2 and cn.fleet.able == [str(second.endpoint)]


def half(world: World) -> Followed:
    return Followed(Summing(), world.apart)


def test_a_version_is_refused_where_it_is_not_held_and_parameters_that_are_not_all(world: World) -> None:
    made, one = half(world), (1, 1)
    assert not made.hold(3, one, None)
    with pytest.raises(InvalidArgument, match="0 of the 1 parameters"):
        made.hold(3, one, {})
    assert made.hold(3, one, {"model.w": np.ones(1, np.float32)}) and made.hold(3, (2, 1), None)
    with pytest.raises(Unavailable, match="does not hold version 4; it holds 3") as refused:
        made.run_at(4, {})
    assert refused.value.reason == "NOT_HELD"
    made.release([3], one)
    assert made.versions == [3], "the other wants it"
    made.keep([1])
    assert made.versions == []


def test_one_cn_cannot_have_any_number_of_versions_held(world: World) -> None:
    made = half(world)
    for version in range(MOST_OF_ONE):
        assert made.hold(version, (1, 1), {"model.w": np.ones(1, np.float32)})
    assert made.hold(0, (1, 1), None), "it has that one"
    with pytest.raises(ResourceExhausted):
        made.hold(99, (1, 1), {"model.w": np.ones(1, np.float32)})


def test_an_hn_computes_no_request_but_with_the_constants_that_it_names(world: World) -> None:
    with running_hn(world.folder) as hn, hn_link(hn) as link:
        world.install(hn)
        inputs = [Tensor.of(ROWS, np.ones((2, 1), np.float32)), Tensor.of(PLACES, np.zeros(1, np.int64))]
        calls = Calls(link)
        header = {"model": "m/1", "outputs": ["predictions"], "program": "one program"}
        for name, more in (("none", {}), ("other", {"version": 7})):
            infer = {"op": "infer", **header, **more}
            link.call(infer, inputs, deadline=time.monotonic() + 60, done=lambda it, name=name: calls.note(name, it))  # type: ignore[misc]
            answer = calls.of(name)
            assert isinstance(answer, MeshError) and answer.reason == "NOT_HELD"
        hold = {"op": "hold", "model": "m/1", "program": "another", "owner": 1, "version": 7, "given": False}
        link.call(hold, (), deadline=time.monotonic() + 60, done=lambda it: calls.note("hold", it))
        answer = calls.of("hold")
        assert isinstance(answer, MeshError) and answer.reason == "OTHER_HALF"


def test_requests_of_one_version_are_one_batch_and_of_two_are_not(world: World) -> None:
    made = half(world)
    one = {ROWS: np.array([[1.0], [2.0]], np.float32), PLACES: np.array([1, 0, 1])}
    other = {ROWS: np.array([[5.0], [0.0]], np.float32), PLACES: np.array([0])}
    joined = made.joined([one, other])
    assert joined[ROWS][joined[PLACES], 0].tolist() == [2.0, 1.0, 2.0, 5.0]
    with running_hn(world.folder) as hn:
        program, _ = world.install(hn, max_batch_size=64)
        with world.cn(hn) as cn:

            def queued(count: int) -> None:
                until(lambda: hn.server.pinged()["queued"]["m/1"] == count)

            for version, sizes in ((1, [2, 4]), (2, [2, 2, 2])):
                program.sizes.clear()
                program.running.clear()
                program.hold.clear()
                cn.send()
                assert program.running.wait(60.0)
                cn.send()
                queued(1)
                if version == 2:
                    world.commit(2)
                    until(lambda: cn.following.sparse.version.number == 2)
                cn.send()
                queued(2)
                program.hold.set()
                assert sorted(cn.answer() for _ in range(3)) == [1, 1, version]
                assert program.sizes == sizes


def test_no_more_than_so_many_ask_of_a_model_at_a_time(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    with running_hn(world.folder) as hn:
        world.install(hn)
        with world.cn(hn) as cn:
            sparse, hold = cn.following.sparse, threading.Event()
            told: list[Header] = []

            def slow() -> list[int]:
                assert hold.wait(60.0)
                return [1]

            monkeypatch.setattr(sparse.follower, "versions", slow)
            header = {"model": "m/1", "act": "status", "version": 0}
            for _ in range(MOST_ASKED):
                asking.answer(sparse, header, told.append, status=cn.following.status)
            with pytest.raises(ResourceExhausted):
                asking.answer(sparse, header, told.append, status=cn.following.status)
            hold.set()
            until(lambda: len(told) == MOST_ASKED)
            assert all((each["versions"], each["status"]["version"]) == ([1], 1) for each in told)
            until(lambda: sparse.asked.acquire(blocking=False))
