"""Programs of strangers are read by a process of its own, with a deadline: `recmesh.serving.inspect`."""

import asyncio
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import orjson

from recmesh.runtime.errors import DeadlineExceeded, InvalidArgument, MeshError
from recmesh.serving.failures import rebuilt
from services.gateway.runtimes.link import ROOT

MODULE = "recmesh.serving.inspect"
AT_ONCE = 1


class Inspection:
    """What programs take and give, one after another."""

    def __init__(self, environment: Mapping[str, str], *, timeout_s: float) -> None:
        self._environment = environment
        self._timeout_s = timeout_s
        self._turn = asyncio.Semaphore(AT_ONCE)

    async def inspect(self, framework: str, program: Path) -> dict[str, Any]:
        """A `model.json`; InvalidArgument says why there can be none, DeadlineExceeded that it took too long."""
        async with self._turn:
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", MODULE, "--framework", framework, str(program),
                stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL,
                env={**self._environment, "PYTHONPATH": str(ROOT)},
            )  # fmt: skip
            try:
                async with asyncio.timeout(self._timeout_s):
                    output, _ = await process.communicate()
            except TimeoutError:
                raise DeadlineExceeded(
                    f"{program.name} was not read within {self._timeout_s:g} s", reason="INSPECTION_TOO_LONG"
                ) from None
            finally:
                if process.returncode is None:
                    process.kill()
                    await process.wait()
        return _found(output, process.returncode or 0, program)


def _found(output: bytes, code: int, program: Path) -> dict[str, Any]:
    try:
        found = orjson.loads(output)
    except orjson.JSONDecodeError:
        found = None
    if not isinstance(found, dict):
        raise InvalidArgument(
            f"{program.name} cannot be read: the process that reads it ended with {code}", reason="BAD_MODEL_FOLDER"
        )
    if "error" in found:
        error = rebuilt(found)
        raise error if isinstance(error, InvalidArgument) else _unreadable(program, error)
    return found


def _unreadable(program: Path, error: MeshError) -> InvalidArgument:
    return InvalidArgument(f"{program.name} cannot be read: {error.message}", reason="BAD_MODEL_FOLDER")
