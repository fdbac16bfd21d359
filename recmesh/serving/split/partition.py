"""Splits an exported model: read, decide, write the halves, check them, and only then publish them."""

import json
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from recmesh.runtime.errors import InvalidArgument, NotFound
from recmesh.serving.split import check, manifest, reference
from recmesh.serving.split.classes import Classes, built_in
from recmesh.serving.split.decide import LIMIT_BYTES, Decision, decide
from recmesh.serving.split.graph import OperatorGraph, Unsplittable
from recmesh.serving.split.layout import PACKED_BYTES
from recmesh.serving.split.manifest import Manifest, Stage, TensorInfo, Transfer
from recmesh.serving.split.source import Arrays, Port, Source

BATCH, LENGTH = 64, 32
CARD = "model.json"


@dataclass(frozen=True, slots=True)
class Options:
    """How to split."""

    batch: int = BATCH
    """Samples of the reference request: one user with this many items."""
    length: int = LENGTH
    """Ids in a row of a ragged input, where the model has no bound of its own."""
    classes: Classes | None = None
    """None: the built-in ones."""
    limit_bytes: int = LIMIT_BYTES
    recorded: Path | None = None
    """Inputs to check on; None: generated."""
    seed: int = 0

    def __post_init__(self) -> None:
        if self.batch < 2:
            raise InvalidArgument("the batch must be at least 2: with one sample it cannot be told from a fixed size")
        if self.length < 2:
            raise InvalidArgument("the length must be at least 2")


@dataclass(frozen=True, slots=True)
class Outcome:
    """A partitioned model; without a graph it could not even be read as one."""

    manifest: Manifest
    graph: OperatorGraph | None = None
    decision: Decision | None = None
    halves: "Halves" = field(default_factory=lambda: Halves((), {}))


@dataclass(frozen=True, slots=True)
class Halves:
    """Stages with the tensors that their names stand for."""

    stages: tuple[Stage, ...]
    tensors: Mapping[str, str]
    """Of the graph, by name in the manifest."""


STEPS = ("reads it", "measures its tensors", "chooses the cut", "writes the halves", "compares them with the whole")
Tell = Callable[[str], None]


def _silent(_step: str) -> None:
    pass


def partition(
    model: Path, out: Path | None = None, options: Options | None = None, *, tell: Tell = _silent
) -> Outcome:
    """Writes `out` (default: `split/` beside the model) and tells what is in it. `tell` hears STEPS as they begin.

    A model that is better served whole gets a `split.json` that says so and why. InvalidArgument when there is no model
    to be read, NotFound when there is nothing at all.
    """
    options = options or Options()
    folder, framework = find(model)
    out = folder / manifest.FOLDER if out is None else out
    out = out.resolve() if out.is_symlink() else out      # a link to halves elsewhere stays one
    if out.exists() and not (out / manifest.FILE).is_file() and (out.is_file() or any(out.iterdir())):
        raise InvalidArgument(f"{out} is there and is no split model; it is left as it is")
    sha256 = manifest.digest(folder, framework)
    inputs, outputs = _card(folder)
    with tempfile.TemporaryDirectory(prefix=".split-", dir=_parent(out)) as scratch:
        made = Path(scratch) / "split"
        made.mkdir()
        tell(STEPS[0])
        try:
            source = _read(folder, framework, inputs, outputs)
        except Unsplittable as reason:
            named = (tuple(each.name for each in inputs), tuple(each.name for each in outputs))
            found = Outcome(Manifest(framework, "whole", str(reason), sha256, *named))
        else:
            found = _split(source, made, sha256, options, tell)
        manifest.save(found.manifest, made)
        if out.exists():
            shutil.rmtree(out)
        made.rename(out)
    return found


def find(model: Path) -> tuple[Path, str]:
    """The folder that holds `model.pt2` or `saved_model/`, and the framework; `model` may be either of these too."""
    for framework, program in manifest.PROGRAMS.items():
        if model.name == program and model.exists():
            return model.parent, framework
        if (model / program).exists():
            return model, framework
    if (model / "saved_model.pb").is_file() or model.suffix == ".pt2":
        raise InvalidArgument(f"{model} must be called {' or '.join(manifest.PROGRAMS.values())}: halves lie beside it")
    if model.exists():
        raise InvalidArgument(f"{model} holds neither {' nor '.join(manifest.PROGRAMS.values())}")
    raise NotFound(f"there is no {model}")


def _parent(out: Path) -> Path:
    out.parent.mkdir(parents=True, exist_ok=True)
    return out.parent


def _card(folder: Path) -> tuple[list[Port], list[Port]]:
    """Inputs and outputs as model.json lists them; none of a model without, whose names are the program's."""
    file = folder / CARD
    if not file.is_file():
        return [], []
    try:
        document = json.loads(file.read_bytes())
        return _ports(document["inputs"]), _ports(document["outputs"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InvalidArgument(f"{file} cannot be read: {error!r}") from error


def _ports(entries: Sequence[Mapping[str, Any]]) -> list[Port]:
    found = []
    for each in entries:
        kind = str(each.get("kind") or "")
        ragged = kind in ("bag", "sequence")
        shape = each.get("shape") or ([-1, -1] if ragged else [-1])
        sizes = tuple(-1 if size is None else int(size) for size in shape)
        dtype = str(each.get("dtype") or each.get("datatype"))
        found.append(Port(str(each["name"]), dtype, sizes, kind, int(each.get("max_length") or 0)))
    names = {port.name for port in found}
    for port in list(found):
        if port.kind in ("bag", "sequence") and f"{port.name}.lengths" not in names:
            found.insert(found.index(port) + 1, Port(f"{port.name}.lengths", "int64", (-1,), "lengths"))
    return found


def _read(folder: Path, framework: str, inputs: Sequence[Port], outputs: Sequence[Port]) -> Source:
    """Frameworks are imported here, when they are needed."""
    if framework == "torch":
        from recmesh.serving.split.torch_program import FILE, TorchModel

        return TorchModel(folder / FILE, inputs=inputs, outputs=outputs)
    from recmesh.serving.split.tensorflow_program import FOLDER, TensorFlowModel

    return TensorFlowModel(folder / FOLDER, inputs=inputs, outputs=outputs)


def _split(source: Source, out: Path, sha256: str, options: Options, tell: Tell) -> Outcome:
    graph: OperatorGraph | None = None
    decision: Decision | None = None
    whole = Manifest(
        source.framework, "whole", "", sha256, tuple(each.name for each in source.inputs),
        tuple(each.name for each in source.outputs),
    )  # fmt: skip
    try:
        tell(STEPS[1])
        probes = _probes(source, options)
        graph = source.graph(probes)
        tell(STEPS[2])
        decision = decide(graph, source.framework, options.classes or built_in(), limit_bytes=options.limit_bytes)
        tell(STEPS[3])
        halves = _write(source, graph, decision, out)
        stages = [replace(each, sha256=manifest.digest(out / each.program, source.framework)) for each in halves.stages]
        halves = replace(halves, stages=tuple(stages))
        described = _tensors(source, graph, halves)
        tell(STEPS[4])
        checked = check.halves(source, stages, described, out, probes)
    except Unsplittable as reason:
        for stale in out.iterdir():
            shutil.rmtree(stale)
        report = report_of(graph, decision, options) if graph and decision else {}
        return Outcome(replace(whole, why=str(reason), report=report), graph, decision)
    made = replace(
        whole, kind="split", why=decision.why, tensors=tuple(described.values()), stages=halves.stages,
        transfers=tuple(_transfers(halves, described, decision, graph)), batching=checked,
        report=report_of(graph, decision, options),
    )  # fmt: skip
    return Outcome(made, graph, decision, halves)


def _probes(source: Source, options: Options) -> list[Arrays]:
    """Inputs at the reference batch, with one sample more, and (where rows have several ids) with other lengths."""
    ports = source.inputs
    if options.recorded is not None:
        first = reference.resized(reference.recorded(options.recorded, ports), ports, options.batch)
        return [first, reference.resized(first, ports, options.batch + 1)]
    error: Exception | None = None
    for pool in reference.pools(source.pool()):
        rng = np.random.default_rng(options.seed)
        sizes = [(options.batch, options.length), (options.batch + 1, options.length)]
        if any(-1 in each.shape[1:] for each in ports):
            shortest = min([options.length, *(each.max_length for each in ports if each.max_length)])
            sizes.append((options.batch, max(shortest - 1, 2)))
        probes = [reference.generated(ports, batch, length, rng, pool) for batch, length in sizes]
        try:
            for probe in probes:
                source.run(probe)
        except Exception as failed:  # whatever a framework raises for ids that a table does not have
            error = failed
        else:
            return probes
    why = str(error).partition("\n")[0][:300]
    raise InvalidArgument(f"the model fails on generated inputs; give recorded ones (--inputs): {why}") from error


def _write(source: Source, graph: OperatorGraph, decision: Decision, out: Path) -> Halves:
    """The programs of all regions that have operators, and what their names stand for."""
    regions = (("pre", "cn", decision.regions.pre), ("dense", "hn", decision.regions.hn),
               ("post", "cn", decision.regions.post))  # fmt: skip
    public = dict(zip((each.name for each in source.outputs), graph.outputs, strict=True))
    names = _named(graph, decision, source)
    stages = []
    for number, (name, where, operators) in enumerate(regions):
        if not operators:
            continue
        later = frozenset().union(*(each[2] for each in regions[number + 1:]))
        read = dict.fromkeys(t for each in graph.operators if each.name in operators for t in each.inputs)
        made = [t for each in graph.operators if each.name in operators for t in each.outputs]
        inputs = {names[t]: t for t in read if graph.maker.get(t) not in operators}
        outputs = {names[t]: t for t in made if any(reader in later for reader in graph.readers[t])}
        outputs |= {output: t for output, t in public.items() if t in made}
        source.write(out / name, inputs=inputs, outputs=outputs, operators=operators)
        _write_card(out / name, source, graph, inputs, outputs)
        stages.append(Stage(name, where, name, tuple(inputs), tuple(outputs)))  # type: ignore[arg-type]  # cn or hn
    return Halves(tuple(stages), {**{names[t]: t for t in names}, **public})


def _named(graph: OperatorGraph, decision: Decision, source: Source) -> dict[str, str]:
    """Names of all tensors that stages exchange; the model's inputs keep theirs."""
    names = {name: name for name in graph.inputs}
    taken = {*names, *(each.name for each in source.outputs)}
    region = {
        name: number for number, each in enumerate((decision.regions.pre, decision.regions.hn, decision.regions.post))
        for name in each
    }
    for tensor, maker in graph.maker.items():
        if any(region[reader] != region[maker] for reader in graph.readers[tensor]):
            last = tensor.rsplit("/", 1)[-1].removesuffix(":0")
            name = f"cut_{len(names) - len(graph.inputs)}_{reference.identifier(last)}"
            if name in taken:
                raise AssertionError(f"{name} is there twice")
            names[tensor] = name
    return names


def _write_card(
    folder: Path, source: Source, graph: OperatorGraph, inputs: Mapping[str, str], outputs: Mapping[str, str]
) -> None:
    def entry(name: str, tensor: str) -> dict[str, Any]:
        known = graph.tensors[tensor]
        return {"name": name, "dtype": known.dtype, "shape": list(known.dims)}

    card = {
        "framework": source.framework,
        "inputs": [entry(*each) for each in inputs.items()],
        "outputs": [entry(*each) for each in outputs.items()],
    }
    (folder / CARD).write_text(json.dumps(card, indent=2) + "\n", encoding="utf-8")


def _tensors(source: Source, graph: OperatorGraph, halves: Halves) -> dict[str, TensorInfo]:
    used = dict.fromkeys([
        *(each.name for each in source.inputs), *(each.name for each in source.outputs),
        *(name for stage in halves.stages for name in (*stage.inputs, *stage.outputs)),
    ])  # fmt: skip
    found = {}
    for name in used:
        tensor = graph.tensors[halves.tensors[name]]
        maker = graph.maker.get(tensor.name, "")
        found[name] = TensorInfo(name, tensor.dtype, tensor.dims, tensor.batched, tensor.bytes, maker)
    return found


def _transfers(
    halves: Halves, described: Mapping[str, TensorInfo], decision: Decision, graph: OperatorGraph
) -> list[Transfer]:
    """What the dense stage receives, and what it gives to whom."""
    stages = {each.name: each for each in halves.stages}
    dense = stages["dense"]
    found = [_transfer("pre" if "pre" in stages else "client", "dense", dense.inputs, described)]
    later = stages["post"].inputs if "post" in stages else ()
    made_later = stages["post"].outputs if "post" in stages else ()
    if back := [name for name in dense.outputs if name in later]:
        found.append(_transfer("dense", "post", back, described))
    if out := [name for name in dense.outputs if name not in later and name not in made_later]:
        found.append(_transfer("dense", "client", out, described))
    return found


def _transfer(sender: str, receiver: str, names: Sequence[str], described: Mapping[str, TensorInfo]) -> Transfer:
    packed = tuple(name for name in names if described[name].bytes <= PACKED_BYTES)
    plain = tuple(name for name in names if name not in packed)
    return Transfer(sender, receiver, packed, plain, sum(described[name].bytes for name in names))


def report_of(graph: OperatorGraph, decision: Decision, options: Options) -> dict[str, Any]:
    """Figures for people."""
    work = {
        name: sum(graph.work(each) for each in names)
        for name, names in (("pre", decision.regions.pre), ("hn", decision.regions.hn), ("post", decision.regions.post))
    }
    return {
        "batch": options.batch,
        "length": options.length,
        "operators": dict(decision.cost.operators),
        "constants": graph.constants,
        "sizes": graph.sizes,
        "bytes_naive": decision.naive.bytes,
        "bytes_cut": decision.cost.bytes,
        "bytes_sent": decision.cost.sent_bytes,
        "bytes_returned": decision.cost.returned_bytes,
        "bytes_reduction": round(decision.reduction, 4),
        "share_of_work_on_hn": round(work["hn"] / max(sum(work.values()), 1), 4),
    }
