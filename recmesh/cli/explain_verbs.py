"""explain."""

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from recmesh.cli import output
from recmesh.cli.connect import connect
from recmesh.cli.options import HomeOption, JobArgument, ShapeOption
from recmesh.cli.output import Shape
from recmesh.runtime.errors import FailedPrecondition, InvalidArgument, NotFound

if TYPE_CHECKING:
    from recmesh.client import Client
    from recmesh.client.explanations import Explanation
    from recmesh.explain.tables import Sheet


def register(app: typer.Typer) -> None:
    """Adds the verb of this module."""
    app.command()(explain)


def explain(
    job: JobArgument,
    out: Annotated[
        Path | None, typer.Option("--out", help="Write it as one HTML page with plots.", metavar="FILE.html")
    ] = None,
    home: HomeOption = None,
    shape: ShapeOption = Shape.TABLE,
) -> None:
    """Show why a job has its resources: plan, fit, front, decisions, and what came of changes."""
    from recmesh.client.explanations import Explanation

    with connect(home) as mesh:
        job_id, document = _found(mesh, job)
    explanation = Explanation.model_validate(document)
    if out is not None:
        _write(out, job_id, explanation)
    if shape.is_document:
        output.print_document(document, shape)
    elif out is not None:
        print(f"Wrote {out}.")
    else:
        _print(job_id, explanation)


def _found(mesh: "Client", job: str) -> tuple[str, dict[str, object]]:
    """A job that was deleted may still be known to brain, by its id."""
    try:
        job_id = mesh.find_job(job)
    except NotFound as unknown:
        try:
            return job, mesh.plan(job)
        except NotFound:
            raise unknown from None
    try:
        return job_id, mesh.plan(job_id)
    except NotFound as error:
        message = f"brain knows nothing of {job} yet: a job is planned when it starts, and forgotten long after its end"
        raise NotFound(message, reason=error.reason) from error


def _write(file: Path, job_id: str, explanation: "Explanation") -> None:
    from recmesh.explain import page

    if file.is_dir():
        raise InvalidArgument(f"--out must name a file: {file} is a folder")
    try:
        file.write_text(asyncio.run(page.file(job_id, explanation)), encoding="utf-8")
    except OSError as error:
        raise FailedPrecondition(f"{file} cannot be written: {error.strerror or error}") from error


def _print(job_id: str, explanation: "Explanation") -> None:
    from recmesh.explain import tables, words

    look, plan, first = explanation.look, explanation.plan, explanation.first
    newest = explanation.profiles[-1] if explanation.profiles else None
    undone = next((each.verdict for each in explanation.changes if plan and each.plan_id == plan.plan_id), "")
    fate = f" ({undone})" if undone not in ("", "kept") else ""
    began = first if first and plan and first.plan_id != plan.plan_id else None
    # 1. What it has, and where that came from.
    output.print_fields({
        "Job": job_id,
        "Has": words.shape(look.now) if look else "",
        "Speed": f"{output.number(newest.samples_per_s)} samples/s ({output.clock(newest.at)})" if newest else "",
        "Step": words.step(explanation.step_s),
        "Began with": f"{words.shape(began.roles)}, from {words.source(began)}" if began else "",
        "Why then": began.explanation if began else "",
        "Newest plan": f"{words.shape(plan.roles)}, from {words.source(plan)}{fate}" if plan else "none was asked for",
        "Why": plan.explanation if plan else "",
    })  # fmt: skip
    _section("Similar past jobs", tables.similar((first or plan).similar if first or plan else []))  # type: ignore[union-attr]  # one of them is there
    # 2. What was learned, and what is not known.
    if look:
        fit = look.fit
        print()
        output.print_fields({
            "Model": fit.form,
            "Error": f"{fit.error:.1%} on points that it had not seen" if fit.form else "",
            "Coefficients": tables.coefficients(fit),
            "Not known": fit.unknown,
        })  # fmt: skip
        for note in fit.notes:
            print(f"Note: {note}")
        _section("Fit, samples/s", tables.fit(fit, output.clock))
    # 3. What there was to choose from, and the choice.
    weighed = explanation.weighed
    if look and look.schedule:
        _section(f"Schedule, steps of {look.step_s:g} s, samples/s", tables.schedule(look.schedule, output.clock))
    if weighed:
        when = "" if weighed is look else f" at {output.clock(weighed.at)}, the last time there was a choice"
        _section(f"Front{when}", tables.front(weighed.front))
    if look:
        print(f"\nDecision at {output.clock(look.at)} ({look.planner}): {look.reason}: {look.why}")
    # 4. What was done before, and what came of it.
    _section("Past decisions", tables.decisions(explanation.decisions, output.clock))
    _section("Changes, samples/s", tables.changes(explanation.changes, output.clock))


def _section(title: str, sheet: "Sheet") -> None:
    """A table under its title; nothing when it has no rows."""
    if sheet.rows:
        print(f"\n{title}")
        output.print_table(sheet.columns, sheet.texts())
