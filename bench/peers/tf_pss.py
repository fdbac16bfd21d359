"""TensorFlow's ParameterServerStrategy on Wide & Deep or DCN-v2: one coordinator, one worker, one PS.

    python -m bench.peers.tf_pss '{"model": "wide_deep", "steps": 200, ...}'   prints one JSON object

The models are those of recmesh's zoo. What was tried, and kept because it is faster: all tables in one variable with
ids shifted by table (a variable per table, as in the guide, costs an RPC's worth of operations each), the first-order
weight as the row's last column, split off (the gradient of a slice is several times slower), distinct ids looked up
and updated once per step, Adagrad as TensorFlow's own fused operation, initial values made on the parameter server.
Each role has one compute thread; four inter-op threads, as fewer deadlock the worker.
"""

import json
import multiprocessing
import os
import socket
import sys
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import psutil


def _quiet() -> None:
    os.environ.update(
        OMP_NUM_THREADS="1", TF_NUM_INTRAOP_THREADS="1", TF_NUM_INTEROP_THREADS="4",
        TF_CPP_MIN_LOG_LEVEL="3", CUDA_VISIBLE_DEVICES="", GRPC_VERBOSITY="NONE",
    )


def _serve(cluster: dict[str, list[str]], role: str) -> None:
    _quiet()
    import tensorflow as tf

    tf.distribute.Server(tf.train.ClusterSpec(cluster), job_name=role, task_index=0, protocol="grpc").join()


def _ports(count: int) -> list[int]:
    held = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [s.getsockname()[1] for s in held]
    for s in held:
        s.close()
    return ports


def cpu_seconds(processes: dict[str, psutil.Process]) -> dict[str, float]:
    """User and system time of the processes so far."""
    return {name: sum(p.cpu_times()[:2]) for name, p in processes.items()}


def main(task: dict[str, Any]) -> dict[str, Any]:
    """Train `steps` batches in each of `passes`, timed within `window`; the AUC is over held-out rows."""
    _quiet()
    worker_port, ps_port = _ports(2)
    cluster = {"worker": [f"127.0.0.1:{worker_port}"], "ps": [f"127.0.0.1:{ps_port}"]}
    context = multiprocessing.get_context("spawn")
    servers = {role: context.Process(target=_serve, args=(cluster, role), daemon=True) for role in cluster}
    for server in servers.values():
        server.start()
    try:
        return _coordinate(cluster, {role: psutil.Process(s.pid) for role, s in servers.items()}, task)
    finally:
        for server in servers.values():
            server.kill()


def _coordinate(
    cluster: dict[str, list[str]], servers: dict[str, psutil.Process], task: dict[str, Any]
) -> dict[str, Any]:
    import numpy as np
    import tensorflow as tf

    from bench.synthetic import DENSE, TABLES, read_records, record_bytes
    from recmesh.trainer.metrics import auc as area_under_curve

    resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
        tf.train.ClusterSpec(cluster), rpc_layer="grpc"
    )
    strategy = tf.distribute.ParameterServerStrategy(resolver)
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    batch, dim, ids, lr = (task[name] for name in ("batch_size", "dim", "ids", "lr"))
    hidden = [int(units) for units in task["hidden"]]
    width = TABLES * dim + DENSE
    shift = np.arange(TABLES, dtype=np.int64) * ids
    wide_and_deep = task["model"] == "wide_deep"
    row = dim + wide_and_deep
    scale = dim**-0.5 / 4
    pairs: list[tuple[Any, Any]] = []   # variable, accumulator

    def variable(initial: Any, shape: tuple[int, ...]) -> Any:
        made = tf.Variable(initial, shape=shape)
        with strategy.extended.colocate_vars_with(made):
            pairs.append((made, tf.Variable(lambda: tf.zeros(shape), shape=shape)))
        return made

    def dense_layer(number: int, inputs: int, units: int) -> tuple[Any, Any]:
        limit = (6 / (inputs + units)) ** 0.5

        def kernel() -> Any:
            return tf.random.stateless_uniform((inputs, units), [3, number], -limit, limit)

        return variable(kernel, (inputs, units)), variable(lambda: tf.zeros(units), (units,))

    with strategy.scope():
        table = variable(
            lambda: tf.random.stateless_uniform((ids * TABLES, row), [1, 2], -scale, scale), (ids * TABLES, row)
        )
        sizes = [width, *hidden]
        tower = [dense_layer(k, *pair) for k, pair in enumerate(pairwise(sizes))]
        cross = [] if wide_and_deep else [dense_layer(20 + k, width, width) for k in range(task["cross_layers"])]
        last = dense_layer(40, hidden[-1] if wide_and_deep else hidden[-1] + width, 1)
        linear = variable(lambda: tf.zeros((DENSE, 1)), (DENSE, 1)) if wide_and_deep else None

    def logits(rows: Any, dense: Any) -> Any:
        """Of rows [batch, tables, row] and dense [batch, columns]."""
        fields, *first = tf.split(rows, [dim, row - dim], axis=2) if wide_and_deep else [rows]
        x0 = tf.concat([tf.reshape(fields, (-1, TABLES * dim)), dense], axis=1)
        h = x0
        for kernel, bias in tower:
            h = tf.nn.relu(tf.matmul(h, kernel) + bias)
        if linear is not None:
            first_order = tf.reduce_sum(first[0][:, :, 0], axis=1, keepdims=True) + tf.matmul(dense, linear)
            return (tf.matmul(h, last[0]) + last[1] + first_order)[:, 0]
        x = x0
        for kernel, bias in cross:
            x = x0 * (tf.matmul(x, kernel) + bias) + x
        return (tf.matmul(tf.concat([x, h], axis=1), last[0]) + last[1])[:, 0]

    def data() -> Any:
        ids_end, dense_end = batch * TABLES * 8, batch * (TABLES * 8 + DENSE * 4)

        def decode(record: Any) -> Any:
            def part(lo: int, hi: int, kind: Any) -> Any:
                return tf.io.decode_raw(tf.strings.substr(record, lo, hi - lo), kind)

            drawn = tf.reshape(part(0, ids_end, tf.int64), (batch, TABLES)) + shift
            dense = tf.reshape(part(ids_end, dense_end, tf.float32), (batch, DENSE))
            return drawn, dense, tf.reshape(part(dense_end, record_bytes(batch), tf.float32), (batch,))

        return tf.data.FixedLengthRecordDataset(task["train"], record_bytes(batch)).repeat().map(decode).prefetch(2)

    dense_pairs = pairs[1:]

    @tf.function  # type: ignore[untyped-decorator]  # TensorFlow ships no types
    def step(iterator: Any) -> None:
        drawn, dense, label = next(iterator)
        unique, where = tf.unique(tf.reshape(drawn, (-1,)))
        found = table.sparse_read(unique)
        with tf.GradientTape() as tape:
            tape.watch(found)
            rows = tf.reshape(tf.gather(found, where), (-1, TABLES, row))
            entropy = tf.nn.sigmoid_cross_entropy_with_logits(label, logits(rows, dense))
            loss = tf.reduce_mean(entropy)
        of_rows, *of_dense = tape.gradient(loss, [rows, *(p[0] for p in dense_pairs)])
        summed = tf.math.unsorted_segment_sum(tf.reshape(of_rows, (-1, row)), where, tf.shape(unique)[0])
        tf.raw_ops.ResourceSparseApplyAdagradV2(
            var=table.handle, accum=pairs[0][1].handle, lr=lr, epsilon=1e-8, grad=summed, indices=unique
        )
        for pair, gradient in zip(dense_pairs, of_dense, strict=True):
            tf.raw_ops.ResourceApplyAdagradV2(
                var=pair[0].handle, accum=pair[1].handle, lr=lr, epsilon=1e-8, grad=gradient
            )

    iterator = iter(coordinator.create_per_worker_dataset(data))

    def train(steps: int) -> None:
        for _ in range(steps):
            coordinator.schedule(step, args=(iterator,))
        coordinator.join()

    everyone = {"coordinator": psutil.Process(), **servers}
    begin, end = task["window"]

    def one_pass() -> dict[str, Any]:
        train(begin)
        before, began = cpu_seconds(everyone), time.perf_counter()
        train(end - begin)
        wall_s, after = time.perf_counter() - began, cpu_seconds(everyone)
        train(task["steps"] - end)
        spent = {name: after[name] - before[name] for name in everyone}
        labels, scores = [], []
        for held in read_records(Path(task["test"]), batch=batch):
            scores.append(logits(table.sparse_read(held.ids + shift), tf.constant(held.dense)).numpy())
            labels.append(held.label)
        return {
            "auc": area_under_curve(np.concatenate(labels), np.concatenate(scores)),
            "samples_per_cpu_s": batch * (end - begin) / sum(spent.values()),
            "samples_per_s": batch * (end - begin) / wall_s,
            "cpu_ms_per_step": {name: round(s / (end - begin) * 1e3, 2) for name, s in spent.items()},
        }

    return {"passes": [one_pass() for _ in range(task["passes"])]}


if __name__ == "__main__":
    print(json.dumps(main(json.loads(sys.argv[1]))))
