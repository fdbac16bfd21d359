"""MTRM in torch: whose turn it is, what stays as it is, and that serving answers as the adapt tower."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import recmesh
import recmesh.torch
from recmesh.data import Batch, whole_dataset
from recmesh.runtime.errors import InvalidArgument
from recmesh.spec.job import TrainingJob
from recmesh.torch import EmbeddingCollection, Trainer
from recmesh.trainer.evaluation import ONE_SERVER
from recmesh.trainer.layout import prepare
from recmesh.trainer.local import LocalJob
from recmesh.trainer.session import EmbeddingTable
from recmesh.zoo.torch import mtrm
from recmesh.zoo.torch.layers import logistic_loss
from tests.support.hours import modes, write_hours

HOURS = 4
PARAMS: dict[str, Any] = {
    "embedding_dim": 4, "hidden": [8], "adapt_hidden": [6], "dropout": 0.2, "embedding_dropout": 0.1,
    "dense_norm": True,
}
ADAM = {"kind": "adam", "lr": 0.01, "weight_decay": 0.01}
"""Moves what gets a gradient of zero: by momentum, and by decay."""


@pytest.fixture(scope="module")
def hours(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("hours")
    write_hours(root, hours=HOURS)
    return root


def job_on(
    hours: Path, mode: str, optimizer: dict[str, Any] | None = None, *, where: Sequence[dict[str, Any]] = (),
    batch_size: int = 32, **params: Any,
) -> LocalJob:
    return recmesh.local_job(TrainingJob.parse({
        "name": "mixed", "model": {"zoo": "mtrm", "params": PARAMS | params},
        "data": modes(hours, hours=HOURS)[mode] | {"where": list(where)},
        "training": {"batch_size": batch_size, "seed": 5, "optimizer": optimizer or ADAM},
    }))


def state(job: LocalJob) -> dict[str, np.ndarray]:
    """Every dense block, and every table with the ids it has, by name."""
    session: Any = job.session
    made = {name: value.copy() for name, value in session.dense().items()}
    for name, rows in session.tables().items():
        made[f"table {name}"] = np.column_stack([rows.ids.astype(np.float64), rows.values])
    return made


def changed(before: dict[str, np.ndarray], after: dict[str, np.ndarray]) -> set[str]:
    return {name for name in after if before[name].tobytes() != after[name].tobytes()}


def of_memory(name: str) -> bool:
    return name.startswith("memory.") or name in ("table user", "table item")


def steps(job: LocalJob) -> Iterator[tuple[str, set[str]]]:
    """Trains, and tells of each step its kind and what it changed."""
    model = mtrm.MTRM(job)
    trainer = recmesh.torch.attach(job, model, mtrm.optimizer_of(job, model))
    for batch in trainer:
        before = state(job)
        trainer.step(logistic_loss(model(batch), batch))
        yield batch.kind, changed(before, state(job))


def predicted(job: LocalJob, batch: Batch) -> np.ndarray:
    session: Any = job.session
    assert job.model is not None
    prepared = prepare(batch, session.declared, ONE_SERVER)
    rows, dense = session.fetch(prepared)
    return job.model.predict(batch, rows, prepared.index, dense)


def one_batch(job: LocalJob) -> Batch:
    return next(iter(whole_dataset(job.data, batch_size=24)))


@pytest.mark.parametrize("answer", ["corrected", "own"])
def test_a_step_leaves_the_other_tower_and_its_tables_bit_for_bit_as_they_are(hours: Path, answer: str) -> None:
    seen = set()
    for kind, moved in steps(job_on(hours, "mixed", answer=answer)):
        seen.add(kind)
        assert moved and all(of_memory(name) == (kind == "batch") for name in moved), (kind, moved)
    assert seen == {"batch", "stream"}


def test_shared_embeddings_learn_from_both_but_the_memory_towers_own_parameters_do_not(hours: Path) -> None:
    learned: dict[str, set[str]] = {"batch": set(), "stream": set()}
    for kind, moved in steps(job_on(hours, "mixed", embedding="shared")):
        learned[kind] |= moved
    tables = {"table user", "table item"}
    assert tables < learned["batch"] and tables < learned["stream"]
    assert not any(name.startswith("memory.") for name in learned["stream"])
    assert not any(name.startswith("adapt.") for name in learned["batch"])


@pytest.mark.parametrize(("answer", "said"), [("corrected", 3.0), ("own", 0.0)])
def test_what_the_memory_says_is_the_answer_or_an_input_of_who_answers(hours: Path, answer: str, said: float) -> None:
    """Nothing but what the memory tower says is left: its logits are 3, and weights of the adapt tower are zero."""
    job = job_on(hours, "mixed", answer=answer, dropout=0.0, embedding_dropout=0.0)
    model = mtrm.MTRM(job)
    for batch in recmesh.torch.attach(job, model):
        with torch.no_grad():
            for head in (model.memory.head, model.adapt.head):
                head.weight.zero_()
                head.bias.zero_()
            model.memory.head.bias.fill_(3.0)
            assert torch.equal(model.eval()(batch), torch.full((batch.size, 1), said))
            model.adapt.deep[0].weight.fill_(1.0)
            model.adapt.head.weight.fill_(1.0)
            before = model(batch)
            model.memory.head.bias.fill_(4.0)
            assert bool((model(batch) > before).all())
        break


def test_all_of_each_tower_learns_when_it_has_its_turn(hours: Path) -> None:
    job = job_on(hours, "batch_then_stream", dropout=0.0)
    learned: set[str] = set()
    for _, moved in steps(job):
        learned |= moved
    assert learned == set(state(job))


@pytest.mark.parametrize("optimizer", [ADAM, {"kind": "adagrad", "lr": 0.1}, {"kind": "ftrl", "lr": 0.1, "l1": 0.1}])
def test_the_memory_is_the_same_with_and_without_a_stream_beside(hours: Path, optimizer: dict[str, Any]) -> None:
    def trained(mode: str) -> dict[str, np.ndarray]:
        job = job_on(hours, mode, optimizer, dropout=0.0, embedding_dropout=0.0)
        mtrm.main(job)
        return {name: value for name, value in state(job).items() if of_memory(name)}

    alone, before = trained("batch"), trained("batch_then_stream")
    assert changed(alone, before) == set()


def test_until_it_has_seen_the_stream_the_model_answers_as_its_memory(hours: Path) -> None:
    job = job_on(hours, "batch")
    mtrm.main(job)
    batch, attached = one_batch(job), job.model
    assert isinstance(attached, Trainer)
    answers = predicted(job, batch)
    attached.model.adapt = _Nothing()
    np.testing.assert_array_equal(predicted(job, batch), answers)
    assert len(set(answers)) > 3


class _Nothing(nn.Module):
    def forward(self, batch: Any, told: Any) -> torch.Tensor:
        return torch.zeros_like(told.logits)


@pytest.mark.parametrize("embedding", ["separate", "shared"])
@pytest.mark.parametrize("mode", ["batch", "stream", "batch_then_stream", "mixed"])
def test_an_exported_model_answers_as_the_adapt_tower_in_every_mode(
    hours: Path, tmp_path: Path, mode: str, embedding: str
) -> None:
    job = job_on(hours, mode, embedding=embedding)
    mtrm.main(job)
    batch = one_batch(job)
    job.export(tmp_path / "model")
    inputs = {name: torch.from_numpy(column.values.copy()) for name, column in batch.ids.items()}
    inputs["x"] = torch.from_numpy(batch.dense[:, 0].copy())
    served = torch.export.load(str(tmp_path / "model" / "model.pt2")).module()(inputs)["predictions"].numpy()
    np.testing.assert_allclose(served, predicted(job, batch), atol=1e-6)


def test_a_rate_of_its_own_moves_the_adapt_tower_alone(hours: Path) -> None:
    adagrad = {"kind": "adagrad", "lr": 0.05}

    def trained(rate: float) -> dict[str, np.ndarray]:
        job = job_on(hours, "mixed", adagrad, adapt_rate=rate, dropout=0.0, embedding_dropout=0.0)
        mtrm.main(job)
        return state(job)

    moved = changed(trained(1.0), trained(3.0))
    assert moved and not any(map(of_memory, moved))
    with pytest.raises(InvalidArgument, match=r"adapt_rate"):
        mtrm.main(job_on(hours, "mixed", {"kind": "ftrl", "lr": 0.05}, adapt_rate=2.0))


def test_a_batch_without_rows_changes_nothing(hours: Path) -> None:
    few: list[dict[str, Any]] = [
        {"column": "user", "op": "in", "values": [3, -3]}, {"column": "item", "op": "=", "value": 2},
    ]
    job = job_on(hours, "mixed", where=few, batch_size=8)
    model, batches = mtrm.MTRM(job), 0
    trainer = recmesh.torch.attach(job, model)
    after = state(job)
    for batch in trainer:       # what comes between two batches is those without rows
        assert changed(after, state(job)) == set()
        trainer.step(logistic_loss(model(batch), batch))
        after, batches = state(job), batches + 1
    assert changed(after, state(job)) == set() and 0 < batches < 56


def test_a_loss_that_is_not_finite_leaves_the_other_tower_alone_too(hours: Path) -> None:
    job = job_on(hours, "batch_then_stream")
    model = mtrm.MTRM(job)
    trainer = recmesh.torch.attach(job, model)
    skipped = 0
    for batch in trainer:
        before = state(job)
        loss = logistic_loss(model(batch), batch)
        is_bad = batch.kind == "stream"
        trainer.step(loss * float("nan") if is_bad else loss)
        if is_bad:
            skipped += 1
            assert not any(map(of_memory, changed(before, state(job))))
    assert skipped > 1


class _Twice(nn.Module):
    """Two tables of one feature, of which one is looked up without gradients."""

    def __init__(self) -> None:
        super().__init__()
        self.first = EmbeddingCollection([EmbeddingTable("first", 3, ["user"])])
        self.second = EmbeddingCollection([EmbeddingTable("second", 3, ["item", "user"])])
        self.head = nn.Linear(9, 1)

    def forward(self, batch: recmesh.torch.Batch) -> torch.Tensor:
        return self.head(torch.cat([self.first(batch).cat().detach(), self.second(batch).cat()], dim=1))


def test_a_feature_may_be_in_several_tables_each_with_rows_of_its_own(hours: Path) -> None:
    job = job_on(hours, "batch", {"kind": "sgd", "lr": 0.1})
    model = _Twice()
    trainer = recmesh.torch.attach(job, model)
    for batch in trainer:
        trainer.step(logistic_loss(model(batch), batch))
    session: Any = job.session
    tables = session.tables()
    assert len(tables["first"].ids) == 0 and list(tables["second"].ids) == list(range(9))
    answers = predicted(job, one_batch(job))
    users, items = (one_batch(job).ids[name].values for name in ("user", "item"))
    weight, bias = (session.dense()[f"head.{name}"] for name in ("weight", "bias"))
    rows = tables["second"].values
    logits = np.concatenate([np.zeros((24, 3)), rows[items], rows[users]], axis=1) @ weight[0] + bias
    np.testing.assert_allclose(answers, 1 / (1 + np.exp(-logits)), atol=1e-6)
