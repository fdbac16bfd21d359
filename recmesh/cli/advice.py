"""What to do about an error: one line, where its own words do not say so already."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from recmesh.runtime.errors import (
    DeadlineExceeded,
    Internal,
    MeshError,
    NotFound,
    PermissionDenied,
    ResourceExhausted,
    Unauthenticated,
    Unavailable,
)

if TYPE_CHECKING:
    from recmesh.client.contexts import Context

_LISTS = {
    "there is no job": "`recmesh jobs` lists jobs", "model": "`recmesh models` lists models",
    "there is no dataset": "`recmesh dataset list` lists datasets",
    "there is no webhook": "`recmesh webhook list` lists webhooks",
    "series": "`recmesh forecast` lists series",
}  # fmt: skip
"""By how the refusal begins."""
_ANOTHER = "`recmesh context list` shows others, `--context NAME` names one"


def next_step(error: MeshError, place: "Context | None") -> str:
    """A sentence; empty when the error says itself what to do, or nothing can be done.

    `place`: the mesh that was meant, where one was.
    """
    if "`recmesh " in error.message or not _is_told_by_a_mesh(error):
        return ""
    match error:
        case Unauthenticated():
            return _of_key(place)
        case PermissionDenied(reason="ADDRESS_REFUSED"):    # of a webhook, by the mesh's settings, whoever asks
            return ""
        case PermissionDenied():
            return "The key that was given does not allow it: whoever keeps gateway's keys gives it the scope."
        case NotFound():
            return next((f"{text}." for begin, text in _LISTS.items() if error.message.startswith(begin)), "")
        case ResourceExhausted():
            return "Wait and repeat it, or ask for less."
        case Unavailable() | DeadlineExceeded():
            return _of_mesh(place)
        case Internal():
            return "This is a fault of recmesh: the logs say more (`recmesh logs gateway`, `recmesh logs jobmaster`)."
    return ""


def _is_told_by_a_mesh(error: MeshError) -> bool:
    return error.reason not in ("PACKAGE_MISSING", "NOT_STARTING", "CERTIFICATE_OVER")


def _of_key(place: "Context | None") -> str:
    if place is not None and place.api_key_file:
        return f"The mesh does not know the key in {place.api_key_file}: put the right one there."
    name = f"--url {place.url}" if place is not None and place.url else "--url URL"
    named = f"`recmesh context add NAME {name} --api-key-file FILE`"
    return f"Give the key in RECMESH_API_KEY, or name the mesh with it: {named}."


def _of_mesh(place: "Context | None") -> str:
    if place is None:
        return ""
    if place.home:
        return f"`recmesh status --home {place.home}` shows what runs there, `recmesh up` starts what does not."
    if place.namespace:
        return f"`kubectl -n {place.namespace} get pods` shows what runs there; {_ANOTHER}."
    return f"Is it the mesh that you mean, and does it run? {_ANOTHER}; `recmesh up` starts one on this machine."


def meant(home: str | None, env: Mapping[str, str]) -> "Context | None":
    """The mesh that a verb spoke to; None where none can be told."""
    from recmesh.client.find import meant as found

    try:
        return found(home, env)
    except MeshError:
        return None
