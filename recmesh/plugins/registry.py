"""Plug-ins by name: those that a service brings along, and those that installed packages add by entry points."""

from collections.abc import Mapping
from importlib.metadata import entry_points
from typing import Any


class UnknownPlugin(LookupError):
    """No plug-in of that group has that name; the message lists those that exist."""


class BrokenPlugin(RuntimeError):
    """It is installed, and cannot be imported; the message has the reason."""


def names(group: str, built_in: Mapping[str, Any]) -> list[str]:
    """All that can be loaded, sorted."""
    return sorted({*built_in, *(point.name for point in entry_points(group=group))})


def load(group: str, name: str, built_in: Mapping[str, Any]) -> Any:
    """What the name stands for: a class, as the group's interface says.

    A built-in name cannot be taken by a package, so that what a service does never changes by an installation.
    """
    if name in built_in:
        return built_in[name]
    for point in entry_points(group=group, name=name):
        try:
            return point.load()
        except Exception as error:
            raise BrokenPlugin(f"{name} ({point.value}) of {group} cannot be loaded: {error!r}") from error
    raise UnknownPlugin(f"no {name!r} in {group}: there are {', '.join(names(group, built_in)) or 'none'}")
