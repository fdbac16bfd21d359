"""models, infer, label, freshness, rollback."""

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from recmesh.cli import completion, output
from recmesh.cli.connect import connect
from recmesh.cli.options import HomeOption, ShapeOption
from recmesh.cli.output import Shape
from recmesh.runtime.errors import InvalidArgument

FollowingArgument = Annotated[
    str, typer.Argument(help="Name of a model that follows a job.", metavar="MODEL", autocompletion=completion.models)
]
_LABELS_AT_ONCE = 5_000

if TYPE_CHECKING:
    from recmesh.client import Client
    from recmesh.spec.dataset import DatasetSpec


def register(app: typer.Typer) -> None:
    """Adds the verbs of this module."""
    app.command()(models)
    app.command()(infer)
    app.command()(label)
    app.command()(freshness)
    app.command()(rollback)


def models(
    name: Annotated[
        str, typer.Argument(help="Only this model's versions.", metavar="[MODEL]", autocompletion=completion.models)
    ] = "",
    home: HomeOption = None,
    shape: ShapeOption = Shape.TABLE,
) -> None:
    """List registered models."""
    with connect(home) as mesh:
        found = mesh.model(name) if name else mesh.models()
    if shape.is_document:
        output.print_document([item.model_dump() for item in found], shape)
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
    name: Annotated[
        str, typer.Argument(help="Name of a model that is ready.", metavar="MODEL", autocompletion=completion.models)
    ],
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
    shape: ShapeOption = Shape.TABLE,
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
    if shape.is_document:
        output.print_document(answer, shape)
        return
    for line in predictions(answer):
        print(line)


def label(
    values: Annotated[
        list[str] | None, typer.Argument(help="ID=VALUE, as r-4711=1; without a value 1.", metavar="LABEL...")
    ] = None,
    file: Annotated[
        Path | None,
        typer.Option("--file", "-f", help="JSON lines, each with id, value and time (Unix seconds); - reads stdin."),
    ] = None,
    topic: Annotated[str, typer.Option(help="Where the label join finds them.")] = "labels",
    home: HomeOption = None,
    shape: ShapeOption = Shape.TABLE,
) -> None:
    """Say what became of samples that were predicted, by their ids."""
    if (file is None) == (not values):
        raise InvalidArgument("give either labels or --file")
    labels = [_label(text) for text in values or []] if file is None else _lines(file)
    known = 0
    with connect(home) as mesh:
        for at in range(0, len(labels), _LABELS_AT_ONCE):
            known += int(mesh.post_labels(labels[at : at + _LABELS_AT_ONCE], topic=topic)["known"])
    if shape.is_document:
        output.print_document({"labels": len(labels), "known": known}, shape)
    else:
        print(f"{len(labels)} labels are stored" + (f", {known} of which were before" if known else ""))


def _label(text: str) -> dict[str, Any]:
    name, _, value = text.rpartition("=") if "=" in text else (text, "", "1")
    try:
        return {"id": name, "value": float(value)}
    except ValueError:
        raise InvalidArgument(f"{text} is not ID=VALUE: {value!r} is no number") from None


def _lines(file: Path) -> list[Any]:
    try:
        text = sys.stdin.read() if str(file) == "-" else file.read_text()
        return [json.loads(line) for line in text.splitlines() if line.strip()]
    except (OSError, ValueError) as error:
        raise InvalidArgument(f"{file} cannot be read: {error}") from error


def freshness(
    name: FollowingArgument,
    home: HomeOption = None,
    shape: ShapeOption = Shape.TABLE,
) -> None:
    """Show which version of rows and weights a model serves, and from where its rows come."""
    with connect(home) as mesh:
        found = mesh.freshness(name)
    if shape.is_document:
        output.print_document(found, shape)
        return
    _print_freshness(found)


def rollback(
    name: FollowingArgument,
    to: Annotated[
        int | None, typer.Option("--to", help="The version to serve; `recmesh freshness` lists them.", min=1)
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Follow the job again.")] = False,
    home: HomeOption = None,
    shape: ShapeOption = Shape.TABLE,
) -> None:
    """Serve an earlier version of rows and weights, and hold it until --resume."""
    if resume == (to is not None):
        raise InvalidArgument("give either --to or --resume")
    with connect(home) as mesh:
        found = mesh.resume(name) if to is None else mesh.roll_back(name, to)
    if shape.is_document:
        output.print_document(found, shape)
        return
    _print_freshness(found)


def _print_freshness(found: dict[str, Any]) -> None:
    held = "held" if found["held"] else "follows its job" if found["follows"] else "does not follow"
    model = f"{found['name']}/{found['model_version']}"
    print(f"{model}: version {found['fresh_version']} of job {found['job_id']}, {held}")
    if found["committed_at"]:
        print(f"committed {output.ago(found['committed_at'])} ago, served {found['commit_to_install_s']:.1f} s later")
    if found["error"]:
        print(f"no newer version: {found['error']}")
    versions = found["versions"]
    older = f", and {len(versions) - 12} older ones from {versions[0]} on" if len(versions) > 12 else ""
    print(f"may be rolled back to: {', '.join(map(str, versions[-12:])) or 'none'}{older}")
    tiers = ("fresh", "cache", "valkey", "disk", "absent")
    rows = [[table, *(str(counts[tier]) for tier in tiers)] for table, counts in found["tables"].items()]
    output.print_table(["table", *tiers], rows, empty="The model has no tables.")


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
        return json.loads(sys.stdin.read() if str(file) == "-" else file.read_text())
    except (OSError, ValueError) as error:
        raise InvalidArgument(f"{file} cannot be read: {error}") from error


def _metrics(metrics: dict[str, float]) -> str:
    return " ".join(f"{name}={value:.4g}" for name, value in sorted(metrics.items()))
