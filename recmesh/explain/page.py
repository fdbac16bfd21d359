"""All about a job's plan as one HTML file that needs nothing else."""

from recmesh.client.explanations import Explanation, Fit, Look
from recmesh.explain import tables, words
from recmesh.explain.plots import plots
from recmesh.runtime.ops import Page, Plots, Table, Tile, Tiles, Tone
from recmesh.runtime.ops.panels import Panel
from recmesh.runtime.ops.render import Renderer


async def file(job_id: str, explanation: Explanation) -> str:
    """HTML with the plots in it."""
    return await Renderer(page(job_id, explanation)).file()


def page(job_id: str, explanation: Explanation) -> Page:
    """Its panels; times are UTC."""
    return Page(f"Why {job_id} has what it has", panels=_panels(explanation), subtitle=_moment(explanation))


def _moment(explanation: Explanation) -> str:
    at = max([each.at for each in explanation.profiles], default=explanation.look.at if explanation.look else 0.0)
    return f"as of {words.utc(at)} UTC" if at else ""


def _panels(explanation: Explanation) -> list[Panel]:
    look, first, plan = explanation.look, explanation.first, explanation.plan
    weighed = explanation.weighed
    plans = [
        [name, words.source(each), words.shape(each.roles), each.explanation]
        for name, each in (("began with", first), ("newest", plan))
        if each and (name == "newest" or not plan or each.plan_id != plan.plan_id)
    ]
    found: list[Panel] = [
        Tiles("Now", lambda: _tiles(explanation)),
        Plots("Plots", lambda _: plots(explanation)),
        _table("Plans", tables.Sheet(["", "from", "plan", "why"], plans), "no plan was asked for"),
    ]
    similar = (first.similar if first else []) or (plan.similar if plan else [])
    sheets = [
        ("Similar past jobs", tables.similar(similar), "none was similar enough"),
        ("Time of a step", tables.step(explanation.step_s), "no profile told it yet"),
        ("Fit, samples/s", tables.fit(look.fit if look else Fit(), words.utc), "nothing was measured yet"),
        ("Schedule, samples/s", tables.schedule(look.schedule if look else [], words.utc), "it is no online job"),
        ("Front", tables.front(weighed.front if weighed else []), "nothing was weighed yet"),
        ("Decisions", tables.decisions(_looks(explanation), words.utc), "brain has not looked at it yet"),
        ("Changes, samples/s", tables.changes(explanation.changes, words.utc), "nothing was changed yet"),
    ]
    found += [_table(title, sheet, empty) for title, sheet, empty in sheets]
    if look and look.fit.form:
        notes = [["model", look.fit.form], ["coefficients", tables.coefficients(look.fit)],
                 *([f"note {n}", note] for n, note in enumerate(look.fit.notes, 1))]  # fmt: skip
        found.append(_table("Model of its speed", tables.Sheet(["", ""], notes), ""))
    return found


def _table(title: str, sheet: tables.Sheet, empty: str) -> Table:
    return Table(title, sheet.columns, lambda: sheet.rows, empty=empty)


def _looks(explanation: Explanation) -> list[Look]:
    """The newest look, and those that led to a plan."""
    newest = [explanation.look] if explanation.look else []
    return [*newest, *(each for each in explanation.decisions if not newest or each.at != newest[0].at)]


def _tiles(explanation: Explanation) -> list[Tile]:
    look, profiles = explanation.look, explanation.profiles
    newest = profiles[-1] if profiles else None
    tiles = [
        Tile(
            "samples/s", words.rate(newest.samples_per_s) if newest else None,
            f"on {newest.workers} worker(s), {newest.ps} PS" if newest else "no profile yet",
            spark=[each.samples_per_s for each in profiles[-60:]],
        )
    ]  # fmt: skip
    if look:
        unseen = f"{look.fit.error:.1%}" if look.fit.form else None
        tiles += [
            Tile("error of the model", unseen, look.fit.unknown or "on points that it had not seen"),
            Tile("last decision", look.reason, look.why, tone=tables.REASONS.get(look.reason, Tone.PLAIN)),
        ]
    kept = sum(each.verdict == "kept" for each in explanation.changes)
    return [*tiles, Tile("changes", len(explanation.changes), f"{kept} kept")]
