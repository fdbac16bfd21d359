"""What processes one version apart rely on in messages, one line each.

`python -m recmesh.runtime.rpc.contract docs/formats/wire.v1.txt` writes it (run it after `make proto`), and refuses
where some of it would be gone.

    recmesh.jobmaster.v1.Job 1 job_id string
    recmesh.jobmaster.v1.Jobs/Submit recmesh.jobmaster.v1.SubmitRequest recmesh.jobmaster.v1.Job

A message keeps each field's number, name and type; an enum its values; a service its methods. What is added is left
unread by those who do not know it, who read a default where it is left out.
"""

import pkgutil
import sys
from collections.abc import Collection, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

from google.protobuf.descriptor import FieldDescriptor

import recmesh.pb
from recmesh.runtime.contract import write

COMMAND = "python -m recmesh.runtime.rpc.contract docs/formats/wire.v1.txt"
FOREIGN = ("externalscaler", "inference")
"""Contracts of others: KEDA's, and the Open Inference Protocol."""
_TYPES = {
    value: name.removeprefix("TYPE_").lower()
    for name, value in vars(FieldDescriptor).items() if name.startswith("TYPE_")
}


def lines() -> list[str]:
    """Sorted; the same for the same messages."""
    found: list[str] = []
    for module in pkgutil.iter_modules(recmesh.pb.__path__):
        if module.name.endswith("_pb2") and module.name.removesuffix("_pb2") not in FOREIGN:
            found += _of_file(import_module(f"recmesh.pb.{module.name}").DESCRIPTOR)
    return sorted(found)


def broken(before: Collection[str], after: Collection[str]) -> list[str]:
    """What of the contract `before` does not hold in `after`; empty: neighbouring versions understand each other."""
    kept = set(after)
    return sorted(f"is gone, or another: {line}" for line in before if line not in kept)


def _of_file(file: Any) -> Iterator[str]:
    for message in file.message_types_by_name.values():
        yield from _of_message(message)
    for enum in file.enum_types_by_name.values():
        yield from _of_enum(enum)
    for service in file.services_by_name.values():
        for method in service.methods:
            asks = "stream " * method.client_streaming + method.input_type.full_name
            gets = "stream " * method.server_streaming + method.output_type.full_name
            yield f"{service.full_name}/{method.name} {asks} {gets}"


def _of_message(message: Any) -> Iterator[str]:
    for field in message.fields:
        kind = next((each.full_name for each in (field.message_type, field.enum_type) if each), _TYPES[field.type])
        many = "repeated " if field.is_repeated else ""
        yield f"{message.full_name} {field.number} {field.name} {many}{kind}"
    for inner in message.nested_types:
        yield from _of_message(inner)
    for enum in message.enum_types:
        yield from _of_enum(enum)


def _of_enum(enum: Any) -> Iterator[str]:
    for value in enum.values:
        yield f"{enum.full_name} {value.number} {value.name}"


def main(path: Path) -> int:
    """Writes the contract; 1 and what would break where it does not hold any more."""
    return write(path, lines(), broken, command=COMMAND, who="processes")


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
