"""partition."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from recmesh.cli import output
from recmesh.cli.options import ShapeOption
from recmesh.cli.output import Shape
from recmesh.runtime.errors import FailedPrecondition

if TYPE_CHECKING:
    from recmesh.serving.split.partition import Outcome


def register(app: typer.Typer) -> None:
    """Adds the verb of this module."""
    app.command()(partition)


def partition(
    model: Annotated[
        Path, typer.Argument(help="Folder with model.pt2 or saved_model/ (and model.json).", metavar="MODEL")
    ],
    batch: Annotated[int, typer.Option(help="Samples of the reference request: one user, this many items.")] = 64,
    length: Annotated[int, typer.Option(help="Ids in a row of a bag or sequence, where it has no bound.")] = 32,
    classes: Annotated[
        Path | None, typer.Option(help="Classes of operators of your own (TOML or YAML).", metavar="FILE")
    ] = None,
    inputs: Annotated[
        Path | None, typer.Option(help="Recorded inputs to check on, by name.", metavar="FILE.npz")
    ] = None,
    limit: Annotated[int, typer.Option(help="Most bytes that a request may send; more: served whole.")] = 16 << 20,
    out: Annotated[
        Path | None, typer.Option("--out", help="Where to write (default: split/ in MODEL).", metavar="DIR")
    ] = None,
    explain: Annotated[bool, typer.Option("--explain", help="Show each operator with its class and side.")] = False,
    shape: ShapeOption = Shape.TABLE,
) -> None:
    """Split a model in a sparse part for CPU nodes and a dense one for an accelerator node; needs no mesh."""
    try:
        from recmesh.runtime.progress import Progress
        from recmesh.serving.split import classes as table
        from recmesh.serving.split.manifest import PICTURE
        from recmesh.serving.split.partition import STEPS, Options, find
        from recmesh.serving.split.partition import partition as split
    except ModuleNotFoundError as missing:
        raise FailedPrecondition(f"{missing.name} is not installed: pip install 'recmesh[partition]'") from missing

    own = table.read(classes).over(table.built_in()) if classes else None
    options = Options(batch, length, own, limit, inputs)
    folder, framework = find(model)
    try:
        with Progress("partition", total=len(STEPS), unit="steps", timed=False, quiet=shape.is_document) as progress:
            found = split(model, out, options, tell=lambda step: progress.update(STEPS.index(step), note=step))
    except ModuleNotFoundError as missing:
        raise FailedPrecondition(
            f"{missing.name} is not installed: pip install 'recmesh[{framework}]'"
        ) from missing
    made = out or folder / "split"
    if found.graph and found.decision:
        _draw(made / PICTURE, model, found)
    if shape.is_document:
        output.print_document({**found.manifest.document(), "operators": _operators(found)} if explain
                          else found.manifest.document(), shape)
        return
    _print(model, made, found)
    if explain and found.graph and found.decision:
        print()
        rows = [[each["name"], each["kind"], each["class"], each["side"]] for each in _operators(found)]
        output.print_table(["operator", "kind", "class", "side"], rows)


def _draw(file: Path, model: Path, found: "Outcome") -> None:
    from recmesh.serving.split import picture

    assert found.graph is not None and found.decision is not None
    title = f"{model.resolve().name} ({found.manifest.framework})"
    if not found.manifest.is_split:
        title += ", served whole: " + found.manifest.why
    file.write_text(picture.svg(title, found.graph, found.decision), encoding="utf-8")


def _operators(found: "Outcome") -> list[dict[str, Any]]:
    """Each with its class and side; without a decision there are none."""
    if not found.graph or not found.decision:
        return []
    regions = found.decision.regions
    side = {
        name: text for text, names in (("CN", regions.pre), ("HN", regions.hn), ("CN, after", regions.post))
        for name in names
    }
    return [
        {"name": each.name, "kind": each.kind, "class": found.decision.classes[each.name].value,
         "side": side[each.name]}
        for each in found.graph.operators
    ]  # fmt: skip


def _print(model: Path, made: Path, found: "Outcome") -> None:
    from recmesh.serving.split import picture

    known, report, decision = found.manifest, found.manifest.report, found.decision
    fields = {"Model": f"{model} ({known.framework})", "Split": "yes" if known.is_split else f"no, whole: {known.why}"}
    if found.graph and decision:
        counts = decision.cost.operators
        fields |= {
            "Request": f"{report['batch']} samples, {report['length']} ids in a row without a bound",
            "Operators": f"{counts['pre']} CN, {counts['hn']} HN, {counts['post']} CN after it; "
            f"{found.graph.constants} constant, {found.graph.sizes} on shapes",
            "Bytes": f"{decision.cost.sent_bytes:,} to the HN, {decision.cost.returned_bytes:,} back",
            "Naive": f"{decision.naive.sent_bytes:,} to the HN, {decision.naive.returned_bytes:,} back by colouring; "
            f"the cut sends {decision.reduction:.1%} less, both ways together",
            "Limited by": decision.why,
        }
    if known.is_split:
        batching = known.batching
        fields |= {
            "Checked": "the halves give the model's results, bit for bit",
            "Batching": f"yes; results differ by at most {batching.max_error:.1g}" if batching.possible
            else f"no: {batching.why}",
        }  # fmt: skip
    output.print_fields({**fields, "Written": str(made)})
    if found.graph and decision:
        rows = [
            [picture.short(name, 60), way, each.dtype, "×".join(map(str, each.shape)) or "scalar", f"{each.bytes:,}"]
            for way, name in picture.tensors(found.graph, decision.cost) for each in [found.graph.tensors[name]]
        ]
        print()
        output.print_table(["tensor", "way", "dtype", "shape", "bytes"], rows)
