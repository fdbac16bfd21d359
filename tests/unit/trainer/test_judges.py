"""Evaluator and finisher against fakes: what they report, what they write, and when they stop."""

import importlib
import json
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from recmesh.formats import SlotMap
from recmesh.runtime.errors import DataLoss, FailedPrecondition
from recmesh.spec.job import TrainingJob
from recmesh.trainer.evaluator.role import run as run_evaluator
from recmesh.trainer.finisher.role import publish
from recmesh.trainer.finisher.role import run as run_finisher
from recmesh.trainer.layout import declaration
from recmesh.trainer.patience import NoLongerWanted
from recmesh.trainer.ports import Assignment, Beat, BeatReply, Member, Pulled, RunRecord, TableDeclaration
from recmesh.trainer.role import Identity
from recmesh.trainer.session import Ints
from recmesh.trainer.start import Context
from tests.unit.trainer.fakes import FakeRuns, FakeServer, record_of

GOLDEN = Path(__file__).parent.parent / "formats" / "golden"
PARTS = (str(GOLDEN / "ps-000"), str(GOLDEN / "ps-001"))
ITEMS = [-1, 0, 1, 42, 7_000_000]
"""The last one is in no snapshot."""

MODEL = '''
import json
import numpy as np
from recmesh.trainer.session import DenseBlock, EmbeddingTable

TABLES = [EmbeddingTable("item", 2), EmbeddingTable("tag/é", 1, ["tag"])]
DENSE = []
WHILE_PREDICTING = lambda: None
SEEN = []


class Model:
    framework = "torch"
    tables, dense = TABLES, DENSE

    def predict(self, batch, rows, index, dense):
        WHILE_PREDICTING()
        SEEN.append(rows["item"][index["item"]].tolist())
        return np.linspace(0.0, 1.0, batch.size, dtype=np.float32)

    def export(self, directory, *, tables, dense, metrics):
        (directory / "parts").mkdir()
        (directory / "parts" / "item").write_text(str(len(tables["item"].ids)))
        (directory / "model.json").write_text(json.dumps({"metrics": metrics, "dense": list(dense)}))


def main(job):
    job.attach(Model())
    for _ in job.session.steps():
        raise AssertionError("there is nothing to train here")
'''


@dataclass
class ReportingRuns(FakeRuns):
    """jobmaster that remembers reports as a whole."""

    now: RunRecord
    beats: list[Beat] = field(default_factory=list)
    told: list[dict[str, Any]] = field(default_factory=list)
    on_report: Callable[[], None] = lambda: None
    answer: BeatReply | None = None

    def heartbeat(self, beat: Beat) -> BeatReply:
        return self.answer or super().heartbeat(beat)

    def report(self, metrics: Mapping[str, float], **said: Any) -> None:
        self.told.append({"metrics": dict(metrics)} | said)
        self.on_report()


class FakeContext(Context):
    """Its servers are objects of the test."""

    servers: Sequence[FakeServer] = ()

    def server(self, member: Member) -> Any:
        return self.servers[member.ps]


@dataclass
class World:
    context: FakeContext
    runs: ReportingRuns
    module: str

    @property
    def model(self) -> Any:
        return sys.modules[self.module]


@pytest.fixture
def make(
    tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., World]:
    monkeypatch.setattr(sys, "path", list(sys.path))     # roles put the user's folder there
    module = f"judged_{abs(hash(request.node.nodeid))}"
    (tmp_path / f"{module}.py").write_text(MODEL)
    table = pa.table({"item": ITEMS, "tag": [7] * 5, "label": [0.0, 0.0, 0.0, 1.0, 1.0]})
    pq.write_table(table, tmp_path / "rows.parquet")

    def made(*, evaluation: dict[str, Any] | None, parts: Sequence[str] = PARTS, export_uri: str = "") -> World:
        spec = TrainingJob.parse({
            "name": "job",
            "model": {"entrypoint": f"{module}:main", "code": str(tmp_path)},
            "data": {
                "source": {"files": [str(tmp_path / "rows.parquet")]},
                "features": [{"name": "item"}, {"name": "tag"}],
            },
            "evaluation": evaluation,
        })
        runs = ReportingRuns(record_of(SlotMap.even(1, 2), 2))
        context = FakeContext(
            identity=Identity("finisher", 0, "job", "", "", tmp_path / "work"),
            assignment=Assignment(
                spec.model_dump_json(), runs.now, 0.01, "", "", "", "finish", 7, tuple(parts), export_uri
            ),
            spec=spec, runs=runs, stopped=threading.Event(), on_stop=[],
        )
        return World(context, runs, module)

    return made


# -- the finisher -----------------------------------------------------------------------------------------


def test_a_finisher_judges_the_snapshot_exports_it_and_reports_once(
    make: Callable[..., World], tmp_path: Path
) -> None:
    target = tmp_path / "models" / "job" / "3"
    world = make(evaluation={"rows": [0.0, 1.0]}, export_uri=str(target))
    run_finisher(world.context)
    [told] = world.runs.told
    assert told["metrics"]["eval_auc"] == 1.0 and told["metrics"]["eval_rows"] == 5
    assert (told["snapshot"], told["model_uri"], told["framework"], told["final"]) == (7, str(target), "torch", True)
    assert (target / "parts" / "item").read_text() == "6"
    assert json.loads((target / "model.json").read_text())["metrics"] == told["metrics"]
    [rows] = world.model.SEEN
    assert rows[-1] == [0.0, 0.0], "an id that was never trained reads as zero"
    assert all(any(row) for row in rows[:-1])
    assert list((tmp_path / "work").iterdir()) == [], "scratch is cleared away"


def test_without_evaluation_and_export_a_finisher_only_reports(make: Callable[..., World]) -> None:
    world = make(evaluation=None)
    run_finisher(world.context)
    [told] = world.runs.told
    assert (told["metrics"], told["model_uri"], told["final"]) == ({}, "", True)


def test_a_finisher_without_a_snapshot_is_refused(make: Callable[..., World]) -> None:
    with pytest.raises(FailedPrecondition, match="no snapshot"):
        run_finisher(make(evaluation=None, parts=()).context)


def test_a_finisher_whose_snapshot_is_damaged_says_so_and_reports_nothing(
    make: Callable[..., World], tmp_path: Path
) -> None:
    world = make(evaluation=None, parts=[str(tmp_path / "nowhere")])
    with pytest.raises(DataLoss, match="snapshot"):
        run_finisher(world.context)
    assert world.runs.told == []


def test_a_finisher_that_is_told_to_go_neither_exports_nor_reports(
    make: Callable[..., World], tmp_path: Path
) -> None:
    target = tmp_path / "models"
    world = make(evaluation={"rows": [0.0, 1.0]}, export_uri=str(target))

    def stop() -> None:
        for action in world.context.on_stop:
            action()

    main_of(world).WHILE_PREDICTING = stop
    with pytest.raises(NoLongerWanted):
        run_finisher(world.context)
    assert world.runs.told == [] and not target.exists()


def main_of(world: World) -> Any:
    """The user's module, imported before the role does."""
    sys.path.insert(0, world.context.spec.model.code)
    return importlib.import_module(world.module)


def test_a_model_is_complete_once_its_card_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("a.bin", "model.json", "saved/z.bin"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(name)
    memory = fsspec.filesystem("memory")
    copied: list[str] = []
    put = memory.put_file

    def put_file(source: str, target: str, **options: Any) -> None:
        copied.append(target)
        put(source, target, **options)

    monkeypatch.setattr(memory, "put_file", put_file)
    publish(tmp_path, "memory://published/1")
    assert len(copied) == 3 and copied[-1].endswith("/published/1/model.json")
    assert memory.cat("/published/1/saved/z.bin") == b"saved/z.bin"


# -- the evaluator ----------------------------------------------------------------------------------------


class Rows(FakeServer):
    """Each trained row is its id's last digit; a rollback may come in between."""

    before_pull: Callable[[], None] | None = None

    def pull(self, gen: int, *, tables: Sequence[tuple[int, Ints]], **options: Any) -> Pulled:
        if self.before_pull is not None:
            self.before_pull()
        assert options["absent_as_zero"]
        return super().pull(gen, tables=tables, **options)


def evaluator(world: World, *, passes: int) -> list[Rows]:
    """Two servers with some rows; the role ends after so many reports."""
    slot_map = SlotMap.even(1, 2)
    servers = [Rows(ps, slot_map) for ps in range(2)]
    for server in servers:
        server.tables = declared(world)
        for item in ITEMS[:-1]:
            server.sums["item"][item] = float(item % 10)
    world.context.servers = servers

    def enough() -> None:
        if len(world.runs.told) >= passes:
            world.context.stopped.set()

    world.runs.on_report = enough
    return servers


def declared(world: World) -> Sequence[TableDeclaration]:
    module = main_of(world)
    return declaration(world.context.spec, module.TABLES, module.DENSE).tables


def test_an_evaluator_reports_each_pass_and_pushes_nothing(make: Callable[..., World]) -> None:
    world = make(evaluation={"rows": [0.0, 1.0], "every_s": 0.01})
    servers = evaluator(world, passes=3)
    run_evaluator(world.context)
    assert [told["metrics"]["eval_auc"] for told in world.runs.told] == [1.0] * 3
    assert "final" not in world.runs.told[0]
    assert world.model.SEEN[0] == [[9.0, 9.0], [0.0, 0.0], [1.0, 1.0], [2.0, 2.0], [0.0, 0.0]]
    assert all(server.pushed == [] for server in servers)
    assert all(server.closed for server in servers)
    assert world.runs.beats


def test_an_evaluator_waits_for_an_open_generation(make: Callable[..., World]) -> None:
    world = make(evaluation={"rows": [0.0, 1.0], "every_s": 0.01})
    evaluator(world, passes=1)
    looks: list[str] = []
    record = world.runs.record

    def closed_at_first(**options: Any) -> RunRecord:
        looks.append("look")
        return record_of(SlotMap.even(1, 2), 2, phase="restoring") if len(looks) < 3 else record(**options)

    world.runs.record = closed_at_first  # type: ignore[method-assign]
    run_evaluator(world.context)
    assert len(looks) == 3 and len(world.model.SEEN) == 1


def test_a_rollback_in_the_middle_of_a_pass_reports_nothing_of_it(make: Callable[..., World]) -> None:
    world = make(evaluation={"rows": [0.0, 1.0], "every_s": 0.01})
    servers = evaluator(world, passes=1)

    def roll_back() -> None:
        servers[0].before_pull = None
        world.runs.now = record_of(SlotMap.even(1, 2), 2, gen=2)
        servers[0].gen = servers[1].gen = 2

    servers[0].before_pull = roll_back
    run_evaluator(world.context)
    assert len(world.runs.told) == 1 and len(world.model.SEEN) == 1
    assert world.runs.beats[-1].gen in (1, 2)


@pytest.mark.parametrize("reply", [BeatReply("exit", 1, 1, "closed"), BeatReply("continue", 1, 1, "finishing")])
def test_an_evaluator_ends_with_the_training(make: Callable[..., World], reply: BeatReply) -> None:
    world = make(evaluation={"rows": [0.0, 1.0], "every_s": 3600.0})
    evaluator(world, passes=1)
    world.runs.answer = reply
    run_evaluator(world.context)
    assert world.context.stopped.is_set() and world.runs.told == []


@pytest.mark.parametrize("asked_to_go", [True, False])
def test_what_fails_in_an_evaluation_counts_only_while_it_is_wanted(
    make: Callable[..., World], asked_to_go: bool
) -> None:
    world = make(evaluation={"rows": [0.0, 1.0], "every_s": 0.01})
    servers = evaluator(world, passes=1)

    def end() -> None:
        if asked_to_go:
            world.context.stopped.set()
        raise RuntimeError("the server is gone")

    servers[0].before_pull = end
    if asked_to_go:
        run_evaluator(world.context)
    else:
        with pytest.raises(RuntimeError, match="gone"):
            run_evaluator(world.context)
    assert world.runs.told == []


def test_an_evaluator_that_nobody_asked_for_is_refused(make: Callable[..., World]) -> None:
    with pytest.raises(FailedPrecondition, match="every_s"):
        run_evaluator(make(evaluation={"rows": [0.0, 1.0]}).context)
