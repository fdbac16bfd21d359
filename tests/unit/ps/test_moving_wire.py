"""What a source sends a target, as messages: it comes as it was, or is refused by the name of what does not fit."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from recmesh.formats import SLOTS, Ledger, SlotMask
from recmesh.pb import ps_pb2 as pb
from recmesh.runtime.errors import InvalidArgument
from recmesh.store import DenseRecord, DenseSchema, Init, Optimizer, RowBlock, TableSchema
from recmesh.trainer.ps.ledger import Cut
from recmesh.trainer.ps.messages import Declaration
from recmesh.trainer.ps.moves import Cargo, InstallOrder, MoveOrder, StageOrder, TableCargo
from recmesh.trainer.ps.rpc import moving

CONTENT = Declaration(
    (TableSchema("item", 2, Optimizer("adam", lr=0.1, schedule=((0, 1.0), (10, 0.5))), Init("normal", 0.1, 7),
                 min_frequency=3, ttl_steps=100, max_bytes=1 << 20, dtype="bfloat16"),
     TableSchema("user", 1)),
    (DenseSchema("w", (5, 3), Optimizer("ftrl", l1=0.1, l2=0.2)),))


def slots(*chosen: int) -> SlotMask:
    mask = np.zeros(SLOTS, np.bool_)
    mask[list(chosen)] = True
    return mask


def rows(count: int, *, dim: int = 2, width: int = 4) -> RowBlock:
    n = np.arange(count)
    values = np.arange(count * dim, dtype=np.float32).reshape(count, dim) / np.float32(3)
    state = -np.arange(count * width, dtype=np.float32).reshape(count, width)
    return RowBlock(n.astype(np.int64) * 7 - (1 << 62), values, state, (n + 1).astype(np.uint32),
                    (n + 2).astype(np.uint32), n.astype(np.uint64) + np.uint64(1 << 63))


CARGO = Cargo(
    [TableCargo(0, rows(3), np.array([-5, 1 << 62], np.int64)), TableCargo(1, rows(2, dim=1, width=0)),
     TableCargo(1, rows(0), np.array([9], np.int64))],
    [DenseRecord(0, 2, np.arange(15, dtype=np.float32), np.arange(30, dtype=np.float32), 4),
     DenseRecord(0, 3, np.ones(2, np.float32), np.empty(0, np.float32), 0)])
STAGE = StageOrder(3, 9, 1, "inc-2", 0, CARGO, slots(0, 17, SLOTS - 1), CONTENT)
INSTALL = InstallOrder(
    3, 9, 1, "inc-2", 12, 44,
    [Cut(slots(0, 17), Ledger([(0, 0, 40), (2, 7, 9)]), 5), Cut(slots(SLOTS - 1), Ledger(), 0)],
    CARGO, {17: 1 << 40, SLOTS - 1: 2})


def flat(cargo: Cargo) -> list[Any]:
    """All that is in it."""
    made: list[Any] = []
    for table in cargo.tables:
        found = table.rows
        arrays = (found.ids, found.values, found.state, found.updates, found.frequency, found.last_step, table.removed)
        made.append((table.table, *(a.tolist() for a in arrays)))
    made += [(c.block, c.chunk, c.values.tolist(), c.state.tolist(), c.updates) for c in cargo.chunks]
    return made


def sent(request: Any) -> Any:
    """Through bytes, as the wire has it."""
    return type(request).FromString(request.SerializeToString())


def test_a_stage_comes_as_it_was_sent() -> None:
    request = sent(moving.stage_request(STAGE, job_id="job"))
    came = moving.stage_order(request)
    assert request.job_id == "job"
    assert (came.gen, came.move, came.source, came.incarnation, came.sequence) == (3, 9, 1, "inc-2", 0)
    assert came.slots is not None and STAGE.slots is not None and (came.slots == STAGE.slots).all()
    assert came.content == CONTENT
    assert flat(came.cargo) == flat(CARGO) and came.cargo.rows == CARGO.rows == 8


def test_only_the_first_stage_says_what_moves() -> None:
    later = replace(STAGE, sequence=1, slots=None, content=None, cargo=Cargo())
    came = moving.stage_order(sent(moving.stage_request(later, job_id="job")))
    assert (came.sequence, came.slots, came.content, flat(came.cargo)) == (1, None, None, [])


def test_an_install_comes_as_it_was_sent() -> None:
    came = moving.install_order(sent(moving.install_request(INSTALL, job_id="job")))
    assert (came.gen, came.move, came.source, came.incarnation) == (3, 9, 1, "inc-2")
    assert (came.sequence, came.map_version) == (12, 44)
    assert [(cut.ledger, cut.step) for cut in came.cuts] == [(cut.ledger, cut.step) for cut in INSTALL.cuts]
    assert all((a.slots == b.slots).all() for a, b in zip(came.cuts, INSTALL.cuts, strict=True))
    assert flat(came.cargo) == flat(CARGO)
    assert came.evicted == INSTALL.evicted


def test_a_move_comes_as_jobmaster_sends_it() -> None:
    mask = slots(3, 4)
    request = pb.MigrateRequest(gen=1, move=2, slots=np.packbits(mask, bitorder="little").tobytes(),
                                target_address="host:1", target_incarnation="inc")
    came = moving.move_order(sent(request))
    assert (came.slots == mask).all()
    assert replace(came, slots=mask) == MoveOrder(1, 2, mask, "host:1", "inc")
    request.slots = b"short"
    with pytest.raises(InvalidArgument) as refused:
        moving.move_order(request)
    assert [wrong.path for wrong in refused.value.violations] == ["slots"]


def _shorter(of: str, number: int, name: str, by: int) -> Callable[[Any], None]:
    def spoil(request: Any) -> None:
        entry = getattr(request, of)[number]
        setattr(entry, name, getattr(entry, name)[:-by])

    return spoil


def _more_values(request: Any) -> None:
    request.rows[2].values = bytes(8)


CARGO_CASES = [
    ("rows[0].ids", _shorter("rows", 0, "ids", 1)),
    ("rows[0].values", _shorter("rows", 0, "values", 4)),
    ("rows[0].state", _shorter("rows", 0, "state", 4)),
    ("rows[1].updates", _shorter("rows", 1, "updates", 4)),
    ("rows[1].frequency", _shorter("rows", 1, "frequency", 4)),
    ("rows[1].last_step", _shorter("rows", 1, "last_step", 8)),
    ("rows[1].last_step", _shorter("rows", 1, "last_step", 4)),
    ("rows[0].removed", _shorter("rows", 0, "removed", 3)),
    ("rows[2].values", _more_values),
    ("chunks[1].values", _shorter("chunks", 1, "values", 1)),
    ("chunks[0].state", _shorter("chunks", 0, "state", 2)),
]


@pytest.mark.parametrize(("field", "spoil"), CARGO_CASES)
def test_cargo_that_does_not_fit_is_refused_by_name(field: str, spoil: Callable[[Any], None]) -> None:
    for request, read in (
        (moving.stage_request(STAGE, job_id="job"), moving.stage_order),
        (moving.install_request(INSTALL, job_id="job"), moving.install_order),
    ):
        spoil(request)
        with pytest.raises(InvalidArgument) as refused:
            read(request)
        assert [wrong.path for wrong in refused.value.violations] == [field]


@pytest.mark.parametrize(("field", "value"), [
    ("slots", b""), ("slots", bytes(SLOTS // 8 + 1)), ("model_json", ""), ("model_json", "{}"),
    ("model_json", "[]"), ("model_json", '{"tables": [{"name": "t"}], "dense": []}'),
    ("model_json", '{"tables": [], "dense": [{"name": "w", "shape": [2], "optimizer": {"wings": 2, "schedule": []}}]}'),
])
def test_a_first_stage_that_does_not_say_what_moves_is_refused_by_name(field: str, value: Any) -> None:
    request = moving.stage_request(STAGE, job_id="job")
    setattr(request, field, value)
    with pytest.raises(InvalidArgument) as refused:
        moving.stage_order(request)
    assert [wrong.path for wrong in refused.value.violations] == [field]


def _no_bitmap(request: pb.InstallRequest) -> None:
    request.groups[1].slots = b"x"


def _a_slot_twice(request: pb.InstallRequest) -> None:
    request.groups[1].slots = request.groups[0].slots


def _no_slot(request: pb.InstallRequest) -> None:
    request.evicted[SLOTS] = 1


@pytest.mark.parametrize(("field", "spoil", "reason"), [
    ("groups[1].slots", _no_bitmap, "512 bytes"), ("groups[1].slots", _a_slot_twice, "slot 0 is in another group"),
    ("evicted", _no_slot, f"no slot {SLOTS}"),
])
def test_a_handoff_that_is_malformed_is_refused_by_name(
    field: str, spoil: Callable[[pb.InstallRequest], None], reason: str
) -> None:
    request = moving.install_request(INSTALL, job_id="job")
    spoil(request)
    with pytest.raises(InvalidArgument) as refused:
        moving.install_order(request)
    [wrong] = refused.value.violations
    assert wrong.path == field and reason in wrong.reason
