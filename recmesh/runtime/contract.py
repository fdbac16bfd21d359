"""Files that hold what others rely on, one line each: written by a command that refuses to break them."""

import sys
from collections.abc import Callable, Collection, Sequence
from pathlib import Path


def read(path: Path) -> list[str]:
    """The lines of a contract; none where there is no file yet."""
    if not path.exists():
        return []
    return [line for line in path.read_text(encoding="utf-8").splitlines() if line and not line.startswith("#")]


def write(
    path: Path, found: Sequence[str], broken: Callable[[Collection[str], Collection[str]], Sequence[str]], *,
    command: str, who: str,
) -> int:
    """The exit status: 0 once `found` is written, 1 and what would break for `who` where it does not hold any more.

    `broken` tells that of what stood there before and `found`; `command` is named in the file as what writes it.
    """
    wrong = broken(read(path), found)
    if wrong:
        print("\n".join([f"{who} of this version would break:", *(f"  {each}" for each in wrong)]), file=sys.stderr)
        return 1
    path.write_text(f"# Generated: {command}\n" + "".join(f"{line}\n" for line in found), encoding="utf-8")
    return 0
