"""`python -m bench.peers.tf_splits JSON`: splits handed out by tf.data service's dispatcher.

The dispatcher is TensorFlow's own, in a process of its own, in its fault-tolerant mode. A dataset of numbers is one
split per number; with dynamic sharding workers ask for each by a GetSplit call, which is written to the dispatcher's
journal before the answer goes out, without fsync. The clients here make the same calls as its workers do, without what
a worker does with a split; nobody reports a split as done, for the protocol has no such message.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

from bench.peers.asking import free_port, measured, wait_for

_DISPATCHER = """
import sys, tensorflow as tf
port, folder = int(sys.argv[1]), sys.argv[2]
tf.data.experimental.service.DispatchServer(tf.data.experimental.service.DispatcherConfig(
    port=port, work_dir=folder, fault_tolerant_mode=True)).join()
"""
_SERVICE = "/tensorflow.data.DispatcherService/"
_FIELDS: dict[str, list[tuple[int, str, str]]] = {
    # The fields used of tensorflow/core/data/service/{dispatcher,common}.proto, which the package has in C++ only.
    "WorkerHeartbeatRequest": [(1, "worker_address", "string"), (5, "worker_uid", "int64")],
    "WorkerHeartbeatResponse": [(1, "new_tasks", "TaskDef*")],
    "TaskDef": [(4, "task_id", "int64"), (5, "iteration_id", "int64")],
    "ProcessingModeDef": [(1, "sharding_policy", "int64")],
    "GetOrCreateJobRequest": [(1, "dataset_id", "string"), (2, "processing_mode_def", "ProcessingModeDef"),
                              (3, "job_name", "string")],
    "GetOrCreateJobResponse": [(1, "job_id", "int64")],
    "GetOrCreateIterationRequest": [(1, "job_id", "int64"), (2, "repetition", "int64")],
    "GetOrCreateIterationResponse": [(1, "iteration_client_id", "int64")],
    "GetSplitRequest": [(1, "iteration_id", "int64"), (2, "repetition", "int64"), (3, "split_provider_index", "int64")],
    "GetSplitResponse": [(1, "split", "bytes"), (2, "end_of_splits", "bool")],
}
_DYNAMIC = 1
"""ProcessingModeDef.ShardingPolicy."""


def main(task: dict[str, Any]) -> int:
    """Prints what was found for each number of clients."""
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
    port = free_port()
    dispatcher = subprocess.Popen([sys.executable, "-c", _DISPATCHER, str(port), task["folder"]])
    try:
        wait_for(dispatcher, port)
        found = _found(task, dispatcher.pid, port)
    finally:
        dispatcher.kill()
        dispatcher.wait()
    import tensorflow as tf

    print(json.dumps({"version": tf.__version__, "found": found}))
    return 0


def _found(task: dict[str, Any], dispatcher: int, port: int) -> list[dict[str, Any]]:
    import grpc
    import tensorflow as tf

    kinds = _messages()
    channels = [grpc.insecure_channel(f"127.0.0.1:{port}", [("grpc.use_local_subchannel_pool", 1)])
                for _ in range(max(task["clients"]))]

    def call(channel: Any, method: str) -> Callable[..., Any]:
        multi = channel.unary_unary(
            _SERVICE + method, kinds[f"{method}Request"].SerializeToString, kinds[f"{method}Response"].FromString)
        return lambda **fields: multi(kinds[f"{method}Request"](**fields), timeout=30.0)

    first = channels[0]
    data = tf.data.Dataset.range(task["splits"])
    dataset_id = tf.data.experimental.service.register_dataset(f"grpc://127.0.0.1:{port}", data)
    beat = call(first, "WorkerHeartbeat")
    beat(worker_address="127.0.0.1:1", worker_uid=1)
    job = call(first, "GetOrCreateJob")(
        dataset_id=dataset_id.numpy().decode(), processing_mode_def={"sharding_policy": _DYNAMIC}, job_name="bench")
    call(first, "GetOrCreateIteration")(job_id=job.job_id, repetition=0)
    iteration = beat(worker_address="127.0.0.1:1", worker_uid=1).new_tasks[0].iteration_id
    asks = [_asking(call(channel, "GetSplit"), iteration) for channel in channels]
    return [measured(asks[:count], server=dispatcher, window_s=task["window_s"]) for count in task["clients"]]


def _asking(get_split: Callable[..., Any], iteration: int) -> Callable[[], float]:
    def ask() -> float:
        asked = time.perf_counter()
        found = get_split(iteration_id=iteration, repetition=0, split_provider_index=0)
        took = time.perf_counter() - asked
        if found.end_of_splits or not found.split:
            raise RuntimeError("the dispatcher has no splits left: they are too few for this machine")
        return took

    return ask


def _messages() -> dict[str, Any]:
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    field = descriptor_pb2.FieldDescriptorProto
    scalars = {
        "int64": field.TYPE_INT64, "string": field.TYPE_STRING, "bytes": field.TYPE_BYTES, "bool": field.TYPE_BOOL,
    }
    file = descriptor_pb2.FileDescriptorProto(name="bench/tf_splits.proto", package="bench.tf", syntax="proto3")
    for name, fields in _FIELDS.items():
        message = file.message_type.add(name=name)
        for number, label, kind in fields:
            many = kind.endswith("*")
            added = message.field.add(number=number, name=label, label=field.LABEL_REPEATED if many else
                                      field.LABEL_OPTIONAL, type=scalars.get(kind, field.TYPE_MESSAGE))
            if kind not in scalars:
                added.type_name = f".bench.tf.{kind.removesuffix('*')}"
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"bench.tf.{name}")) for name in _FIELDS}


if __name__ == "__main__":
    sys.exit(main(json.loads(sys.argv[1])))
