"""Rows by Arrow Flight: a server that answers a ticket with a batch's columns, and its client."""

import json
import os
import sys
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.flight as flight

from bench.workloads.asking import tasks_of
from recmesh.data import Batch, IdColumn, TaskReader
from recmesh.spec.dataset import DatasetSpec


class Server(flight.FlightServerBase):      # type: ignore[misc]  # pyarrow has no types
    """Tickets are `lo hi`, positions of the dataset's one line."""

    def __init__(self, data: dict[str, Any]) -> None:
        super().__init__("grpc://127.0.0.1:0")
        self._reader, self._tasks = TaskReader(DatasetSpec.parse(data), cache_bytes=1 << 30), tasks_of(data)

    def do_get(self, context: Any, ticket: Any) -> Any:
        """One record batch of one column per array."""
        lo, hi = map(int, ticket.ticket.split())
        batch = self._reader.batch(self._tasks, lo, hi)
        arrays = {f"ids {name}": pa.array(column.values) for name, column in batch.ids.items()}
        arrays |= {
            "dense": pa.FixedSizeListArray.from_arrays(pa.array(batch.dense.reshape(-1)), batch.dense.shape[1]),
            "labels": pa.FixedSizeListArray.from_arrays(pa.array(batch.labels.reshape(-1)), batch.labels.shape[1]),
        }
        table = pa.Table.from_batches([pa.record_batch(list(arrays.values()), names=list(arrays))])
        return flight.RecordBatchStream(table)


def serve(data: dict[str, Any]) -> None:
    """Until the input ends."""
    server = Server(data)
    print(json.dumps({"address": f"127.0.0.1:{server.port}", "pid": os.getpid()}), flush=True)
    sys.stdin.read()
    server.shutdown()


class Client:
    """Batches by position."""

    def __init__(self, address: str) -> None:
        self._client = flight.connect(f"grpc://{address}")

    def batch(self, lo: int, hi: int) -> Batch:
        """As the server has it; arrays are views of what came."""
        options = flight.FlightCallOptions(timeout=30)
        table = self._client.do_get(flight.Ticket(f"{lo} {hi}".encode()), options).read_all()
        (found,) = table.to_batches()
        columns = {name: found.column(name) for name in found.schema.names}
        ids = {name[4:]: IdColumn(column.to_numpy()) for name, column in columns.items() if name.startswith("ids ")}
        dense, labels = (columns[name].flatten().to_numpy().reshape(found.num_rows, -1) for name in ("dense", "labels"))
        return Batch(found.num_rows, ids, dense.astype(np.float32, copy=False), labels)
