"""A quarter of the data executors gets a tenth of its speed: rebalancing, forwarding, and a pipeline that pushes back.

Every executor is a process with the role's own buffer, wire and rules, and the loop reads as a worker does. Speeds are
set by pacing: a decoder takes at least rows/speed for each task, and sleeps for what decoding did not take. So two
cores are no limit, slowing one speeds up no other, and capacity is known; a control run with none slowed shows it.

Then executors are scaled by their buffers, from one to what a trainer needs: see bench.executor_scaling.
"""

import time
from collections.abc import Iterator, Sequence
from typing import Any

from bench.executor_scaling import scaled
from bench.figures import Result
from bench.mesh import criteo_data, say, scratch
from bench.peers.pushing_back import CREDITS
from bench.peers.pushing_back import batches as pushing_back
from bench.synthetic import criteo_like, write_parquet
from bench.workloads.asking import batches_of, ended, executors_of, leases_of, reader_of, tasks_of
from bench.workloads.serving import job_of
from recmesh.data import Batch
from recmesh.runtime.rpc import sync_channel
from recmesh.spec.fingerprint import job_fingerprint
from recmesh.trainer.wire import RemoteExecutor

EXECUTORS, SLOWED = 4, 1
SLOW = 0.1
RATE = 4_096.0
"""Rows per second of one executor."""
TASK_ROWS, BATCH = 1_024, 256
SECONDS, QUICK_SECONDS = 90.0, 12.0
"""Of one run at whole capacity."""
EPOCHS = 4
WARM_SHARE, TAIL_SHARE = 0.2, 0.1
"""Of the rows, left out at the begin and at the end of each run: queues fill and empty."""


def run(*, quick: bool) -> Result:
    """`samples_per_s_*`; `share_of_capacity_*` by the sum of the speeds, `share_of_control` by what the control run has
    of its own; `ratio` of rebalance by forward."""
    seconds = QUICK_SECONDS if quick else SECONDS
    rows = int(seconds * RATE * EXECUTORS / EPOCHS) // TASK_ROWS * TASK_ROWS
    figures: dict[str, float] = {}
    shown: dict[str, Any] = {}
    with scratch() as folder:
        write_parquet(folder / "rows.parquet", criteo_like(rows, seed=1, ids=10_000), row_group=TASK_ROWS)
        data = criteo_data([str(folder / "rows.parquet")], task_rows=TASK_ROWS, shuffle=True)
        # Shuffled: the same slice in another epoch is another task, which no buffer has yet.
        for name, mode, slowed in (
            ("control", "rebalance", 0), ("rebalance", "rebalance", SLOWED), ("forward", "forward", SLOWED),
            ("pushing_back", "pushing_back", SLOWED),
        ):
            rates = [RATE * SLOW] * slowed + [RATE] * (EXECUTORS - slowed)
            # Where all wait for the slow one a run is long: it gets fewer rows.
            epochs = EPOCHS if mode == "rebalance" else 1
            found, shown[name] = _measured(mode, rates, data, epochs=epochs)
            figures[f"samples_per_s_{name}"] = found
            figures[f"share_of_capacity_{name}"] = found / sum(rates)
            say(f"  {name}: {found:,.0f} samples/s, {found / sum(rates):.1%} of the capacity")
    figures["share_of_capacity"] = figures["share_of_capacity_rebalance"]
    figures["share_of_control"] = figures["share_of_capacity"] / figures["share_of_capacity_control"]
    figures["ratio"] = figures["samples_per_s_rebalance"] / figures["samples_per_s_forward"]
    figures["ratio_vs_pushing_back"] = figures["samples_per_s_rebalance"] / figures["samples_per_s_pushing_back"]
    fed, scaling = scaled(quick=quick)
    figures |= fed
    return Result("slow_executors", figures, {
        "scaling": scaling,
        "executors": EXECUTORS, "slowed": SLOWED, "slow_share": SLOW, "rows_per_s_each": RATE, "task_rows": TASK_ROWS,
        "credits_of_pushing_back": CREDITS, "speeds": "paced decoders, no CPU quotas", "executors_did": shown,
        "left_out": f"first {WARM_SHARE:.0%} and last {TAIL_SHARE:.0%} of the rows",
        "quick": f"{QUICK_SECONDS:g} s at whole capacity instead of {SECONDS:g}" if quick else "",
    })


def _measured(mode: str, rates: Sequence[float], data: dict[str, Any], *, epochs: int) -> tuple[float, Any]:
    """Samples per second between the first and the last part; and what each executor did."""
    role = {"mode": "rebalance" if mode == "rebalance" else "forward"}
    tasks = tasks_of(data, epochs=epochs)
    total = tasks[-1].base + tasks[-1].rows
    with executors_of(data, rates, **role) as executors:
        addresses = [each.address for each in executors]
        batches: Iterator[tuple[float, Batch]]
        if mode == "pushing_back":
            fingerprint = job_fingerprint(job_of(data), job_id="bench")
            near = [RemoteExecutor(sync_channel(address), fingerprint=fingerprint) for address in addresses]
            batches = pushing_back(near, tasks, batch=BATCH)
        else:
            reader = reader_of(data, addresses, batch=BATCH)
            batches = batches_of(reader, leases_of(data, batch=BATCH, epochs=epochs), batch=BATCH)
        seen, marks = 0, list[tuple[float, int]]()
        for _, batch in batches:
            seen += batch.size
            marks.append((time.perf_counter(), seen))
        assert seen == total, f"{seen} rows of {total}"
        inside = [mark for mark in marks if WARM_SHARE * total <= mark[1] <= (1 - TAIL_SHARE) * total]
        done = ended(executors)
    (began, before), (stopped, after) = inside[0], inside[-1]
    return (after - before) / (stopped - began), done
