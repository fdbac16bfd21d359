"""The command group: what all verbs have in common."""

import os
from typing import Any

import typer
from typer.core import TyperGroup

from recmesh.cli import advice
from recmesh.runtime.errors import MeshError


class Verbs(TyperGroup):
    """A group whose verbs take `--json` for `--output json`, and whose errors say what to do next."""

    def resolve_command(self, context: Any, args: list[str]) -> Any:
        """As click's, for the verb that is found."""
        name, command, rest = super().resolve_command(context, args)
        if command is not None and any(parameter.name == "shape" for parameter in command.params):
            end = rest.index("--") if "--" in rest else len(rest)
            rest = ["--output=json" if word == "--json" else word for word in rest[:end]] + rest[end:]
        if command is not None:
            command.callback = _advised(command.callback)
        return name, command, rest


def _advised(verb: Any) -> Any:
    """The verb, with a note on each error of what to do about it."""
    if verb is None:
        return None

    def called(*args: Any, **options: Any) -> Any:
        try:
            return verb(*args, **options)
        except MeshError as error:
            home = options.get("home")
            place = advice.meant(home if isinstance(home, str) else None, os.environ)
            if (told := advice.next_step(error, place)) and not getattr(error, "__notes__", []):
                error.add_note(told)
            raise

    return called


def group(**more: Any) -> typer.Typer:
    """A group of verbs; what is given is typer's."""
    return typer.Typer(cls=Verbs, no_args_is_help=True, **more)
