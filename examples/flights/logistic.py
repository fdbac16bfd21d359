"""The baseline beside the demo's model: a logistic regression on the same rows and features."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import yaml

from recmesh.data import whole_dataset
from recmesh.spec.dataset import DatasetSpec
from recmesh.trainer.metrics import auc, logloss


@dataclass(frozen=True, slots=True)
class Scores:
    """Of the rows after the training rows."""

    auc: float
    logloss: float
    rows: int


def columns(spec: DatasetSpec, rows: tuple[float, float]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """ids [rows, features], dense [rows, columns] and labels [rows], converted as training converts them."""
    part = spec.model_copy(update={"source": spec.source.model_copy(update={"rows": rows})})
    batches = list(whole_dataset(part))
    names = [feature.name for feature in spec.features if feature.kind == "single"]
    ids = np.concatenate([np.stack([b.ids[name].values for name in names], axis=1) for b in batches])
    return ids, np.concatenate([b.dense for b in batches]), np.concatenate([b.labels[:, 0] for b in batches])


def train(job_file: Path, *, epochs: int = 2, batch: int = 1024, rate: float = 0.05) -> Scores:
    """Fit by Adagrad on the job's training rows and judge by its evaluation rows."""
    import torch

    torch.set_num_threads(1)
    torch.manual_seed(0)
    job = yaml.safe_load(job_file.read_text())
    spec = DatasetSpec.parse(job["data"])
    ids, dense, labels = columns(spec, job["data"]["source"]["rows"])
    later_ids, later_dense, later_labels = columns(spec, job["evaluation"]["rows"])
    known = [np.unique(column) for column in ids.T]
    starts = np.cumsum([1, *(len(column) for column in known)])   # row 0 stands for ids never seen

    def numbered(table: np.ndarray) -> torch.Tensor:
        numbers = np.zeros_like(table)
        for k, column in enumerate(known):
            at = np.searchsorted(column, table[:, k]).clip(max=len(column) - 1)
            numbers[:, k] = np.where(column[at] == table[:, k], at + starts[k], 0)
        return torch.from_numpy(numbers)

    weights = torch.nn.EmbeddingBag(int(starts[-1]), 1, mode="sum", padding_idx=0)
    torch.nn.init.zeros_(weights.weight)
    linear = torch.nn.Linear(dense.shape[1], 1)
    optimizer = torch.optim.Adagrad([*weights.parameters(), *linear.parameters()], lr=rate)
    x, z, y = numbered(ids), torch.from_numpy(dense), torch.from_numpy(labels)
    for _ in range(epochs):
        for chosen in torch.randperm(len(y)).split(batch):
            logits = (weights(x[chosen]) + linear(z[chosen]))[:, 0]
            loss = torch.nn.functional.binary_cross_entropy_with_logits(logits, y[chosen])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    with torch.no_grad():
        logits = (weights(numbered(later_ids)) + linear(torch.from_numpy(later_dense)))[:, 0]
        scores = torch.sigmoid(logits).numpy()
    return Scores(auc(later_labels, scores), logloss(later_labels, scores), len(later_labels))
