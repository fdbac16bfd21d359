"""Each rule of exactly-once, switched off, makes a run go wrong that is right with it; on the real domain classes."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pytest

from recmesh.formats import SLOTS, SlotMap, SlotMask, slots_of
from recmesh.formats.snapshot import open_part, read_table
from recmesh.runtime.errors import InvalidArgument
from recmesh.trainer.breaking import RULES, VARIABLE, broken_rule
from recmesh.trainer.ports import Member, PushAck, RunRecord
from recmesh.trainer.ps.messages import RestoreOrder
from recmesh.trainer.ps.moves import InstallOrder
from recmesh.trainer.ps.refusals import Refusal
from recmesh.trainer.ps.server import ParameterServer
from recmesh.trainer.ps.without import server_without
from recmesh.trainer.worker.fleet import WrongMap
from recmesh.trainer.worker.without import fleet_without
from tests.unit.ps.elastic import ElasticMesh, Flight, Wire
from tests.unit.ps.support import MODEL, initial_chunks, truth


class Broken(ElasticMesh):
    """A mesh whose servers lack a rule; '' none."""

    def __init__(self, folder: Path, rule: str) -> None:
        super().__init__(folder)
        self.rule = rule

    def server(self, incarnation: str) -> ParameterServer:
        made = server_without(self.rule)(
            incarnation, shm_dir=self.folder, memory_bytes=64 << 20, deliver=self.deliver, fail=_raise,
            reach=lambda address: Wire(self, address))
        self.everyone[incarnation] = made
        return made


def errors(mesh: ElasticMesh, total: int) -> int:
    """Contributions lost or doubled, in owned slots, without any repair by an audit."""
    items, users, samples = truth(range(total))
    found_items, found_users, dense = mesh.owned_counts()
    wrong = sum(abs(found.get(id_, 0) - true.get(id_, 0))
                for found, true in ((found_items, items), (found_users, users)) for id_ in found | true)
    return int(wrong + sum(abs(value - samples) for value in dense))


def half(mesh: ElasticMesh, ps: int) -> SlotMask:
    mask = np.zeros(SLOTS, np.bool_)
    mask[np.flatnonzero(mesh.owners == ps)[::2]] = True
    mask[slots_of(np.arange(2), "w")] = False       # a server that lacks a chunk would stop in the apply
    return mask


def moved(mesh: ElasticMesh) -> None:
    mesh.begin_move(0, 1, half(mesh, 0))
    mesh.freeze("answered")
    mesh.decide()


# ---- scenarios: each returns its errors


def replayed_pushes(mesh: ElasticMesh) -> int:
    mesh.train([(0, 0, 8)])
    for message in list(mesh.pushed):
        mesh.replay(message)
    return errors(mesh, 8)


def a_split_by_the_map_before_a_move(mesh: ElasticMesh) -> int:
    late = mesh.take_off([(0, 0, 8)])
    moved(mesh)
    mesh.send(late, 1)                              # lacks the rows of the slots that have come
    mesh.send(late, 0)
    _to_the_end(mesh, late)
    return errors(mesh, 8)


def a_split_that_names_the_new_map_and_is_by_the_old(mesh: ElasticMesh) -> int:
    before = mesh.owners.copy()
    moved(mesh)
    flight = Flight(((0, 0, 8),), SlotMap(mesh.version, before), mesh.gen)
    mesh.send(flight, 0)
    mesh.send(flight, 1)
    _to_the_end(mesh, flight)
    return errors(mesh, 8)


def a_late_restore_of_an_older_generation(mesh: ElasticMesh) -> int:
    first = {ps: _order(mesh, ps) for ps in mesh.members}
    _restore_in_place(mesh)
    mesh.train([(0, 0, 8)])
    _try_to_restore(mesh, 0, first[0])
    return errors(mesh, 8)


def a_restore_that_was_meant_for_the_process_before(mesh: ElasticMesh) -> int:
    order = _order(mesh, 0)
    mesh.train([(0, 0, 8)])
    mesh.members[0].close()
    mesh.members[0] = mesh.server("inc-the-next")
    if not _try_to_restore(mesh, 0, order):
        mesh.start(2)                               # jobmaster sees another incarnation and rolls back
        mesh.train([(0, 0, 8)])
    return errors(mesh, 8)


def a_push_between_the_ledgers_and_the_rows_of_a_mark(mesh: ElasticMesh) -> int:
    mesh.train([(0, 0, 4)])
    mesh.snapshot += 1
    servers = list(mesh.members.values())
    marking = threading.Thread(target=lambda: [server.mark(mesh.gen, 1, mesh.snapshot) for server in servers])
    marking.start()
    batch = 4
    while marking.is_alive():
        mesh.train([(0, batch, batch + 1)])
        batch += 1
    marking.join()
    for server in servers:
        assert server._copy is not None
        server._copy.join()
    return sum(_errors_of_part(uri) for uri in mesh.part_uris_of([0, 1]))


def a_batch_that_only_the_source_has_applied(mesh: ElasticMesh) -> int:
    flight = mesh.take_off([(0, 0, 8)])
    mesh.send(flight, 0)
    moved(mesh)
    _to_the_end(mesh, flight)
    return errors(mesh, 8)


def an_install_that_comes_after_its_move_was_given_up(mesh: ElasticMesh) -> int:
    mesh.train([(0, 0, 8)])
    mesh.begin_move(0, 1, half(mesh, 0))
    mesh.freeze("lost")
    mesh.decide()                                   # the source has its slots again
    address, install = next(item for item in reversed(mesh.sent) if isinstance(item[1], InstallOrder))
    mesh.at(address).moves.receiver.install(install)
    owners = np.sum([server.books.owned for server in mesh.members.values()], axis=0)
    return int((owners != 1).sum())


def acks_that_outlive_a_move(mesh: Broken) -> int:
    """As push_everywhere does it, with the real fleet: acknowledged by 1, then slots move from 0 to 1."""
    record = _record(mesh)
    fleet = fleet_without(mesh.rule)(lambda member: _stub(mesh, member.ps), record)
    flight, gone = mesh.take_off([(0, 0, 8)]), threading.Event()
    is_first = [True]

    def send(ps: int, stub: Any) -> PushAck:
        if ps == 0 and is_first:
            is_first.clear()
            while not flight.acks:                  # 1 has acknowledged
                threading.Event().wait(0.005)
            moved(mesh)
        return PushAck("applied") if stub.send(flight) in ("acked", "landed") else _wrong(mesh)

    try:
        for _ in range(5):
            try:
                fleet.each(send, placement=fleet.placement, what="push of it", gone=gone)
            except WrongMap:
                fleet.use(_record(mesh))
                continue
            return errors(mesh, 8)
    finally:
        fleet.close()
    raise AssertionError("the batch never lands")


SCENARIOS: dict[str, Callable[[Broken], int]] = {
    "dedup": replayed_pushes,
    "map": a_split_by_the_map_before_a_move,
    "coverage": a_split_that_names_the_new_map_and_is_by_the_old,
    "generation": a_late_restore_of_an_older_generation,
    "incarnation": a_restore_that_was_meant_for_the_process_before,
    "one_cut": a_push_between_the_ledgers_and_the_rows_of_a_mark,
    "carried": a_batch_that_only_the_source_has_applied,
    "promise": an_install_that_comes_after_its_move_was_given_up,
    "forget_acks": acks_that_outlive_a_move,
}


@contextmanager
def running(folder: Path, rule: str) -> Iterator[Broken]:
    mesh = Broken(folder, rule)
    try:
        mesh.start(2)
        yield mesh
    finally:
        mesh.close()


@pytest.mark.parametrize("rule", RULES)
def test_with_the_rule_the_run_is_right(tmp_path: Path, rule: str) -> None:
    with running(tmp_path, "") as mesh:
        assert SCENARIOS[rule](mesh) == 0


@pytest.mark.parametrize("rule", RULES)
def test_without_the_rule_the_run_goes_wrong(tmp_path: Path, rule: str) -> None:
    with running(tmp_path, rule) as mesh:
        assert SCENARIOS[rule](mesh) > 0


def test_a_rule_is_switched_off_in_a_chaos_run_only() -> None:
    with pytest.raises(InvalidArgument, match="chaos run only"):
        broken_rule({VARIABLE: "dedup"})
    assert broken_rule({VARIABLE: "dedup", "RECMESH_CHAOS": "/somewhere"}) == "dedup"
    assert broken_rule({}) == ""
    with pytest.raises(InvalidArgument, match="there are dedup, map"):
        broken_rule({VARIABLE: "gravity", "RECMESH_CHAOS": "/somewhere"})


# ---- inside


def _raise(error: BaseException) -> NoReturn:
    raise error


def _to_the_end(mesh: ElasticMesh, flight: Flight) -> None:
    while waiting := sorted(set(np.unique(flight.slot_map.owners).tolist()) - flight.acks):
        mesh.send(flight, waiting[0])


def _order(mesh: ElasticMesh, ps: int) -> RestoreOrder:
    return RestoreOrder(mesh.gen, 1, mesh.members[ps].books.incarnation, ps, mesh.slot_map, "job")


def _restore_in_place(mesh: ElasticMesh) -> None:
    """A rollback in which every process lives on."""
    mesh.gen, mesh.version = mesh.gen + 1, mesh.reserve()
    for ps, server in mesh.members.items():
        server.restore(_order(mesh, ps))
        server.declare(mesh.gen, MODEL, initial_chunks(mesh.slot_map, ps))


def _try_to_restore(mesh: ElasticMesh, ps: int, order: RestoreOrder) -> bool:
    server = mesh.members[ps]
    try:
        server.restore(order)
    except Refusal:
        return False
    server.declare(order.gen, MODEL, initial_chunks(order.slot_map, ps))
    return True


def _errors_of_part(uri: str) -> int:
    part = open_part(uri)
    [group] = part.document.groups
    items, users, _ = truth([p for lo, hi in group.ledger.line(0) for p in range(lo, hi)])
    wrong = 0
    for name, true in (("item", items), ("user", users)):
        rows = read_table([part], name)
        wrong += sum(abs(true[id_] - value) for id_, value in zip(
            rows.ids.tolist(), rows.values[:, 0].tolist(), strict=True))
    return int(wrong)


def _record(mesh: ElasticMesh) -> RunRecord:
    members = tuple(Member(ps, f"at-{ps}", f"inc-{ps}") for ps in mesh.members)
    return RunRecord(mesh.gen, "open", mesh.version, mesh.owners, members)


def _stub(mesh: ElasticMesh, ps: int) -> Any:
    return _Stub(mesh, ps)


def _wrong(mesh: ElasticMesh) -> PushAck:
    raise WrongMap(mesh.version)


class _Stub:
    """A connection to one member."""

    def __init__(self, mesh: ElasticMesh, ps: int) -> None:
        self._mesh, self._ps = mesh, ps

    def send(self, flight: Flight) -> str:
        return self._mesh.send(flight, self._ps)

    def close(self) -> None:
        pass
