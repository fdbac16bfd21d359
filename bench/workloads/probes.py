"""A model of which each event changes one prediction, and a worker that notes when it hands a gradient over.

Logit of an item: its row, and a dense layer over `x`. An item never seen has no row, so its prediction is that of any
other such item: one differs from the other from the version on in which its event was trained.
"""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from recmesh.trainer.session import EmbeddingTable, Init, Job

PROBES = 1 << 40
"""Items from here on are probes."""
HIDDEN = 64


class Noting:
    """The session; when a step with probes is pushed, that is written down."""

    def __init__(self, session: Any, notes: Path) -> None:
        self._session, self._notes = session, notes

    def __getattr__(self, name: str) -> Any:
        return getattr(self._session, name)

    def steps(self) -> Iterator[Any]:
        """The session's."""
        for step in self._session.steps():
            push = step.push

            def noted(*given: Any, _push: Any = push, _step: Any = step, **more: Any) -> None:
                items = _step.batch.ids["item"].values
                probes = items[items >= PROBES]
                at = time.time()                       # before it is sent: the ack comes later
                _push(*given, **more)
                if len(probes):
                    with self._notes.open("a") as file:
                        file.writelines(f"{item} {at}\n" for item in probes.tolist())

            step.push = noted
            yield step


def main(job: Job) -> None:
    """Trains it."""
    import torch
    from torch import nn

    from recmesh.torch import EmbeddingCollection, attach

    class Probed(nn.Module):  # type: ignore[misc]  # torch is not analysed
        """Logits [B]."""

        def __init__(self, dim: int) -> None:
            super().__init__()
            self.embeddings = EmbeddingCollection([EmbeddingTable("item", dim, init=Init.zeros())])
            self.deep = nn.Sequential(nn.Linear(1, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, 1))

        def forward(self, batch: Any) -> torch.Tensor:
            """The row's sum and what the layer says."""
            return self.embeddings(batch)["item"].sum(dim=1) + self.deep(batch.dense)[:, 0]

    notes = job.params.pop("notes")
    model = Probed(job.params.pop("dim"))
    if job.mode == "train":
        job.session = Noting(job.session, Path(notes))
    trainer = attach(job, model)
    for batch in trainer:
        loss = nn.functional.binary_cross_entropy_with_logits(model(batch), batch.label)
        trainer.step(loss)
