"""recmesh: trains, keeps fresh and serves deep recommendation models on shared, unstable clusters.

A user's training code needs the few names below; all else is reached by its own module. They are loaded on
first use, since every role and service imports this package and most need none of them.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from recmesh.datasets import Dataset, DataStream, Source
    from recmesh.trainer.local import local_job
    from recmesh.trainer.session import DenseBlock, EmbeddingTable, Init, Job, Step

__version__ = "0.1.0"
__all__ = [
    "DataStream", "Dataset", "DenseBlock", "EmbeddingTable", "Init", "Job", "Source", "Step", "__version__",
    "local_job",
]

_HOME = {
    "DataStream": "recmesh.datasets",
    "Dataset": "recmesh.datasets",
    "DenseBlock": "recmesh.trainer.session",
    "EmbeddingTable": "recmesh.trainer.session",
    "Init": "recmesh.trainer.session",
    "Job": "recmesh.trainer.session",
    "Source": "recmesh.datasets",
    "Step": "recmesh.trainer.session",
    "local_job": "recmesh.trainer.local",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'recmesh' has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)
