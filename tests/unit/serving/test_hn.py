"""An HN: batches, isolation, deadlines, cancelling, draining. Over real connections, with programs of the test's."""

import threading
import time
from pathlib import Path

import pytest

from recmesh.runtime.errors import Aborted, DeadlineExceeded, Internal, InvalidArgument, ResourceExhausted, Unavailable
from recmesh.serving.hn.holders import Holders
from recmesh.serving.programs import Arrays, DeviceLost
from recmesh.serving.settings import ServingSettings
from recmesh.serving.transport import Message
from tests.support.serving import Calls, hn_link, running_hn, until
from tests.support.split_models import torch_model


@pytest.mark.parametrize("carrier", ["shm", "tcp"])
def test_requests_that_wait_are_one_run_and_each_gets_its_own_answer(carrier: str, tmp_path: Path) -> None:
    with running_hn(tmp_path, carrier=carrier) as hn, hn_link(hn) as link:
        program = hn.install(max_batch_size=8)
        calls = Calls(link)
        program.hold.clear()
        calls.infer("first", [0])
        assert program.running.wait(60.0)
        for name, rows in (("a", [1, 2]), ("b", [3]), ("c", [4, 5, 6])):
            calls.infer(name, rows)
        until(lambda: hn.server._models["m/1"].queued == 3)
        program.hold.set()
        assert [calls.scores(name) for name in "abc"] == [[2, 4], [6], [8, 10, 12]]
        assert program.runs == [[0], [1, 2, 3, 4, 5, 6]]
        answers = [calls.of(name) for name in "abc"]
        assert [item.header["executions"] for item in answers if isinstance(item, Message)] == [1, 0, 0]


def test_one_bad_request_of_a_batch_fails_alone(tmp_path: Path) -> None:
    with running_hn(tmp_path) as hn, hn_link(hn) as link:
        program = hn.install(max_batch_size=8)
        calls = Calls(link)
        program.hold.clear()
        calls.infer("first", [0])
        assert program.running.wait(60.0)
        for name, rows in (("a", [1]), ("bad", [-1]), ("b", [3])):
            calls.infer(name, rows)
        until(lambda: hn.server._models["m/1"].queued == 3)
        program.hold.set()
        assert (calls.scores("a"), calls.scores("b")) == ([2], [6])
        bad = calls.of("bad")
        assert isinstance(bad, Internal) and "a negative row" in bad.message


def test_a_model_that_hangs_keeps_no_other_waiting_and_is_noticed(tmp_path: Path) -> None:
    with running_hn(tmp_path) as hn, hn_link(hn) as link:
        stuck, _ = hn.install("stuck/1"), hn.install("m/1")
        calls = Calls(link)
        stuck.hold.clear()
        left_s, name = 0.2, "stuck"
        while not stuck.running.is_set():        # a slow machine needs more time before it is even run
            calls.infer(name := f"{left_s}", [1], key="stuck/1", left_s=left_s)
            until(lambda: stuck.running.is_set() or name in calls.answers)
            left_s *= 10.0
        calls.infer("a", [1])
        assert calls.scores("a") == [2]
        assert isinstance(calls.of(name), DeadlineExceeded)
        until(lambda: hn.server.overdue()[1] > 0.1)
        assert hn.server.overdue()[0] == "stuck/1"
        stuck.hold.set()
        until(lambda: hn.server.overdue()[1] == 0.0)


def test_a_batch_that_begins_is_never_seen_with_the_deadline_of_none(tmp_path: Path) -> None:
    """The process would end itself, for a model that has hung since its clock began."""
    with running_hn(tmp_path) as hn:
        hn.install()
        model = hn.server._models["m/1"]
        seen: list[float] = []
        reading = threading.Thread(target=lambda: seen.append(model.overdue_s))
        with model._changed:
            model._running, model._due = 1, 0.0      # as in the middle of taking a batch
            reading.start()
            reading.join(0.2)
            model._due = time.monotonic() + 60.0
        reading.join()
        model._running = 0
        assert seen == [0.0]


def test_a_cancelled_and_a_late_request_are_never_run(tmp_path: Path) -> None:
    with running_hn(tmp_path) as hn, hn_link(hn) as link:
        program = hn.install()
        calls = Calls(link)
        program.hold.clear()
        calls.infer("first", [0])
        assert program.running.wait(60.0)
        unwanted = calls.infer("unwanted", [1])
        calls.infer("late", [2], left_s=0.05)
        calls.infer("wanted", [3])
        link.cancel(unwanted)
        assert isinstance(calls.of("unwanted"), Aborted)
        assert isinstance(calls.of("late"), DeadlineExceeded)
        program.hold.set()
        assert calls.scores("wanted") == [6]
        assert program.runs == [[0], [3]]


def test_what_a_caller_asked_that_has_gone_is_not_run(tmp_path: Path) -> None:
    with running_hn(tmp_path) as hn:
        program = hn.install()
        with hn_link(hn) as link:
            calls = Calls(link)
            program.hold.clear()
            calls.infer("first", [0])
            assert program.running.wait(60.0)
            calls.infer("second", [1])
            until(lambda: hn.server._models["m/1"].queued == 1)
        until(lambda: hn.server._models["m/1"].queued == 0)
        program.hold.set()
        until(lambda: hn.server._models["m/1"].idle)
        assert program.runs == [[0]]


def test_a_full_queue_refuses_and_an_unknown_model_is_named(tmp_path: Path) -> None:
    with running_hn(tmp_path) as hn, hn_link(hn) as link:
        program = hn.install(dynamic_batching={"default_queue_policy": {"max_queue_size": 1}})
        calls = Calls(link)
        program.hold.clear()
        calls.infer("first", [0])
        assert program.running.wait(60.0)
        calls.infer("waits", [1])
        calls.infer("refused", [2])
        assert isinstance(calls.of("refused"), ResourceExhausted)
        program.hold.set()
        calls.infer("nobody's", [1], key="other/1")
        unknown = calls.of("nobody's")
        assert isinstance(unknown, Unavailable) and "other/1" in unknown.message


def test_a_new_version_of_a_key_takes_over_without_a_lost_request(tmp_path: Path) -> None:
    with running_hn(tmp_path) as hn, hn_link(hn) as link:
        old = hn.install()
        calls = Calls(link)
        old.hold.clear()
        calls.infer("first", [0])
        assert old.running.wait(60.0)
        calls.infer("second", [1])
        until(lambda: hn.server._models["m/1"].queued == 1)
        new = hn.install()
        calls.infer("third", [2])
        assert calls.scores("third") == [4]
        old.hold.set()
        assert calls.scores("second") == [2]
        assert (old.runs, new.runs) == ([[0], [1]], [[2]])


def test_draining_finishes_what_is_there_and_takes_nothing_new(tmp_path: Path) -> None:
    with running_hn(tmp_path) as hn, hn_link(hn) as link:
        program = hn.install()
        calls = Calls(link)
        program.hold.clear()
        calls.infer("first", [0])
        assert program.running.wait(60.0)
        calls.infer("second", [1])
        until(lambda: hn.server._models["m/1"].queued == 1)
        drained: list[bool] = []
        draining = threading.Thread(target=lambda: drained.append(hn.server.drain(60.0)))
        draining.start()
        until(lambda: hn.server._draining)
        calls.infer("third", [2])
        refused = calls.of("third")
        assert isinstance(refused, Unavailable) and refused.reason == "DRAINING"
        program.hold.set()
        draining.join()
        assert drained == [True] and calls.scores("second") == [2]


def test_only_the_parent_may_load(tmp_path: Path) -> None:
    with running_hn(tmp_path) as hn, hn_link(hn) as link:
        hn.install()
        calls = Calls(link)
        for operation in ("load", "unload", "shut down"):
            calls.infer(operation, [1], op=operation)
            assert isinstance(calls.of(operation), InvalidArgument)
        calls.infer("still", [1])
        assert calls.scores("still") == [2]


def test_a_lost_accelerator_is_told_to_callers_and_to_the_process(tmp_path: Path) -> None:
    class Broken:
        def run(self, inputs: Arrays) -> Arrays:
            raise DeviceLost("CUDA error: an illegal memory access was encountered")

    lost: list[DeviceLost] = []
    with running_hn(tmp_path) as hn, hn_link(hn) as link:
        hn.server._lost = lost.append
        hn.server.install("m/1", Broken(), ServingSettings(), can_batch=False)
        calls = Calls(link)
        calls.infer("a", [1])
        assert isinstance(calls.of("a"), Internal)
        until(lambda: len(lost) == 1)


def test_outputs_that_do_not_follow_the_batch_are_not_mixed_up(tmp_path: Path) -> None:
    class Sum:
        def run(self, inputs: Arrays) -> Arrays:
            return {"scores": inputs["rows"].sum(keepdims=True)}

    with running_hn(tmp_path) as hn, hn_link(hn) as link:
        delay = {"max_queue_delay_microseconds": 300_000}
        settings = ServingSettings.parse({"max_batch_size": 2, "dynamic_batching": delay})
        hn.server.install("m/1", Sum(), settings, can_batch=True)
        calls = Calls(link)
        calls.infer("a", [1])
        calls.infer("b", [5])
        assert (calls.scores("a"), calls.scores("b")) == ([1], [5])


def load(calls: Calls, name: str, folder: Path) -> None:
    calls.infer(name, [], op="load", folder=str(folder), part="dense")


def test_a_model_that_is_unloaded_while_it_is_loaded_does_not_stay(tmp_path: Path) -> None:
    folder = torch_model(tmp_path / "m")
    with running_hn(tmp_path, roots=[tmp_path]) as hn, hn_link(hn) as link:
        calls = Calls(link)
        with hn.server._loading:
            load(calls, "load", folder)
            calls.infer("unload", [], op="unload")
            assert isinstance(calls.of("unload"), Message)
        aborted = calls.of("load")
        assert isinstance(aborted, Aborted) and aborted.reason == "NOT_WANTED"
        assert not hn.server.pinged()["models"]
        load(calls, "again", folder)
        assert isinstance(calls.of("again"), Message)
        assert hn.server.pinged()["models"] == ["m/1"]


def test_who_is_lost_before_its_model_is_loaded_holds_it_no_more(tmp_path: Path) -> None:
    folder = torch_model(tmp_path / "m")
    with running_hn(tmp_path, roots=[tmp_path]) as hn:
        hn.server._holders = Holders(keep_s=0.0)
        with hn.server._loading:
            with hn_link(hn) as link:
                load(Calls(link), "load", folder)
                until(lambda: hn.server._holders.of("m/1") == 1)
            until(lambda: hn.server._holders.of("m/1") == 0)
        until(lambda: bool(hn.server.pinged()["models"]))
        hn.server.forget_unwanted()
        assert not hn.server.pinged()["models"]


def test_a_model_of_the_hns_own_stays_when_the_last_cn_lets_it_go(tmp_path: Path) -> None:
    folder = torch_model(tmp_path / "m")
    with running_hn(tmp_path, roots=[tmp_path]) as hn, hn_link(hn) as link:
        hn.server.hold("m/1")
        hn.server.load("m/1", folder, which="dense", settings=ServingSettings())
        calls = Calls(link)
        load(calls, "load", folder)
        assert isinstance(calls.of("load"), Message)
        calls.infer("unload", [], op="unload")
        assert isinstance(calls.of("unload"), Message)
        assert hn.server.pinged()["models"] == ["m/1"]
