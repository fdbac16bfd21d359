"""The roles of a training job: ps, worker, evaluator, finisher; and the session through which models train.

Rooms, imports go down: `__main__` (the only reader of the environment) → `ps | worker | evaluator |
finisher` (the roles) → `local` → `wire` (calls to the mesh; the only room here that knows protobuf) →
`session | metrics`.
A framework skin (`recmesh.torch`, `recmesh.keras`) knows `session` and nothing of roles or the wire.
"""

from recmesh.trainer.session import (
    BuildOnly,
    DenseBlock,
    EmbeddingTable,
    Init,
    Job,
    ServableModel,
    Session,
    Step,
    TableRows,
)

__all__ = [
    "BuildOnly", "DenseBlock", "EmbeddingTable", "Init", "Job", "ServableModel", "Session", "Step",
    "TableRows",
]
