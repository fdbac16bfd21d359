"""chaos."""

import math
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from recmesh.cli import output
from recmesh.cli.exit_codes import ExitCode
from recmesh.cli.options import ShapeOption
from recmesh.cli.output import Shape
from recmesh.runtime.errors import InvalidArgument

if TYPE_CHECKING:
    from recmesh.chaos.report import Report

QUICK_KILLS = 21


def register(app: typer.Typer) -> None:
    """Adds the verb of this module."""
    app.command()(chaos)


def chaos(
    job: Annotated[
        Path | None, typer.Option(help="A job to disturb, YAML or JSON, in place of the counting one.", metavar="FILE")
    ] = None,
    kills: Annotated[
        int | None, typer.Option(help="How many processes to kill (SIGKILL); some are stopped besides.", min=0)
    ] = None,
    seed: Annotated[int, typer.Option(help="Of data, victims and moments.", min=0)] = 0,
    quick: Annotated[bool, typer.Option("--quick", help=f"{QUICK_KILLS} kills instead of 200.")] = False,
    broken: Annotated[
        str, typer.Option("--break", help="Switch this rule off, so that it must go wrong.", metavar="RULE")
    ] = "",
    undisturbed: Annotated[
        int, typer.Option(help="With --job: how many runs without faults its loss is compared with.", min=0)
    ] = 3,
    sync: Annotated[
        int, typer.Option(help="The counting job in synchronous mode: so many batches in a step.", min=0)
    ] = 0,
    keep: Annotated[bool, typer.Option("--keep", help="Leave the folder of the run where it is.")] = False,
    shape: ShapeOption = Shape.TABLE,
) -> None:
    """Train a job on a mesh of its own while processes are killed, and compare what it learned with the truth.

    The truth of the built-in counting job is every row; that of any other, full ledgers and the loss of other runs.
    """
    from recmesh.chaos.run import chaos_on_counts, chaos_on_job
    from recmesh.chaos.schedule import schedule
    from recmesh.cli.mesh.chaos import chaos_mesh

    if undisturbed == 1:
        raise InvalidArgument("--undisturbed must be 0, or at least 2: one run has no standard deviation")
    if sync & (sync - 1):
        raise InvalidArgument("--sync must be a power of two: a mean over so many batches is exact")
    if sync and job is not None:
        raise InvalidArgument("--sync is of the counting job; a job of your own says training.sync")
    spec = None
    if job is not None:
        from recmesh.client.jobfile import load_job

        spec = load_job(job)
    count = kills if kills is not None else QUICK_KILLS if quick else 200
    strikes = schedule(count, seed=seed)
    with chaos_mesh(seed=seed, broken=broken, keep=keep) as mesh:
        _say(f"mesh in {mesh.folder}")
        if spec is None:
            report = chaos_on_counts(mesh, strikes, seed=seed, tell=_say, batches_per_step=sync)
        else:
            report = chaos_on_job(mesh, spec, strikes, seed=seed, undisturbed=undisturbed, tell=_say)
    report.broken = broken
    if shape.is_document:
        output.print_document(report.as_document(), shape)
    else:
        _print(report)
    if report.verdict != "right":
        raise typer.Exit(ExitCode.FAILED)


def _losses(report: "Report") -> str:
    others = ", ".join(f"{loss:.6f}" for loss in report.undisturbed_losses)
    delta = report.loss_delta_sd
    apart = "" if delta is None else f" ({delta:.2f} standard deviations apart)"
    return f"{report.loss:.6f}; undisturbed {others or 'not run'}{apart}"


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _print(report: "Report") -> None:
    from recmesh.chaos.schedule import TARGETS

    rows = [
        [target, str(report.kills[target]), str(report.hits[target]), str(report.stops[target])] for target in TARGETS
    ]
    output.print_table(["target", "killed", "with work in flight", "stopped"], rows)
    print()
    snapshots = [
        [str(j.snapshot), f"{j.positions:,}", f"{j.rows:,}", str(j.lost), str(j.doubled), str(j.faults),
         "right" if j.is_right else "wrong"]
        for j in report.judgements
    ]
    output.print_table(["snapshot", "positions", "rows", "lost", "doubled", "faults", "verdict"], snapshots)
    print()
    output.print_fields({
        "others": ", ".join(f"{count} {how}" for how, count in sorted(report.rare.items())),
        "job": f"{report.phase}, {report.samples:,} of {report.total:,} samples, {report.rollbacks} rollbacks, "
               f"{report.requeues} requeues, {report.scalings} scalings",
        "pushes": ", ".join(f"{count} {action}" for action, count in sorted(report.pushes.items())),
        "loss": "" if math.isnan(report.loss) else _losses(report),
        "seed": str(report.seed), "seconds": f"{report.seconds:.0f}",
    })
    first = next((judgement.named for judgement in report.judgements if not judgement.is_right), [])
    for problem in [*report.problems, *first]:
        print(f"wrong: {problem}")
    for text in report.missed:
        print(f"left out: {text}")
    print("\n" + {
        "right": "Nothing is lost, and nothing is doubled.",
        "wrong": "This is not the truth" + (f": the rule {report.broken} was off." if report.broken else "."),
        "inconclusive": f"Nothing is wrong, although the rule {report.broken} was off: this run does not show it."
                        " More kills, or another seed, may.",
    }[report.verdict])
