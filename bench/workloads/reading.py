"""One reader of `bench load`: takes every batch, looks at its labels, and says how long that took."""

import json
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pyarrow.parquet as pq

from bench.synthetic import DENSE, TABLES

COLUMNS = ["label", *(f"I{k + 1}" for k in range(DENSE)), *(f"C{k + 1}" for k in range(TABLES))]


def main() -> None:
    """The task is the argument, as JSON; the figures are the last line."""
    task = json.loads(sys.argv[1])
    if task["reader"] == "write_examples":
        write_examples(task)
        print("{}")
        return
    batches = READERS[task["reader"]](task)
    first = next(batches)               # what a process does once is not the reader's speed
    me = psutil.Process()
    began, cpu, samples, total = time.perf_counter(), _cpu(me), 0, float(first[1])
    for size, label in batches:
        samples += size
        total += float(label)
    figures = {"samples": samples, "s": time.perf_counter() - began, "cpu_s": _cpu(me) - cpu, "labels": total}
    print(json.dumps(figures))


def _cpu(process: psutil.Process) -> float:
    """Of the process, its living children, and those that have ended."""
    own = process.cpu_times()
    living = sum(sum(child.cpu_times()[:2]) for child in process.children(recursive=True))
    return float(own.user + own.system + own.children_user + own.children_system + living)


Sizes = Iterator[tuple[int, float]]


def pyarrow_alone(task: dict[str, Any]) -> Sizes:
    """Columns as numpy arrays, as they are in the file."""
    for columns in _tables(task):
        yield len(columns["label"]), columns["label"].sum()


def _tables(task: dict[str, Any]) -> "Iterator[dict[str, Any]]":
    for _ in range(task["epochs"]):
        file = pq.ParquetFile(task["path"])
        for batch in file.iter_batches(task["batch"], columns=COLUMNS, use_threads=False):
            yield {name: batch.column(name).to_numpy(zero_copy_only=False) for name in COLUMNS}


def recmesh(task: dict[str, Any], *, shuffle: bool = False) -> Sizes:
    """Ids by feature, dense columns as one array, targets."""
    from recmesh import Dataset

    dataset = Dataset(task["data"] | {"shuffle": shuffle})
    for batch in dataset.batches(task["batch"], epochs=task["epochs"], seed=1):
        yield batch.size, batch.labels.sum()


def recmesh_materialised(task: dict[str, Any]) -> Sizes:
    """From the cache of transformed rows, which is written first."""
    from recmesh import Dataset

    cache = {"folder": str(Path(task["path"]).with_name("cache")), "limit": "16Gi"}
    dataset = Dataset(task["data"] | {"shuffle": False, "cache": cache})
    for _ in dataset.batches(task["batch"], epochs=1, seed=1):
        pass
    for batch in dataset.batches(task["batch"], epochs=task["epochs"], seed=1):
        yield batch.size, batch.labels.sum()


def recmesh_executors(task: dict[str, Any], *, count: int) -> Sizes:
    """By data executors, as a worker asks them."""
    from bench.workloads.asking import batches_of, executors_of, leases_of, reader_of

    data = task["data"] | {"shuffle": True}     # else the buffer would still have the second epoch's tasks
    with executors_of(data, [0.0] * count) as executors:
        reader = reader_of(data, [each.address for each in executors], batch=task["batch"])
        leases = leases_of(data, batch=task["batch"], epochs=task["epochs"])
        for _, batch in batches_of(reader, leases, batch=task["batch"]):
            yield batch.size, batch.labels.sum()


def _as_text(task: dict[str, Any]) -> dict[str, Any]:
    """The rows as text; tasks small enough for both executors to have some."""
    files = [str(Path(task["path"]).with_name("rows.tsv"))]
    source = {"format": "tsv", "files": files, "header": False, "columns": COLUMNS}
    return task | {"data": task["data"] | {"source": source, "task_rows": 2 * task["batch"]}}


def recmesh_torch(task: dict[str, Any]) -> Sizes:
    """Tensors by feature."""
    from recmesh import Dataset

    dataset = Dataset(task["data"] | {"shuffle": False})
    for _, labels, _ in dataset.torch(task["batch"], epochs=task["epochs"], seed=1):
        yield len(labels), labels.sum()


def torch_dataloader(task: dict[str, Any], *, workers: int = 0) -> Sizes:
    """A DataLoader over an iterable dataset that reads whole batches by pyarrow; workers share the row groups."""
    import torch
    from torch.utils.data import DataLoader, IterableDataset, get_worker_info

    class Rows(IterableDataset):  # type: ignore[misc]  # torch's class has no types here
        def __iter__(self) -> Iterator[dict[str, Any]]:
            info = get_worker_info()
            rank, world = (info.id, info.num_workers) if info else (0, 1)
            for _ in range(task["epochs"]):
                file = pq.ParquetFile(task["path"])
                groups = list(range(rank, file.num_row_groups, world))
                for batch in file.iter_batches(task["batch"], row_groups=groups, columns=COLUMNS, use_threads=False):
                    yield {name: torch.from_numpy(batch.column(name).to_numpy().copy()) for name in COLUMNS}

    torch.set_num_threads(1)
    loader: Iterable[dict[str, Any]] = DataLoader(Rows(), batch_size=None, num_workers=workers)
    for tensors in loader:
        yield len(tensors["label"]), tensors["label"].sum()


def write_examples(task: dict[str, Any]) -> None:
    """The first rows as tf.Example."""
    import tensorflow as tf

    table = next(pq.ParquetFile(task["data"]["source"]["files"][0]).iter_batches(task["rows"], columns=COLUMNS))
    columns = {name: table.column(name).to_numpy(zero_copy_only=False) for name in COLUMNS}
    with tf.io.TFRecordWriter(task["out"]) as writer:
        for row in range(table.num_rows):
            features = {
                name: tf.train.Feature(float_list=tf.train.FloatList(value=[columns[name][row]]))
                if name.startswith("I") else tf.train.Feature(int64_list=tf.train.Int64List(value=[columns[name][row]]))
                for name in COLUMNS
            }
            writer.write(tf.train.Example(features=tf.train.Features(feature=features)).SerializeToString())


def tfdata(task: dict[str, Any], *, service: bool = False) -> Sizes:
    """Batches of records, parsed together."""
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(1)
    kinds = {name: tf.io.FixedLenFeature((), tf.float32 if name.startswith("I") else tf.int64) for name in COLUMNS}
    dataset = tf.data.TFRecordDataset(task["path"]).repeat(task["epochs"]).batch(task["batch"])
    dataset = dataset.map(lambda records: tf.io.parse_example(records, kinds), num_parallel_calls=1).prefetch(2)
    servers: list[Any] = []
    if service:
        dispatcher = tf.data.experimental.service.DispatchServer()
        address = dispatcher.target.split("://")[1]
        config = tf.data.experimental.service.WorkerConfig(dispatcher_address=address)
        servers = [dispatcher, tf.data.experimental.service.WorkerServer(config)]
        dataset = dataset.apply(
            tf.data.experimental.service.distribute(processing_mode="distributed_epoch", service=dispatcher.target)
        )
    for batch in dataset:
        yield len(batch["label"]), float(np.sum(batch["label"].numpy()))
    del servers


READERS: dict[str, Any] = {
    "pyarrow": pyarrow_alone,
    "recmesh": recmesh,
    "recmesh_shuffled": lambda task: recmesh(task, shuffle=True),
    "recmesh_materialised": recmesh_materialised,
    "recmesh_executors_1": lambda task: recmesh_executors(task, count=1),
    "recmesh_executors_2": lambda task: recmesh_executors(task, count=2),
    "recmesh_text": lambda task: recmesh(_as_text(task), shuffle=True),
    "recmesh_text_executors_2": lambda task: recmesh_executors(_as_text(task), count=2),
    "recmesh_torch": recmesh_torch,
    "torch_dataloader": torch_dataloader,
    "torch_dataloader_2_workers": lambda task: torch_dataloader(task, workers=2),
    "tfdata": tfdata,
    "tfdata_service": lambda task: tfdata(task, service=True),
}

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
    main()
