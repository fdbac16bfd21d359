"""What a saved program takes and gives, as a `model.json` that its folder lacks.

    python -m recmesh.serving.inspect --framework torch PATH

prints one JSON object: `model.json`, or `error`, `reason` and `violations`. It is run as a process of its own with a
deadline, since it reads what strangers have saved; nothing of the program is run.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import orjson

from recmesh.runtime.errors import InvalidArgument
from recmesh.serving import process
from recmesh.serving.failures import describe

SIGNATURE = "serving_default"


def torch_card(path: Path) -> dict[str, Any]:
    """Of a `.pt2`. Inputs have the names of `forward`'s parameters, or of the keys of its one dictionary."""
    import torch

    from recmesh.serving.programs import framework, torch_archive

    framework("torch")
    torch_archive.check(path)
    try:
        program = torch.export.load(str(path))
    except Exception as error:                   # whatever torch raises for a file that it cannot read
        raise _bad(f"torch cannot read it: {str(error).partition(chr(10))[0][:300]}") from None
    values = {node.name: node.meta.get("val") for node in program.graph.nodes}
    signature = program.graph_signature
    taken = [str(name) for name in signature.user_inputs]
    given = [str(name) for name in signature.user_outputs]
    return {
        "framework": "torch",
        "inputs": [
            _torch_tensor(name, values.get(node))
            for name, node in zip(_torch_names(program.call_spec.in_spec, taken), taken, strict=True)
        ],
        "outputs": [
            _torch_tensor(name, values.get(node))
            for name, node in zip(_output_names(program.call_spec.out_spec, len(given)), given, strict=True)
        ],
        "versions": {"torch": str(torch.__version__)},
    }


def _torch_names(spec: Any, placeholders: list[str]) -> list[str]:
    args, kwargs = spec.children()
    groups = [*args.children(), *kwargs.children()]
    if len(groups) == 1 and groups[0].type is dict:
        names = [str(key) for key in groups[0].context]
    elif args.num_children and kwargs.num_children:
        raise _bad("the program mixes positional and keyword inputs; export it with one kind")
    else:
        names = [str(key) for key in kwargs.context] if kwargs.num_children else placeholders
    if len(names) != len(placeholders) or any(item.num_children for item in _leaves(groups)):
        raise _bad("the program's inputs are nested; it must take tensors, or one dictionary of them")
    return names


def _leaves(groups: list[Any]) -> list[Any]:
    return groups[0].children() if len(groups) == 1 and groups[0].type is dict else groups


def _output_names(spec: Any, count: int) -> list[str]:
    if spec.type is dict and len(spec.context) == count:
        return [str(key) for key in spec.context]
    return output_names(count)


def output_names(count: int) -> list[str]:
    """Of a `.pt2` that gives no dictionary."""
    return ["output"] if count == 1 else [f"output_{number}" for number in range(count)]


def _torch_tensor(name: str, value: Any) -> dict[str, Any]:
    if not hasattr(value, "shape"):
        raise _bad(f"{name} is no tensor")
    shape = [size if isinstance(size, int) else -1 for size in value.shape]
    return {"name": name, "dtype": str(value.dtype).removeprefix("torch."), "shape": shape}


def tensorflow_card(path: Path) -> dict[str, Any]:
    """Of a SavedModel: its signature `serving_default`."""
    import tensorflow as tf
    from google.protobuf.message import DecodeError
    from tensorflow.core.protobuf import saved_model_pb2

    saved = saved_model_pb2.SavedModel()
    try:
        saved.ParseFromString((path / "saved_model.pb").read_bytes())
    except (OSError, DecodeError) as error:
        raise _bad(f"its saved_model.pb cannot be read: {error}") from None
    graph = next((item for item in saved.meta_graphs if "serve" in item.meta_info_def.tags), None)
    if graph is None:
        raise _bad("the SavedModel has no graph with the tag 'serve'")
    signature = graph.signature_def.get(SIGNATURE) if SIGNATURE in graph.signature_def else None
    if signature is None:
        names = sorted(name for name in graph.signature_def if not name.startswith("__"))
        raise _bad(f"the SavedModel has no signature {SIGNATURE!r}; it has {', '.join(names) or 'none'}")

    def tensors(entries: Any) -> list[dict[str, Any]]:
        return [_tensorflow_tensor(tf, name, entries[name]) for name in sorted(entries)]

    return {
        "framework": "tensorflow", "inputs": tensors(signature.inputs), "outputs": tensors(signature.outputs),
        "versions": {"tensorflow": str(graph.meta_info_def.tensorflow_version)},
    }  # fmt: skip


def _tensorflow_tensor(tf: Any, name: str, info: Any) -> dict[str, Any]:
    if info.tensor_shape.unknown_rank:
        raise _bad(f"{name} has a shape of unknown rank; save the signature with a shape, as [None, None]")
    shape = [int(dim.size) for dim in info.tensor_shape.dim]
    return {"name": name, "dtype": str(tf.dtypes.as_dtype(info.dtype).name), "shape": shape}


def _bad(why: str) -> InvalidArgument:
    return InvalidArgument(f"the program cannot be served: {why}", reason="BAD_MODEL_FOLDER")


READERS = {"torch": torch_card, "tensorflow": tensorflow_card}


def main(arguments: Sequence[str] | None = None) -> int:
    """Print what the program says of itself; the exit code."""
    parser = argparse.ArgumentParser(
        prog="recmesh-inspect", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--framework", choices=sorted(READERS), required=True)
    parser.add_argument("path", type=Path, help="the .pt2 file, or the SavedModel's folder")
    given = parser.parse_args(arguments)
    process.quiet()
    try:
        found = READERS[given.framework](given.path)
    except Exception as error:                   # whatever a framework raises for what it cannot read
        found = describe(error)
    sys.stdout.buffer.write(orjson.dumps(found) + b"\n")
    return 1 if "error" in found else 0


if __name__ == "__main__":
    sys.exit(main())
