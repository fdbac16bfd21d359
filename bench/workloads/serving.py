"""`python -m bench.workloads.serving JSON`: a data executor without a jobmaster, until its input ends.

It is the role's own executor, wire and threads; what jobmaster would tell it, its peers, comes as lines of JSON. With
`flight` in the task the same rows are served by Arrow Flight, to compare the wires.
"""

import json
import os
import sys
import time
from typing import Any

from recmesh.data import TaskRecord
from recmesh.data.decoded import Decoded
from recmesh.runtime.rpc import sync_channel, sync_server
from recmesh.spec.fingerprint import job_fingerprint
from recmesh.spec.job import TrainingJob
from recmesh.trainer.executor.rebalance import Peer
from recmesh.trainer.executor.role import Connections, Decode, executor_of
from recmesh.trainer.executor.rpc import LANES, MOST_WAITING, SERVICE_NAME, DataExecutorServicer, add_to_server
from recmesh.trainer.wire import RemoteExecutor

CATCH_UP_S = 0.1


def job_of(data: dict[str, Any], **role: Any) -> TrainingJob:
    """A job that reads `data` by executors of such a role."""
    return TrainingJob.parse({
        "name": "bench", "model": {"entrypoint": "none:none"}, "data": data, "roles": {"data": role},
    })


def paced(decode: Decode, rows_per_s: float) -> Decode:
    """As on a machine that decodes so many rows per second: the rest of a task's time it sleeps. 0: as it is."""
    if not rows_per_s:
        return decode
    due = [0.0]

    def slowly(task: TaskRecord) -> Decoded:
        # A sleep that lasted too long is made up for: it is the machine's, not the decoder's pace.
        due[0] = max(due[0], time.monotonic() - CATCH_UP_S) + task.rows / rows_per_s
        made = decode(task)
        time.sleep(max(0.0, due[0] - time.monotonic()))
        return made

    return slowly


def main() -> None:
    """Prints its address, and at the end what it has done."""
    task = json.loads(sys.argv[1])
    if task.get("flight"):
        from bench.peers.flight import serve

        serve(task["data"])
        return
    spec = job_of(task["data"], **task.get("role", {}))
    fingerprint = job_fingerprint(spec, job_id="bench")
    connections = Connections(lambda address: RemoteExecutor(sync_channel(address), fingerprint=fingerprint))
    executor = executor_of(
        spec, reach=connections.reach, around=lambda decode: paced(decode, task.get("rows_per_s", 0))
    )
    listener = sync_server(
        "data", "127.0.0.1:0", [add_to_server(DataExecutorServicer(executor, fingerprint=fingerprint))],
        service_names=[SERVICE_NAME], max_workers=MOST_WAITING, lanes=LANES,
    )
    executor.start(listener.address)
    print(json.dumps({"address": listener.address, "pid": os.getpid()}), flush=True)
    for line in sys.stdin:
        executor.use_peers({address: Peer(True, 0) for address in json.loads(line)})
    done = executor.serving()
    print(json.dumps({"decoded": done.decoded, "forwarded": done.forwarded, "taken": done.taken}), flush=True)
    executor.stop()
    listener.stop(1.0)


if __name__ == "__main__":
    main()
