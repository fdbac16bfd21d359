"""The torch skin against plain torch: the same model, the same data, the same updates."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from torch import Tensor, nn

import recmesh
import recmesh.torch
from recmesh.formats import initial_rows
from recmesh.runtime.errors import InvalidArgument
from recmesh.spec.job import Optimizer
from recmesh.torch import Batch, EmbeddingCollection
from recmesh.trainer.local import LocalJob
from recmesh.trainer.session import EmbeddingTable, Init
from tests.support.rows import job_over, write_rows

DIM = 4
OPTIMIZERS: dict[str, tuple[Optimizer, Any]] = {
    "sgd": (Optimizer(kind="sgd", lr=0.5), lambda p: torch.optim.SGD(p, lr=0.5)),
    "sgd with decay": (
        Optimizer(kind="sgd", lr=0.5, weight_decay=0.01), lambda p: torch.optim.SGD(p, lr=0.5, weight_decay=0.01)
    ),
    "adagrad": (
        Optimizer(kind="adagrad", lr=0.1, eps=1e-10, initial_accumulator=0.1),
        lambda p: torch.optim.Adagrad(p, lr=0.1, initial_accumulator_value=0.1),
    ),
    "adam": (Optimizer(kind="adam", lr=0.01), lambda p: torch.optim.Adam(p, lr=0.01)),
}


def start(table: str, ids: int, dim: int, seed: int = 7) -> Tensor:
    rows = initial_rows(seed, table=table, ids=np.arange(ids), dim=dim, kind="uniform", scale=0.05)
    return torch.from_numpy(rows.copy())


class Ours(nn.Module):
    def __init__(self, optimizer: Optimizer, *, norm: bool = False) -> None:
        super().__init__()
        self.embeddings = EmbeddingCollection([
            EmbeddingTable("user", DIM, optimizer=optimizer), EmbeddingTable("item", DIM, optimizer=optimizer)
        ])
        self.norm = nn.BatchNorm1d(2 * DIM + 1) if norm else nn.Identity()
        self.head = nn.Sequential(nn.Linear(2 * DIM + 1, 8), nn.ReLU(), nn.Linear(8, 1))

    def forward(self, batch: Batch) -> Tensor:
        x = torch.cat([self.embeddings(batch).cat(), batch.dense], dim=1)
        return self.head(self.norm(x)).squeeze(1)


class Plain(nn.Module):
    def __init__(self, ours: Ours, seed: int) -> None:
        super().__init__()
        self.tables = nn.ModuleDict({
            name: nn.Embedding.from_pretrained(start(name, 5, DIM, seed), freeze=False)
            for name in ("user", "item")
        })
        self.norm, self.head = ours.norm, ours.head

    def forward(self, user: Tensor, item: Tensor, x: Tensor) -> Tensor:
        looked = [self.tables["user"](user), self.tables["item"](item), x[:, None]]
        return self.head(self.norm(torch.cat(looked, dim=1))).squeeze(1)


def train(job: LocalJob, model: nn.Module, optimizer: torch.optim.Optimizer | None = None) -> list[float]:
    losses = []
    trainer = recmesh.torch.attach(job, model, optimizer)
    for batch in trainer:
        loss = nn.functional.binary_cross_entropy_with_logits(model(batch), batch.label)
        trainer.step(loss)
        losses.append(float(loss.detach()))
    return losses


@pytest.mark.parametrize("norm", [False, True])
@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_training_equals_plain_torch(tmp_path: Path, kind: str, norm: bool) -> None:
    ours_optimizer, make = OPTIMIZERS[kind]
    path = write_rows(tmp_path / "rows.parquet")
    job = recmesh.local_job(job_over(path, training={"epochs": 3}))
    ours = Ours(ours_optimizer, norm=norm)
    torch.manual_seed(1)
    reference = Ours(ours_optimizer, norm=norm)
    reference.load_state_dict(ours.state_dict())
    plain = Plain(reference, job.seed)
    optimizer = make(plain.parameters())
    columns = pq.read_table(path).to_pydict()
    expected = []
    for _ in range(3):
        for lo in range(0, 96, 32):
            user, item = (torch.tensor(columns[name][lo:lo + 32]) for name in ("user", "item"))
            assert len(user.unique()) == len(item.unique()) == 5   # Adam moves absent rows in torch, and ours are lazy
            x, click = (torch.tensor(columns[name][lo:lo + 32], dtype=torch.float32) for name in ("x", "click"))
            optimizer.zero_grad()
            loss = nn.functional.binary_cross_entropy_with_logits(plain(user, item, x), click)
            loss.backward()
            optimizer.step()
            expected.append(float(loss.detach()))
    losses = train(job, ours, make(ours.parameters()))
    assert losses == pytest.approx(expected, rel=2e-4)
    tables = job.session.tables()  # type: ignore[attr-defined]  # a LocalSession
    np.testing.assert_allclose(tables["user"].values, plain.tables["user"].weight.detach().numpy(), atol=2e-5)
    dense = job.session.dense()  # type: ignore[attr-defined]
    for name, value in plain.head.state_dict().items():
        np.testing.assert_allclose(dense[f"head.{name}"], value.numpy(), atol=2e-5)
    if norm:
        np.testing.assert_allclose(dense["norm.running_mean"], plain.norm.running_mean.numpy(), atol=1e-5)
        np.testing.assert_allclose(dense["norm.running_var"], plain.norm.running_var.numpy(), atol=1e-5)


def test_a_seed_gives_the_same_model_every_time(tmp_path: Path) -> None:
    path = write_rows(tmp_path / "rows.parquet")
    runs = []
    for _ in range(2):
        job = recmesh.local_job(job_over(path, data={"shuffle": True}, training={"epochs": 2}))
        losses = train(job, Ours(Optimizer(kind="adagrad")))
        runs.append((losses, job.session.tables()["user"].values))  # type: ignore[attr-defined]
    assert runs[0][0] == runs[1][0]
    np.testing.assert_array_equal(runs[0][1], runs[1][1])


def test_a_short_last_batch_counts_each_sample_as_any_other(tmp_path: Path) -> None:
    path = write_rows(tmp_path / "rows.parquet", rows=40)
    sums = []
    for size in (40, 32):   # 40 at once, or 32 and 8: equal nominal sizes give equal first-order sums
        job = recmesh.local_job(job_over(path, training={"batch_size": size}))
        model = Ours(Optimizer(kind="sgd"))
        grads = 0.0
        trainer = recmesh.torch.attach(job, model)
        with torch.no_grad():
            start = {name: p.clone() for name, p in model.named_parameters()}
        for batch in trainer:
            with torch.no_grad():
                for name, parameter in model.named_parameters():
                    parameter.copy_(start[name])
            loss = model(batch).mean()
            parameter = model.head[2].bias
            trainer.step(loss)
            assert parameter.grad is not None
            grads += float(parameter.grad) * size
        sums.append(grads)
    assert sums[0] == pytest.approx(sums[1])


FEATURES = [
    {"name": "item"},
    {"name": "tags", "kind": "bag"},
    {"name": "past", "kind": "sequence"},
    {"name": "x", "kind": "dense"},
]


@pytest.mark.parametrize("pooling", ["sum", "mean", "max"])
@pytest.mark.parametrize("weighted", [False, True])
def test_bags_and_sequences_equal_plain_torch_forward_and_backward(
    tmp_path: Path, pooling: Any, weighted: bool
) -> None:
    features = [dict(feature) for feature in FEATURES]
    if weighted:
        features[1]["weights"] = "share"
    path = write_rows(tmp_path / "rows.parquet", rows=32)
    job = recmesh.local_job(job_over(path, features=features, training={"optimizer": {"kind": "sgd", "lr": 1.0}}))
    collection = EmbeddingCollection([
        EmbeddingTable("tags", 3, pooling=pooling), EmbeddingTable("item", 3, ["item", "past"])
    ])
    weights = torch.randn(32, 3), torch.randn(32, 3)

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embeddings = collection

        def forward(self, batch: Batch) -> Tensor:
            looked = self.embeddings(batch)
            values, mask = looked.sequence("past")
            attended = (values * looked["item"].unsqueeze(1)).sum(2) * mask
            return (looked["tags"] * weights[0]).sum(1) + attended.sum(1) + (looked["item"] * weights[1]).sum(1)

    model = Model()
    trainer = recmesh.torch.attach(job, model)
    outputs = []
    for batch in trainer:
        out = model(batch)
        outputs.append(out.detach().numpy())
        trainer.step(out.mean())
    columns = pq.read_table(path).to_pydict()
    tags, items = start("tags", 6, 3).requires_grad_(), start("item", 5, 3).requires_grad_()
    expected = []
    for row in range(32):
        bag, past, item = columns["tags"][row], columns["past"][row], columns["item"][row]
        share = torch.tensor(columns["share"][row]) if weighted else torch.ones(len(bag))
        pooled = torch.zeros(3)
        if bag and pooling == "max":
            pooled = tags[bag].max(0).values
        elif bag:
            pooled = (tags[bag] * share[:, None]).sum(0) / (share.sum() if pooling == "mean" else 1.0)
        attended = (items[past] * items[item]).sum() if past else torch.zeros(())
        expected.append((pooled * weights[0][row]).sum() + attended + (items[item] * weights[1][row]).sum())
    stacked = torch.stack(expected)
    stacked.mean().backward()
    np.testing.assert_allclose(outputs[0], stacked.detach().numpy(), rtol=1e-4, atol=1e-6)
    tables = job.session.tables()  # type: ignore[attr-defined]
    for name, reference in (("tags", tags), ("item", items)):
        assert reference.grad is not None
        np.testing.assert_allclose(
            tables[name].values, (reference - reference.grad).detach().numpy()[tables[name].ids], atol=1e-6
        )


def refused(optimizer: Any, tmp_path: Path) -> str:
    job = recmesh.local_job(job_over(write_rows(tmp_path / "rows.parquet")))
    model = Ours(Optimizer())
    with pytest.raises(InvalidArgument) as caught:
        recmesh.torch.attach(job, model, optimizer(model.parameters()))
    return str(caught.value)


@pytest.mark.parametrize(("make", "reason"), [
    (lambda p: torch.optim.AdamW(p), "AdamW is not applied"),
    (lambda p: torch.optim.RMSprop(p), "take SGD, Adagrad or Adam"),
    (lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9), "no momentum"),
    (lambda p: torch.optim.Adam(p, amsgrad=True), "has no amsgrad"),
    (lambda p: torch.optim.Adagrad(p, lr_decay=0.1), "lr_schedule"),
    (lambda p: torch.optim.SGD(p, lr=0.1, maximize=True), "negate the loss"),
])
def test_what_the_servers_do_not_apply_is_refused_with_the_reason(tmp_path: Path, make: Any, reason: str) -> None:
    assert refused(make, tmp_path).count(reason) == 1


def test_a_scheduler_that_changes_the_rate_is_noticed(tmp_path: Path) -> None:
    job = recmesh.local_job(job_over(write_rows(tmp_path / "rows.parquet")))
    model = Ours(Optimizer())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    trainer = recmesh.torch.attach(job, model, optimizer)
    for batch in trainer:
        optimizer.param_groups[0]["lr"] = 0.05
        with pytest.raises(InvalidArgument, match=r"training\.lr_schedule"):
            trainer.step(model(batch).mean())
        break


def test_frozen_parameters_stay_and_are_kept(tmp_path: Path) -> None:
    job = recmesh.local_job(job_over(write_rows(tmp_path / "rows.parquet")))
    model = Ours(Optimizer())
    model.head[0].weight.requires_grad_(False)
    before = model.head[0].weight.clone().numpy()
    train(job, model)
    dense = job.session.dense()  # type: ignore[attr-defined]
    np.testing.assert_array_equal(dense["head.0.weight"], before)
    assert not np.array_equal(dense["head.2.bias"], np.zeros(1))


def test_parameters_of_another_precision_are_refused_by_name(tmp_path: Path) -> None:
    job = recmesh.local_job(job_over(write_rows(tmp_path / "rows.parquet")))
    with pytest.raises(InvalidArgument, match="float32"):
        recmesh.torch.attach(job, Ours(Optimizer()).double())


def test_tables_over_unknown_features_are_refused_by_name(tmp_path: Path) -> None:
    job = recmesh.local_job(job_over(write_rows(tmp_path / "rows.parquet")))

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embeddings = EmbeddingCollection([EmbeddingTable("city", 2, init=Init.zeros())])

    with pytest.raises(InvalidArgument, match="no id feature 'city'"):
        recmesh.torch.attach(job, Model())
