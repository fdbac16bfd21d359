"""dataset register, list, inspect, generate."""

from pathlib import Path
from typing import Annotated, Any

import typer

from recmesh.cli import output
from recmesh.cli.connect import connect
from recmesh.cli.options import FileArgument, HomeOption, JsonOption


def register(app: typer.Typer) -> None:
    """Adds the verbs of this module."""
    group = typer.Typer(name="dataset", no_args_is_help=True, help="Datasets that jobs may name.")
    group.command("register")(register_dataset)
    group.command("list")(list_datasets)
    group.command("inspect")(inspect)
    group.command("generate")(generate)
    app.add_typer(group)


def register_dataset(
    file: FileArgument,
    name: Annotated[str, typer.Option(help="Else the file's `name`, else the file's own name.")] = "",
    home: HomeOption = None,
    json: JsonOption = False,
) -> None:
    """Register a dataset from its file."""
    from recmesh.client.jobfile import load_dataset

    spec = load_dataset(file)
    named = spec.pop("name", "")
    name = name or named or file.stem
    with connect(home) as mesh:
        answer = mesh.register_dataset(name, spec)
    if json:
        output.print_json(answer)
    else:
        print(f"Registered {name}, revision {answer.get('revision', 1)}.")


def list_datasets(home: HomeOption = None, json: JsonOption = False) -> None:
    """List registered datasets."""
    with connect(home) as mesh:
        found = mesh.datasets()
    if json:
        output.print_json(found)
        return
    columns = ["name", "revision", "rows", "created"]
    output.print_table(
        columns, [[_cell(item, c) for c in columns] for item in found], empty="There are no datasets."
    )


def inspect(file: FileArgument, home: HomeOption = None, json: JsonOption = False) -> None:
    """Show what is in a dataset's files: rows, columns, problems."""
    from recmesh.client.jobfile import load_mapping, resolve_data

    values = load_mapping(file)
    spec = values.get("data", values)
    resolve_data(spec, file.parent)
    with connect(home) as mesh:
        answer = mesh.inspect_dataset(spec)
    if json:
        output.print_json(answer)
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
    folder: Annotated[Path, typer.Argument(help="Where Parquet files and a dataset.yaml are written.")],
    rows: Annotated[int, typer.Option(help="How many.", min=1)] = 1_000_000,
    file_rows: Annotated[int, typer.Option(help="Rows of one file.", min=1)] = 1_000_000,
    ids: Annotated[int, typer.Option(help="Different ids in each of the 26 columns.", min=1)] = 100_000,
    days: Annotated[float, typer.Option(help="The time that all rows span.", min=1e-6)] = 1.0,
    start: Annotated[float, typer.Option(help="Unix seconds of the first row.")] = 0.0,
    drift: Annotated[float, typer.Option(help="Radians per day by which the truth turns.", min=0)] = 0.0,
    churn: Annotated[float, typer.Option(help="Share of the ids that new ones replace per day.", min=0)] = 0.0,
    seed: Annotated[int, typer.Option(help="Equal seeds give equal rows.", min=0)] = 0,
) -> None:
    """Write Criteo-like data with a hidden truth to learn; no mesh is needed."""
    from recmesh.data.synthetic import Synthetic, write

    made = Synthetic(seed=seed, ids=ids, rows_per_day=rows / days, start=start, drift=drift, churn=churn)
    for path, done in write(made, folder, rows=rows, file_rows=file_rows):
        print(f"{path}: {done:,} of {rows:,} rows", flush=True)
    print(f"{folder / 'dataset.yaml'}: the specification of a job's data")


def _cell(item: dict[str, Any], name: str) -> str:
    value = item.get(name, "")
    if name == "created":
        return output.clock(float(value or 0))
    if isinstance(value, list):
        return str(len(value)) if name == "files" else ", ".join(map(str, value))
    return (
        output.number(value) if isinstance(value, int | float) and not isinstance(value, bool) else str(value)
    )
