"""checkpoints, checkpoint."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from recmesh.cli import output
from recmesh.cli.connect import connect
from recmesh.cli.exit_codes import ExitCode
from recmesh.cli.options import HomeOption, JobArgument, ShapeOption
from recmesh.cli.output import Shape

if TYPE_CHECKING:
    from recmesh.client.views import Checkpoint


def register(app: typer.Typer) -> None:
    """Adds the verbs of this module."""
    for verb in (checkpoints, checkpoint):
        app.command()(verb)


def checkpoints(
    job: JobArgument,
    verify: Annotated[bool, typer.Option("--verify", help="Read and hash every one first.")] = False,
    home: HomeOption = None,
    shape: ShapeOption = Shape.TABLE,
) -> None:
    """List a job's checkpoints; with --verify exit code 1 when one is damaged."""
    with connect(home) as mesh:
        found = mesh.checkpoints(mesh.find_job(job), verify=verify)
    damaged = [item for item in found if item.state == "damaged"]
    if shape.is_document:
        output.print_document([item.model_dump() for item in found], shape)
    else:
        _print_checkpoints(found)
    if verify and damaged:
        raise typer.Exit(ExitCode.FAILED)


def _print_checkpoints(found: "Sequence[Checkpoint]") -> None:
    rows = [
        [
            str(c.snapshot),
            c.state,
            output.clock(c.created),
            output.number(c.samples),
            output.size(c.size_bytes),
            c.uri,
        ]
        for c in found
    ]
    output.print_table(["number", "state", "at", "samples", "size", "uri"], rows, empty="There is none yet.")
    for c in found:
        if c.reason:
            print(f"\n{c.snapshot} is {c.state}: {c.reason}")


def checkpoint(job: JobArgument, home: HomeOption = None, shape: ShapeOption = Shape.TABLE) -> None:
    """Take a checkpoint now."""
    with connect(home) as mesh:
        job_id = mesh.find_job(job)
        number = mesh.checkpoint(job_id)
    output.print_done({"job_id": job_id, "snapshot": number}, shape, f"Checkpoint {number}.")
