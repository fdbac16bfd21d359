"""Use cases of shardsvc: load, decide, save, tell."""

from services.shardsvc.app.datasets import Datasets, Inspected
from services.shardsvc.app.indexing import Indexer
from services.shardsvc.app.lags import Lags
from services.shardsvc.app.offsets import Offsets
from services.shardsvc.app.runs import LeaseAnswer, OpenRun, RunProgress, Runs
from services.shardsvc.app.streaming import Streams, StreamState
from services.shardsvc.app.tasklog import TaskLog

__all__ = [
    "Datasets", "Indexer", "Inspected", "Lags", "LeaseAnswer", "Offsets", "OpenRun", "RunProgress", "Runs",
    "StreamState", "Streams", "TaskLog",
]
