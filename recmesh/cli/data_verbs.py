"""dataset register, list, get, delete, inspect; generate."""

from pathlib import Path
from typing import Annotated, Any

import typer

from recmesh.cli import output
from recmesh.cli.connect import connect
from recmesh.cli.options import FileArgument, HomeOption, ShapeOption
from recmesh.cli.output import Shape
from recmesh.cli.verbs import group as group_of

NameArgument = Annotated[str, typer.Argument(help="Of a registered dataset.", metavar="NAME")]


def register(app: typer.Typer) -> None:
    """Adds the verbs of this module."""
    group = group_of(name="dataset", help="Datasets that jobs may name.")
    group.command("register")(register_dataset)
    group.command("list")(list_datasets)
    group.command("get")(get_dataset)
    group.command("delete")(delete_dataset)
    group.command("inspect")(inspect)
    app.add_typer(group)
    app.command()(generate)


def register_dataset(
    file: FileArgument,
    name: Annotated[str, typer.Option(help="Else the file's `name`, else the file's own name.")] = "",
    home: HomeOption = None,
    shape: ShapeOption = Shape.TABLE,
) -> None:
    """Register a dataset from its file."""
    from recmesh.client.jobfile import load_dataset

    spec = load_dataset(file)
    named = spec.pop("name", "")
    name = name or named or file.stem
    with connect(home) as mesh:
        answer = mesh.register_dataset(name, spec)
    if shape.is_document:
        output.print_document(answer, shape)
    else:
        print(f"Registered {name}, revision {answer.get('revision', 1)}.")


def list_datasets(home: HomeOption = None, shape: ShapeOption = Shape.TABLE) -> None:
    """List registered datasets."""
    with connect(home) as mesh:
        found = mesh.datasets()
    if shape.is_document:
        output.print_document(found, shape)
        return
    columns = ["name", "revision", "rows", "files", "created"]
    output.print_table(
        columns, [[_cell(item, c) for c in columns] for item in found], empty="There are no datasets."
    )


def get_dataset(name: NameArgument, home: HomeOption = None, shape: ShapeOption = Shape.TABLE) -> None:
    """Show a registered dataset."""
    with connect(home) as mesh:
        found = mesh.dataset(name)
    if shape.is_document:
        output.print_document(found, shape)
        return
    names = ["name", "revision", "rows", "files", "tasks", "columns", "size_bytes", "created"]
    output.print_fields({key: _cell(found, key) for key in names})


def delete_dataset(
    name: NameArgument,
    force: Annotated[bool, typer.Option("--force", help="Though jobs that have not ended use it.")] = False,
    home: HomeOption = None,
    shape: ShapeOption = Shape.TABLE,
) -> None:
    """Forget a dataset's name; its files stay."""
    with connect(home) as mesh:
        mesh.remove_dataset(name, force=force)
    output.print_done({"deleted": name}, shape, f"{name} is deleted.")


def inspect(file: FileArgument, home: HomeOption = None, shape: ShapeOption = Shape.TABLE) -> None:
    """Show what is in a dataset's files: rows, columns, problems."""
    from recmesh.client.jobfile import load_mapping, resolve_data

    values = load_mapping(file)
    spec = values.get("data", values)
    resolve_data(spec, file.parent)
    with connect(home) as mesh:
        answer = mesh.inspect_dataset(spec)
    if shape.is_document:
        output.print_document(answer, shape)
        return
    columns = answer.get("columns", [])
    output.print_fields(
        {key: str(value) for key, value in answer.items() if not isinstance(value, list | dict)}
    )
    if columns and isinstance(columns[0], dict):
        names = list(columns[0])
        print()
        output.print_table(names, [[_cell(item, name) for name in names] for item in columns])


def generate(
    out: Annotated[
        Path, typer.Option(help="FILE.parquet, FILE.csv, a folder, or data/{YYYY}{MM}{DD}/{HH} for windows of time.")
    ],
    rows: Annotated[int, typer.Option(help="How many.", min=1)] = 1_000_000,
    like: Annotated[str, typer.Option(help="What they look like: criteo.")] = "criteo",
    file_rows: Annotated[int, typer.Option(help="Rows of one file of several.", min=1)] = 1_000_000,
    window: Annotated[str, typer.Option(help="Of a path with parts of a time: 1h, 1d, 10m.")] = "1h",
    done: Annotated[bool, typer.Option("--done", help="A file _SUCCESS in each complete window.")] = False,
    ids: Annotated[int, typer.Option(help="Different ids in each of the 26 columns.", min=1)] = 100_000,
    days: Annotated[float, typer.Option(help="The time that all rows span.", min=1e-6)] = 1.0,
    start: Annotated[str, typer.Option(help="Time of the first row: 2026-11-01, or unix seconds.")] = "2026-01-01",
    drift: Annotated[float, typer.Option(help="Radians per day by which the truth turns.", min=0)] = 0.0,
    churn: Annotated[float, typer.Option(help="Share of the ids that new ones replace per day.", min=0)] = 0.0,
    labels: Annotated[
        Path | None, typer.Option(help="Labels go to this file, as they come, and rows get an id.", metavar="FILE")
    ] = None,
    delay: Annotated[str, typer.Option(help="With --labels: mean time after which they come.")] = "10m",
    seed: Annotated[int, typer.Option(help="Equal seeds give equal rows.", min=0)] = 0,
    shape: ShapeOption = Shape.TABLE,
) -> None:
    """Write data of any size with a hidden truth to learn, which may drift; no mesh is needed."""
    from recmesh.data.faults import wrong
    from recmesh.data.generating import Target, write
    from recmesh.data.synthetic import Synthetic
    from recmesh.runtime.progress import Progress
    from recmesh.spec.quantity import moment, seconds

    if like != "criteo":
        raise wrong("like", f"there is nothing like {like!r}; there is criteo")
    field = "start"
    try:
        begin = float(start) if start.replace(".", "", 1).isdigit() else float(moment(start))
        field = "window"
        window_s = float(seconds(window))
        field = "delay"
        delay_s = float(seconds(delay))
    except ValueError as error:
        raise wrong(field, str(error)) from None
    data = Synthetic(seed=seed, ids=ids, rows_per_day=rows / days, start=begin, drift=drift, churn=churn)
    target = Target(out, file_rows, window_s, done, labels, delay_s)
    made = None
    with Progress("generate", total=rows, unit="rows", quiet=shape.is_document) as progress:
        for made in write(data, target, rows=rows):
            progress.update(made.rows)
            if not shape.is_document:
                print(f"{made.file}: {made.rows:,} of {rows:,} rows", flush=True)
    assert made is not None
    best, frozen = made.best.value, made.frozen.value
    if shape.is_document:
        output.print_document({"rows": made.rows, "labels": made.labels, "best_auc": best, "frozen_auc": frozen}, shape)
        return
    print(f"Best AUC that any model can reach on them: {best:.4f}", end="")
    print(f"; with the truth as it was at the beginning: {frozen:.4f}" if drift else "")
    if labels is not None:
        print(f"{labels}: {made.labels:,} labels of 1")


def _cell(item: dict[str, Any], name: str) -> str:
    value = item.get(name, "")
    if name == "created":
        return output.clock(float(value or 0))
    if isinstance(value, list):
        return str(len(value)) if name == "files" else ", ".join(map(str, value))
    return (
        output.number(value) if isinstance(value, int | float) and not isinstance(value, bool) else str(value)
    )
