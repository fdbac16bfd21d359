"""Which operators stay on the CPU, which belong on the accelerator: `classes.toml`, and what others add to it.

A package adds a table by the entry-point group `recmesh.operator_classes`: an object of the form of the file, or a
function that gives one. Before all that goes the user's own file. The first pattern that fits decides.
"""

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from fnmatch import fnmatchcase
from importlib.resources import files
from pathlib import Path
from typing import Any, Self

import yaml

from recmesh.plugins import registry
from recmesh.runtime.errors import InvalidArgument, Violation
from recmesh.serving.split.graph import Operator

GROUP = "recmesh.operator_classes"
SECTIONS = ("names", "torch", "tensorflow")


class Class(StrEnum):
    """What an operator is to the partitioner."""

    CPU = "cpu"
    LOOKUP = "lookup"
    SEED = "seed"
    NEUTRAL = "neutral"
    WHOLE = "whole"


@dataclass(frozen=True, slots=True)
class Classes:
    """Patterns with their classes; the first that fits decides, names before kinds."""

    names: Sequence[tuple[str, Class]] = ()
    kinds: Mapping[str, Sequence[tuple[str, Class]]] = field(default_factory=dict)
    """By framework."""

    @classmethod
    def parse(cls, document: Any, source: str) -> Self:
        """Of a decoded file; InvalidArgument names every wrong entry and the `source`."""
        if not isinstance(document, Mapping):
            raise InvalidArgument(f"{source} is no table of operators")
        wrong: list[Violation] = []
        found: dict[str, list[tuple[str, Class]]] = {}
        for section, patterns in document.items():
            if section not in SECTIONS:
                wrong.append(Violation(str(section), f"is none of {', '.join(SECTIONS)}"))
            elif not isinstance(patterns, Mapping):
                wrong.append(Violation(section, "is no table of patterns"))
            else:
                found[section] = []
                for pattern, name in patterns.items():
                    if name in list(Class):
                        found[section].append((str(pattern), Class(name)))
                    else:
                        wrong.append(Violation(f"{section}.{pattern}", f"{name!r} is none of {', '.join(Class)}"))
        if wrong:
            raise InvalidArgument(f"{source} is wrong", violations=wrong)
        return cls(found.pop("names", []), found)

    def over(self, other: "Classes") -> "Classes":
        """These, and where none fits the other's."""
        kinds = {
            each: [*self.kinds.get(each, ()), *other.kinds.get(each, ())] for each in {*self.kinds, *other.kinds}
        }
        return Classes([*self.names, *other.names], kinds)

    def of(self, operator: Operator, framework: str) -> Class:
        """CPU, SEED, NEUTRAL or WHOLE: a lookup is CPU where it has a table, else neutral."""
        patterns = [
            *((operator.name, each) for each in self.names),
            *((operator.kind, each) for each in self.kinds.get(framework, ())),
        ]
        found = next((kind for text, (pattern, kind) in patterns if fnmatchcase(text, pattern)), Class.NEUTRAL)
        if found is Class.LOOKUP:
            return Class.CPU if operator.table_bytes else Class.NEUTRAL
        return found


def built_in() -> Classes:
    """Those of recmesh, and before them those of installed packages."""
    text = files("recmesh.serving.split").joinpath("classes.toml").read_text(encoding="utf-8")
    found = Classes.parse(tomllib.loads(text), "classes.toml")
    for name in registry.names(GROUP, {}):
        added = registry.load(GROUP, name, {})
        found = Classes.parse(added() if callable(added) else added, f"{name} of {GROUP}").over(found)
    return found


def read(file: Path) -> Classes:
    """A user's file (TOML, or YAML by its ending); InvalidArgument when it cannot be read or is wrong."""
    try:
        text = file.read_text(encoding="utf-8")
        if file.suffix in (".yaml", ".yml"):
            return Classes.parse(yaml.safe_load(text), str(file))
        return Classes.parse(tomllib.loads(text), str(file))
    except InvalidArgument:
        raise
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise InvalidArgument(f"{file} cannot be read: {error}") from error
