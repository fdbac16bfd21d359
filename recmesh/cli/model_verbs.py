"""models, infer."""

import json as json_module
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from recmesh.cli import output
from recmesh.cli.connect import connect
from recmesh.cli.options import HomeOption, JsonOption
from recmesh.runtime.errors import InvalidArgument

if TYPE_CHECKING:
    from recmesh.client import Client
    from recmesh.spec.dataset import DatasetSpec


def register(app: typer.Typer) -> None:
    """Adds the verbs of this module."""
    app.command()(models)
    app.command()(infer)


def models(
    name: Annotated[str, typer.Argument(help="Only this model's versions.")] = "",
    home: HomeOption = None,
    json: JsonOption = False,
) -> None:
    """List registered models."""
    with connect(home) as mesh:
        found = mesh.model(name) if name else mesh.models()
    if json:
        output.print_json([item.model_dump() for item in found])
        return
    rows = [
        [
            m.name,
            m.version,
            m.state,
            m.framework,
            m.job_id,
            _metrics(m.metrics),
            output.ago(m.created),
            m.reason,
        ]
        for m in found
    ]
    columns = ["name", "version", "state", "framework", "job", "metrics", "age", "note"]
    output.print_table(columns, rows, empty="There are no models.")


def infer(
    name: Annotated[str, typer.Argument(help="Name of a model that is ready.", metavar="MODEL")],
    row: Annotated[
        list[str] | None,
        typer.Option(
            "--row", help="One example: origin=JFK,hour=8,distance=2475 (repeat for more).", metavar="FIELDS"
        ),
    ] = None,
    file: Annotated[
        Path | None,
        typer.Option(
            "--file",
            "-f",
            help="JSON: a request of the Open Inference Protocol, or a list of examples; - reads stdin.",
        ),
    ] = None,
    home: HomeOption = None,
    json: JsonOption = False,
) -> None:
    """Ask a model for predictions."""
    from recmesh.client.rows import parse_row, predictions, request_for

    if (file is None) == (not row):
        raise InvalidArgument("give either --row or --file")
    content: Any = [parse_row(text) for text in row or []] if file is None else _read(file)
    with connect(home) as mesh:
        is_request = isinstance(content, dict) and "inputs" in content
        examples = content if isinstance(content, list) else [content]
        request = content
        if not is_request:
            request = request_for(mesh.model_metadata(name), examples, data=_dataset_of(mesh, name))
        answer = mesh.infer(name, request)
    if json:
        output.print_json(answer)
        return
    for line in predictions(answer):
        print(line)


def _dataset_of(mesh: "Client", name: str) -> "DatasetSpec | None":
    """The dataset that the model's job trained on, which says how columns become inputs; None if unknown."""
    from recmesh.runtime.errors import MeshError
    from recmesh.spec.dataset import DatasetSpec

    versions = sorted(mesh.model(name), key=lambda item: (item.state == "ready", int(item.version or 0)))
    served = versions[-1] if versions else None  # none is ready yet: the newest is on its way
    try:
        spec = mesh.job(served.job_id).spec if served and served.job_id else None
    except MeshError:  # the job may have been deleted; the model stays
        return None
    data = (spec or {}).get("data")
    return DatasetSpec.parse(data) if data else None


def _read(file: Path) -> Any:
    try:
        return json_module.loads(sys.stdin.read() if str(file) == "-" else file.read_text())
    except (OSError, ValueError) as error:
        raise InvalidArgument(f"{file} cannot be read: {error}") from error


def _metrics(metrics: dict[str, float]) -> str:
    return " ".join(f"{name}={value:.4g}" for name, value in sorted(metrics.items()))
