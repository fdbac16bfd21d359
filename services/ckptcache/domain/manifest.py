"""manifest.json: what jobmaster knows of the snapshot, and what ckptcache stored."""

import json
from collections.abc import Mapping
from itertools import pairwise
from typing import Any

from recmesh.runtime.errors import InvalidArgument, Violation
from services.ckptcache.domain.parts import part_folder
from services.ckptcache.domain.snapshot import Link, Snapshot

FORMAT = "recmesh.snapshot/1"
MANIFEST = "manifest.json"
MARKER = "COMMITTED"


def parse(text: str) -> dict[str, Any]:
    """jobmaster's part of the manifest."""
    try:
        document = json.loads(text or "{}")
    except ValueError as error:
        raise _refused(f"is not JSON: {error}") from None
    if not isinstance(document, dict):
        raise _refused("is not a JSON object")
    return document


def count(document: Mapping[str, Any], name: str) -> int:
    """A count that the manifest may give; 0 when it does not."""
    value = document.get(name, 0)
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise _refused(f"{name} is {value!r}, not a count")
    return value


def chain(document: Mapping[str, Any]) -> tuple[Link, ...]:
    """The snapshots that the manifest's own builds on, newest first."""
    try:
        links = tuple(Link(int(link["snapshot"]), tuple(map(int, link["ps"]))) for link in document.get("chain", ()))
    except (TypeError, KeyError, ValueError):
        raise _refused("chain is no list of snapshots") from None
    if any(lower.number >= upper.number for upper, lower in pairwise(links)) or any(link.number < 1 for link in links):
        raise _refused("chain does not go from newer to older snapshots")
    return links


def merged(given: Mapping[str, Any], snapshot: Snapshot) -> dict[str, Any]:
    """jobmaster's fields, with those that only ckptcache can vouch for written over them."""
    parts = [
        {
            "ps": ps,
            "folder": part_folder(ps),
            "size_bytes": part.size_bytes,
            "files": [{"name": file.name, "size_bytes": file.size_bytes, "sha256": file.sha256} for file in part.files],
        }
        for ps, part in sorted((snapshot.stored or {}).items())
    ]
    return {
        "format": FORMAT,
        **given,
        "job_id": snapshot.job_id,
        "snapshot": snapshot.number,
        "gen": snapshot.gen,
        "created": snapshot.created,
        "committed": snapshot.committed,
        "label": snapshot.label,
        "rows": snapshot.rows,
        "samples": snapshot.samples,
        "size_bytes": snapshot.size_bytes,
        "parts": parts,
    }


def _refused(reason: str) -> InvalidArgument:
    return InvalidArgument("the manifest is refused", violations=[Violation("manifest_json", reason)])
