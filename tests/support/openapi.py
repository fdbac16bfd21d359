"""The committed description of the REST API: `python -m tests.support.openapi docs/openapi.json`."""

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import httpx

from tests.support.gateway import gateway, http


async def document(root: Path) -> dict[str, Any]:
    """What the gateway answers under /openapi.json, without the release's number."""
    async with http(gateway(root)) as client:
        answer: httpx.Response = await client.get("/openapi.json")
    found: dict[str, Any] = answer.json()
    found["info"]["version"] = "0"
    return found


def text(found: dict[str, Any]) -> str:
    """As it is committed."""
    return json.dumps(found, indent=1, sort_keys=True, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    import asyncio

    with tempfile.TemporaryDirectory() as folder:
        Path(sys.argv[1]).write_text(text(asyncio.run(document(Path(folder)))))
