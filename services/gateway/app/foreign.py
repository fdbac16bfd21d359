"""Programs of other origin, which have no `model.json`: read once, and given one beside them."""

import asyncio
from dataclasses import replace
from pathlib import Path

from recmesh.runtime.errors import FailedPrecondition
from services.gateway.app.ports import Inspect
from services.gateway.domain.models import Registration
from services.gateway.store.folders import ModelFolders


async def adopted(
    wanted: Registration, path: Path, namespace: str, *, folders: ModelFolders, inspect: Inspect
) -> tuple[Registration, Path]:
    """What is registered, and its folder: the path itself, or one with a `model.json` and a link to the program there,
    and to its halves if they are beside it.

    The same program, unchanged, has the same folder under the same name, so registering it again is the same
    registration; under another name it has settings of its own.
    """
    program = await asyncio.to_thread(folders.foreign, path, framework=wanted.framework)
    if program is None:
        return wanted, path
    if wanted.framework and program.framework != wanted.framework:
        raise FailedPrecondition(
            f"registered as {wanted.framework}, but {program.path.name} is of {program.framework}",
            reason="FRAMEWORK_MISMATCH",
        )
    home = await asyncio.to_thread(folders.home_of, wanted.name, program, namespace=namespace)
    if not await asyncio.to_thread(home.is_dir):
        card = await inspect(program.framework, program.path)
        await asyncio.to_thread(folders.adopt, program, home, card)
    await asyncio.to_thread(folders.take_up_halves, home, namespace=namespace)
    return replace(wanted, uri=str(home)), home
