"""`python -m bench.peers.dlrover_tasks JSON`: tasks handed out by DLRover's master, over its gRPC, to its own clients.

Each client asks for a task and reports it done, one by one, as its protocol is. The master keeps its tasks in memory
and loses them with its process.
"""

import importlib.metadata
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

from bench.peers.asking import free_port, measured, wait_for

NAME = "bench"
_MASTER = "from dlrover.python.master.main import main; main()"


def main(task: dict[str, Any]) -> int:
    """Prints what was found for each number of clients."""
    os.environ["DLROVER_LOG_LEVEL"] = "ERROR"
    port = free_port()
    options = ["--platform", "local", "--job_name", NAME, "--node_num", "1", "--port", str(port)]
    master = subprocess.Popen([sys.executable, "-c", _MASTER, *options])
    try:
        wait_for(master, port)
        found = _found(task, master.pid, port)
    finally:
        master.kill()
        master.wait()
    print(json.dumps({"version": importlib.metadata.version("dlrover"), "found": found}))
    return 0


def _found(task: dict[str, Any], master: int, port: int) -> list[dict[str, Any]]:
    from dlrover.python.elastic_agent.master_client import GrpcMasterClient

    clients = [GrpcMasterClient(f"127.0.0.1:{port}", node_id, "worker") for node_id in range(max(task["clients"]))]
    clients[0].report_dataset_shard_params(
        batch_size=task["shard_rows"], num_epochs=task["epochs"], dataset_size=task["rows"], shuffle=False,
        num_minibatches_per_shard=1, dataset_name=NAME, task_type=1, storage_type="table",
    )
    asks = [_asking(client) for client in clients]
    return [measured(asks[:count], server=master, window_s=task["window_s"]) for count in task["clients"]]


def _asking(client: Any) -> Callable[[], float]:
    def ask() -> float:
        asked = time.perf_counter()
        success, task = client.get_task(NAME)
        took = time.perf_counter() - asked
        if not success or task.shard.end <= task.shard.start:
            raise RuntimeError(f"DLRover's master gave no task: {task}")
        client.report_task_result(NAME, task.task_id, "")
        return took

    return ask


if __name__ == "__main__":
    sys.exit(main(json.loads(sys.argv[1])))
