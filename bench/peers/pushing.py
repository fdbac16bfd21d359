"""`python -m bench.peers.pushing JSON`: a worker of numpy that pulls and pushes zipf ids until it is told to end.

Writes the time (CLOCK_MONOTONIC, float64) at which each of its steps was acknowledged to a file, one by one.
"""

import json
import signal
import sys
import time
from itertools import count
from pathlib import Path

import numpy as np

from bench.synthetic import zipf_ids
from recmesh.pb import common_pb2, ps_pb2
from recmesh.pb.ps_pb2_grpc import ParameterServerStub
from recmesh.runtime.rpc import sync_channel

BATCHES = 256


def main(task: dict[str, object]) -> int:
    """One step after the other: pull the batch's distinct ids, push a gradient for each."""
    rng = np.random.default_rng(7)
    drawn = zipf_ids(rng, (BATCHES, int(str(task["batch"]))), ids=int(str(task["ids"])))
    spread = rng.permutation(int(str(task["ids"])))          # frequent ids lie anywhere in the table
    batches = [np.unique(spread[ids], return_counts=True) for ids in drawn]
    dim = int(str(task["dim"]))
    stub = ParameterServerStub(sync_channel(str(task["address"]), token=str(task["token"])))
    going = [True]
    signal.signal(signal.SIGTERM, lambda *_: going.clear())
    job_id, gen = str(task["job_id"]), int(str(task["gen"]))
    with Path(str(task["times"])).open("wb", buffering=0) as times:
        for step in count(int(str(task["first"]))):
            if not going:
                return 0
            ids, counts = batches[step % BATCHES]
            asked = [ps_pb2.TableIds(table=0, ids=ids.tobytes())]
            rows = stub.Pull(ps_pb2.PullRequest(job_id=job_id, gen=gen, map_version=1, tables=asked),
                             timeout=60.0).rows[0]
            grads = np.frombuffer(rows, np.float32).reshape(-1, dim) * np.float32(1e-3)
            reply = stub.Push(ps_pb2.PushRequest(
                job_id=job_id, gen=gen, map_version=1, batch=[common_pb2.Piece(line=0, lo=step, hi=step + 1)],
                tables=[ps_pb2.TableGrads(table=0, ids=ids.tobytes(), grads=grads.tobytes(),
                                          counts=counts.astype(np.uint32).tobytes())]), timeout=60.0)
            if reply.status != ps_pb2.PushReply.APPLIED:
                raise RuntimeError(f"step {step} was answered {reply.status}")
            times.write(np.float64(time.monotonic()).tobytes())
    return 0


if __name__ == "__main__":
    sys.exit(main(json.loads(sys.argv[1])))
