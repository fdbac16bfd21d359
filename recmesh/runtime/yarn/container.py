"""`python -m recmesh.runtime.yarn.container FOLDER SERVICE INSTANCE`: the process of a YARN container.

It looks up what its instance is to run, runs it, and notes how it ended, as recmesh.runtime.process.shim does on one
machine. YARN signals all processes of the container at once, so that nothing is forwarded. An instance whose order has
ended, or is not wanted any more, ends at once: YARN may start a container for it again when a service's master comes
back.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from recmesh.runtime.yarn.board import Board

IN_HAND = "RECMESH_IN_HAND"
"""Where a worker notes its batch (recmesh.formats.inhand)."""
ORDER_S = 30.0
"""The order is noted before YARN is asked for the container; a store may show it late."""
WRITE_S = 60.0
TAIL_BYTES = 16 * 1024
_SIGNALS = 128


def application_of(container: str) -> str:
    """`application_1700_0001` of `container_1700_0001_01_000002`, or of `container_e17_1700_...`, where the
    ResourceManager has been started again."""
    parts = container.split("_")[1:]
    if parts and parts[0].startswith("e"):
        parts = parts[1:]
    return "application_" + "_".join(parts[:2])


def main(argv: Sequence[str], env: Mapping[str, str]) -> int:
    """The command's exit code, or 128 and its signal's number."""
    folder, service, instance = argv
    container = env["CONTAINER_ID"]
    place = service, application_of(container), instance
    board = Board(folder)
    signal.signal(signal.SIGTERM, lambda *_: None)      # not SIG_IGN, which the command would inherit
    order = _order(board, place)
    if order is None or board.has(*place, "end") or board.has(*place, "stop"):
        return 0
    node = f"{env.get('NM_HOST', '')}:{env.get('NM_HTTP_PORT', '')}"
    _write(board, place, "begun", {"container": container, "node": node})
    if board.has(*place, "stop"):       # noted since; from here on whoever notes it also sends a signal
        return 0
    note = Path.cwd() / "in-hand"
    try:
        command = subprocess.Popen(
            order["command"], env={**env, **_places(env, note), **order["env"]}, stdin=subprocess.DEVNULL,
            stderr=subprocess.STDOUT,
        )
    except OSError as error:
        _write(board, place, "end", {"code": 127, "last_line": f"{order['command'][0]} cannot be started: {error}"})
        return 127
    code = command.wait()
    tail = _tail()
    lines = [line.strip() for line in tail.splitlines() if line.strip()]
    _write(board, place, "end", {
        "code": code if code >= 0 else None, "signal": -code if code < 0 else None,
        "last_line": lines[-1][:2000] if lines else "", "in_hand": _text(note), "tail": tail,
    })  # fmt: skip
    return code if code >= 0 else _SIGNALS - code


def _order(board: Board, place: tuple[str, str, str]) -> dict[str, Any] | None:
    deadline = time.monotonic() + ORDER_S
    while True:
        order = board.read(*place, "order")
        if order is not None or time.monotonic() > deadline:
            return order
        time.sleep(0.2)


def _places(env: Mapping[str, str], note: Path) -> dict[str, str]:
    """Of this container; addresses are of its node, which others reach."""
    here, host = str(Path.cwd()), env.get("NM_HOST", "127.0.0.1")
    snapshots = Path(here) / "snapshots"
    snapshots.mkdir(exist_ok=True)
    return {
        "HOME": here, "RECMESH_WORK_DIR": here, "RECMESH_SHM_DIR": str(snapshots), IN_HAND: str(note),
        "RECMESH_PS_ADDRESS": f"{host}:0", "RECMESH_DATA_ADDRESS": f"{host}:0",
    }


def _write(board: Board, place: tuple[str, str, str], kind: Any, note: Mapping[str, Any]) -> None:
    """Tries for a minute: a store may be away for a moment."""
    deadline = time.monotonic() + WRITE_S
    while True:
        try:
            board.write(*place, kind, note)
            return
        except Exception as error:      # each file system has errors of its own
            if time.monotonic() > deadline:
                raise
            print(f"{kind} of {place[2]} cannot be noted yet: {error}", file=sys.stderr, flush=True)
            time.sleep(0.5)


def _tail() -> str:
    """What the command wrote last: its output is this process's own, a file of YARN's."""
    try:
        with open("/proc/self/fd/1", "rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - TAIL_BYTES))
            return file.read().decode(errors="replace")
    except OSError:
        return ""


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], os.environ))
