"""recmesh in torch: embeddings without a fixed size, and an ordinary training loop.

    def main(job):
        model = Net(job)                                   # has a recmesh.torch.EmbeddingCollection
        optimizer = torch.optim.Adagrad(model.parameters(), lr=0.01)
        trainer = recmesh.torch.attach(job, model, optimizer)
        for batch in trainer:
            loss = F.binary_cross_entropy_with_logits(model(batch), batch.label)
            trainer.step(loss)

The same lines train in a worker and, with `job = recmesh.local_job("job.yaml")`, alone in a notebook.
"""

from recmesh.torch.batch import Batch, Embeddings, Padded
from recmesh.torch.embedding import EmbeddingCollection
from recmesh.torch.mixed import Memory, MixedTowers
from recmesh.torch.trainer import Trainer, attach

__all__ = ["Batch", "EmbeddingCollection", "Embeddings", "Memory", "MixedTowers", "Padded", "Trainer", "attach"]
