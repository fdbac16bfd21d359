"""forecast."""

import time
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import typer

from recmesh.cli import completion, output
from recmesh.cli.charts import bars
from recmesh.cli.connect import connect
from recmesh.cli.options import HomeOption, ShapeOption
from recmesh.cli.output import Shape
from recmesh.runtime.errors import InvalidArgument, NotFound, Violation

ROWS = 24
"""Of the table of a forecast; -o json has all."""


def register(app: typer.Typer) -> None:
    """Adds the verb of this module."""
    app.command()(forecast)


def forecast(
    series: Annotated[
        str,
        typer.Argument(
            help="Such as model/flights; without it, or with `*` at its end: those that are known.",
            autocompletion=completion.series,
        ),
    ] = "",
    horizon: Annotated[int, typer.Option(help="Steps ahead.", min=1, max=10_000)] = 24,
    step: Annotated[str, typer.Option(help="Of the forecast: 10m, 1h; as measured without it.", metavar="TIME")] = "",
    level: Annotated[float, typer.Option(help="Of the interval.", min=0.5, max=0.999)] = 0.8,
    history: Annotated[int, typer.Option(help="Steps of the past that are shown.", min=0, max=10_000)] = 120,
    limit: Annotated[int, typer.Option(help="Series that are listed.", min=1, max=1000)] = 100,
    home: HomeOption = None,
    shape: ShapeOption = Shape.TABLE,
) -> None:
    """Show what traffic will be: of topics, jobs and models, with intervals and how wrong it was before."""
    from recmesh.runtime.progress import Progress

    step_s = _seconds(step)
    with connect(home) as mesh:
        if not series or series.endswith("*"):
            found = mesh.forecasts(prefix=series.rstrip("*"), limit=limit)
            if shape.is_document:
                output.print_document(found, shape)
            else:
                _print_series(found.get("series", []), prefix=series.rstrip("*"))
            return
        with Progress("forecast", quiet=shape.is_document) as progress:    # backtests of a new series take seconds
            progress.update(note=f"models of {series} are compared over its past")
            told = mesh.forecast(series, horizon=horizon, step_s=step_s, level=level)
        past: dict[str, Any] = {"points": []}
        if history:
            try:
                past = mesh.rates(series, step_s=told["step_s"], limit=history)
            except NotFound:    # forgotten meanwhile
                past = {"points": []}
    if shape.is_document:
        output.print_document({"series": series, **told, "measured": past["points"]}, shape)
    else:
        _print(series, told, past["points"])


def _seconds(step: str) -> float:
    from recmesh.spec.quantity import seconds

    try:
        return float(seconds(step)) if step else 0.0
    except ValueError as error:
        raise InvalidArgument(f"--step: {error}", violations=[Violation("step", str(error))]) from None


def _print_series(found: Sequence[Mapping[str, Any]], *, prefix: str) -> None:
    now = time.time()
    output.print_table(
        ["series", "step", "values", "since", "newest", "rate"],
        [
            [
                each["series"], output.duration(each["step_s"]), f"{each['points']:,}", output.moment(each["first"]),
                f"{output.ago(each['last'] + each['step_s'], now=now)} ago", f"{output.number(each['last_value'])}/s",
            ]
            for each in found
        ],
        empty=f"No series begins with {prefix}; without a name all are listed." if prefix else
        "No rate was heard yet: topics, jobs and models tell theirs while they have traffic.",
    )  # fmt: skip


def _print(series: str, told: Mapping[str, Any], measured: Sequence[Mapping[str, Any]]) -> None:
    points = told["points"]
    output.print_fields({
        "Series": series,
        "Model": f"{told['model']}, from {told['history']:,} value{'' if told['history'] == 1 else 's'}",
        "Step": output.duration(told["step_s"]),
        "Season": output.duration(told["season_s"]) if told["season_s"] else "none",
        "Interval": f"{told['level']:.0%}",
        "Backtest": f"wrong by {told['error_wape']:.1%}",
        "Note": told["note"],
    })  # fmt: skip
    chart = bars([each["value"] for each in measured], [(each["mean"], each["high"]) for each in points])
    if chart:
        print()
        print("\n".join(chart))
    print()
    output.print_table(
        ["time", "rate", "low", "high"],
        [
            [output.clock(each["at"]), *(output.number(each[name]) for name in ("mean", "low", "high"))]
            for each in points[:ROWS]
        ],
    )
    if len(points) > ROWS:
        print(f"and {len(points) - ROWS} more steps; -o json has all")
    if told["past"]:
        print("\nHow wrong it was before")
        output.print_table(
            ["ahead", "forecasts", "error", "within interval", "of"],
            [
                [
                    output.duration(each["lead"] * each["step_s"]), str(each["count"]), f"{each['wape']:.1%}",
                    f"{each['coverage']:.0%}", f"{each['level']:.0%}",
                ]
                for each in told["past"]
            ],
        )  # fmt: skip
