"""What is lost and doubled while the mesh is killed, 200 times at gates and at random; and where the loss ends."""

import math
from typing import Any

from bench.figures import Result
from bench.mesh import ROOT, say
from recmesh.chaos.report import Report
from recmesh.chaos.run import chaos_on_counts, chaos_on_job
from recmesh.chaos.schedule import TARGETS, schedule
from recmesh.cli.mesh.chaos import chaos_mesh

SEED = 4
KILLS, QUICK_KILLS = 200, 21
CONTROL_KILLS = 3
LOSS_KILLS, QUICK_LOSS_KILLS = 20, 4
LOSS_RUNS, QUICK_LOSS_RUNS = 5, 3
LOSS_DATA, QUICK_LOSS_DATA = (0.4, 4), (0.1, 3)
"""Share of the flights, and epochs."""


def run(*, quick: bool) -> Result:
    """`lost`, `doubled` and `faults` of the worst committed snapshot; `control_errors` of a run without deduplication.

    `inflight_hits_min` is of seven targets the least number of kills at a gate that held work. `final_loss_delta_sd`
    is of a DCN-v2 on the flights, disturbed, against as many runs without faults as the context says.
    """
    kills = QUICK_KILLS if quick else KILLS
    main = _counting(kills, broken="")
    control = _counting(CONTROL_KILLS, broken="dedup")
    loss = _loss(quick)
    for problem in [*main.problems, *loss.problems]:
        say(f"wrong: {problem}")
    delta = loss.loss_delta_sd
    return Result("chaos", {
        "lost": main.lost, "doubled": main.doubled, "faults": main.faults, "problems": len(main.problems),
        "kills": sum(main.kills.values()), "stops": sum(main.stops.values()),
        "inflight_hits_min": main.inflight_hits_min,
        **{f"inflight_hits_{target}": main.hits[target] for target in TARGETS},
        "snapshots_judged": len(main.judgements), "rollbacks": main.rollbacks, "samples": main.samples,
        "control_errors": control.lost + control.doubled,
        "final_loss_delta_sd": math.nan if delta is None else delta, "loss_kills": sum(loss.kills.values()),
        "usurped": main.rare["usurp"], "rewound": main.rare["rewind"], "shifted": main.rare["shift"],
        "seconds": main.seconds,
    }, {
        "seed": SEED, "gates": dict(main.gates), "pushes": main.pushes, "missed": main.missed,
        "control": f"deduplication off, {sum(control.kills.values())} kills: lost {control.lost}, "
                   f"doubled {control.doubled}",
        "loss_data": QUICK_LOSS_DATA if quick else LOSS_DATA, "loss": loss.loss,
        "undisturbed_losses": loss.undisturbed_losses, "loss_missed": loss.missed,
        "quick": f"{QUICK_KILLS} kills instead of {KILLS}, {QUICK_LOSS_RUNS} runs for the loss instead of {LOSS_RUNS}"
                 if quick else "",
    })


def _counting(kills: int, *, broken: str) -> Report:
    say(f"counting job, {kills} kills{f', without {broken}' if broken else ''}")
    with chaos_mesh(seed=SEED, broken=broken) as mesh:
        return chaos_on_counts(mesh, schedule(kills, seed=SEED), seed=SEED, tell=say)


def _loss(quick: bool) -> Report:
    kills, runs = (QUICK_LOSS_KILLS, QUICK_LOSS_RUNS) if quick else (LOSS_KILLS, LOSS_RUNS)
    spec = _flights(*(QUICK_LOSS_DATA if quick else LOSS_DATA))
    say(f"DCN-v2 on the flights, {kills} kills, {runs} runs without faults")
    with chaos_mesh(seed=SEED) as mesh:
        return chaos_on_job(mesh, spec, schedule(kills, seed=SEED), seed=SEED, undisturbed=runs, tell=say)


def _flights(share: float, epochs: int) -> dict[str, Any]:
    names = ("origin", "destination", "route", "hour")
    file = str(ROOT / "examples" / "flights" / "flights.parquet")
    return {
        "name": "flights",
        "model": {"zoo": "torch_dcn_v2", "params": {"embedding_dim": 8, "cross_layers": 1, "hidden": [32]}},
        "data": {
            "source": {"format": "parquet", "files": [file], "rows": [0.0, share]},
            "label": "late",
            "features": [
                *({"name": name} for name in names), {"name": "distance", "kind": "dense", "transform": "log1p"},
            ],
            "task_rows": 4096,
        },
        "evaluation": {"rows": [0.8, 1.0], "max_rows": 50_000},
        "training": {
            "batch_size": 256, "epochs": epochs, "shard_batches": 8, "optimizer": {"kind": "adagrad", "lr": 0.02},
        },
        "roles": {"ps": {"replicas": 2}, "worker": {"replicas": 2}},
        "checkpoint": {"every_s": 3, "keep": 10},
    }
