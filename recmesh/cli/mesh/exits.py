"""exits.jsonl: how processes of the mesh ended, newest last, bounded."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from recmesh.runtime.process import ExitRecord

MAX_LINES = 1000
"""When there are more, the older half goes."""


def append(path: Path, record: ExitRecord) -> None:
    """Adds one ending."""
    with path.open("a") as file:
        file.write(json.dumps(asdict(record)) + "\n")
    lines = path.read_text().splitlines(keepends=True)
    if len(lines) > MAX_LINES:
        part = path.with_suffix(".part")
        part.write_text("".join(lines[-MAX_LINES // 2 :]))
        part.replace(path)


def read(path: Path, *, last: int) -> list[dict[str, Any]]:
    """The newest endings, oldest first; a line cut off by a crash is left out."""
    try:
        lines = path.read_text().splitlines()
    except OSError:
        return []
    found = []
    for line in lines[-last:]:
        try:
            found.append(json.loads(line))
        except ValueError:
            continue
    return found
