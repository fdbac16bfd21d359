"""TensorFlow's ParameterServerStrategy on Wide & Deep or DCN-v2: one coordinator, one worker, one PS.

    python -m bench.peers.tf_pss '{"model": "wide_deep", "steps": 200, ...}'   prints one JSON object

Each role is a process with one compute thread; four inter-op threads, as fewer deadlock the worker. All
tables lie in one variable, ids shifted by table: a variable per table, as in the guide, is slower. Adagrad is
TensorFlow's own fused operation, with duplicate ids summed first, as its optimizers do.
"""

import json
import multiprocessing
import os
import socket
import sys
import time
from typing import Any

import psutil

BATCHES_IN_MEMORY = 32


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


def cpu_seconds(processes: list[psutil.Process]) -> float:
    """User and system time of the processes so far."""
    return sum(sum(p.cpu_times()[:2]) for p in processes)


def main(task: dict[str, Any]) -> dict[str, float]:
    """Train and time `steps` steps after `warm_up`; the AUC is over held-out rows."""
    _quiet()
    worker_port, ps_port = _ports(2)
    cluster = {"worker": [f"127.0.0.1:{worker_port}"], "ps": [f"127.0.0.1:{ps_port}"]}
    context = multiprocessing.get_context("spawn")
    servers = [context.Process(target=_serve, args=(cluster, role), daemon=True) for role in cluster]
    for server in servers:
        server.start()
    try:
        return _coordinate(cluster, [psutil.Process(s.pid) for s in servers], task)
    finally:
        for server in servers:
            server.kill()


def _coordinate(
    cluster: dict[str, list[str]], servers: list[psutil.Process], task: dict[str, Any]
) -> dict[str, float]:
    import numpy as np
    import tensorflow as tf

    from bench.synthetic import DENSE, TABLES, criteo_like
    from recmesh.trainer.metrics import auc as area_under_curve

    resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
        tf.train.ClusterSpec(cluster), rpc_layer="grpc"
    )
    strategy = tf.distribute.ParameterServerStrategy(resolver)
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    batch, dim, ids, lr = (task[name] for name in ("batch_size", "dim", "ids", "lr"))
    hidden = [int(units) for units in task["hidden"]]
    rng = np.random.default_rng(0)
    pairs: list[tuple[Any, Any]] = []   # variable, accumulator

    def variable(initial: Any) -> Any:
        made = tf.Variable(initial)
        with strategy.extended.colocate_vars_with(made):
            pairs.append((made, tf.Variable(tf.zeros(made.shape))))
        return made

    def dense_layer(inputs: int, units: int) -> tuple[Any, Any]:
        limit = (6 / (inputs + units)) ** 0.5
        kernel = rng.uniform(-limit, limit, (inputs, units)).astype(np.float32)
        return variable(kernel), variable(np.zeros(units, np.float32))

    width = TABLES * dim + DENSE
    shift = np.arange(TABLES, dtype=np.int64) * ids
    wide_and_deep = task["model"] == "wide_deep"
    with strategy.scope():
        deep = variable(tf.random.stateless_uniform((ids * TABLES, dim), [1, 2], -0.05, 0.05))
        wide = variable(tf.zeros((ids * TABLES, 1))) if wide_and_deep else None
        tower, inputs = [], width
        for units in hidden:
            tower.append(dense_layer(inputs, units))
            inputs = units
        cross = [] if wide_and_deep else [dense_layer(width, width) for _ in range(task["cross_layers"])]
        last = dense_layer(inputs if wide_and_deep else inputs + width, 1)

    def logits(drawn: Any, dense: Any) -> Any:
        rows = deep.sparse_read(drawn)
        x0 = tf.concat([tf.reshape(rows, (-1, TABLES * dim)), dense], axis=1)
        h = x0
        for kernel, bias in tower:
            h = tf.nn.relu(tf.matmul(h, kernel) + bias)
        if wide is not None:
            shifts = tf.reduce_sum(wide.sparse_read(drawn), axis=1)
            return (tf.matmul(h, last[0]) + last[1] + shifts)[:, 0]
        x = x0
        for kernel, bias in cross:
            x = x0 * (tf.matmul(x, kernel) + bias) + x
        return (tf.matmul(tf.concat([x, h], axis=1), last[0]) + last[1])[:, 0]

    def apply_dense(pair: Any, gradient: Any) -> None:
        tf.raw_ops.ResourceApplyAdagradV2(
            var=pair[0].handle, accum=pair[1].handle, lr=lr, epsilon=1e-8, grad=gradient
        )

    def apply_sparse(pair: Any, gradient: Any) -> None:
        unique, where = tf.unique(gradient.indices)
        summed = tf.math.unsorted_segment_sum(gradient.values, where, tf.shape(unique)[0])
        tf.raw_ops.ResourceSparseApplyAdagradV2(
            var=pair[0].handle, accum=pair[1].handle, lr=lr, epsilon=1e-8, grad=summed, indices=unique
        )

    def data() -> Any:
        drawn = criteo_like(batch * BATCHES_IN_MEMORY * task.get("data_scale", 1), seed=1, ids=ids)
        arrays = (drawn.ids + shift, drawn.dense, drawn.label)
        batches = tuple(array.reshape(-1, batch, *array.shape[1:]) for array in arrays)
        return tf.data.Dataset.from_tensor_slices(batches).repeat().prefetch(2)

    @tf.function  # type: ignore[untyped-decorator]  # TensorFlow ships no types
    def step(iterator: Any) -> Any:
        drawn, dense, label = next(iterator)
        with tf.GradientTape() as tape:
            entropy = tf.nn.sigmoid_cross_entropy_with_logits(label, logits(drawn, dense))
            loss = tf.reduce_mean(entropy)
        gradients = tape.gradient(loss, [p[0] for p in pairs])
        for pair, gradient in zip(pairs, gradients, strict=True):
            (apply_sparse if isinstance(gradient, tf.IndexedSlices) else apply_dense)(pair, gradient)
        return loss

    iterator = iter(coordinator.create_per_worker_dataset(data))
    for _ in range(task["warm_up"]):
        coordinator.schedule(step, args=(iterator,))
    coordinator.join()
    everyone = [psutil.Process(), *servers]
    cpu, wall = cpu_seconds(everyone), time.perf_counter()
    for _ in range(task["steps"]):
        coordinator.schedule(step, args=(iterator,))
    coordinator.join()
    cpu, wall = cpu_seconds(everyone) - cpu, time.perf_counter() - wall
    held = criteo_like(task["test_rows"], seed=2, ids=ids)
    scores = []
    for lo in range(0, task["test_rows"], batch):
        scores.append(logits(held.ids[lo : lo + batch] + shift, held.dense[lo : lo + batch]).numpy())
    samples = batch * task["steps"]
    return {
        "samples_per_cpu_s": samples / cpu, "samples_per_s": samples / wall,
        "auc": area_under_curve(held.label, np.concatenate(scores)),
    }


if __name__ == "__main__":
    print(json.dumps(main(json.loads(sys.argv[1]))))
