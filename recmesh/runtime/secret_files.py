"""Secrets by file: `RECMESH_API_KEY_FILE=/run/secrets/key` in place of `RECMESH_API_KEY`, for each setting that is one.

The environment of a process is seen by more than its owner means to (children, crash reports, `docker inspect`); a
file has rights of its own. It is read once, when the process starts.
"""

from collections.abc import Mapping
from pathlib import Path

from recmesh.runtime.errors import InvalidArgument, Violation
from recmesh.runtime.variables import PREFIX, SECRETS

SUFFIX = "_FILE"
MAX_BYTES = 64 << 10


def expanded(env: Mapping[str, str]) -> dict[str, str]:
    """The environment with the content of such files under the names of the secrets, without white space around it.

    InvalidArgument names each variable whose file cannot be read or is empty, or that stands beside the secret itself.
    """
    found = dict(env)
    wrong: list[Violation] = []
    for name in sorted(PREFIX + each for each in SECRETS):
        path = found.pop(name + SUFFIX, "")
        if not path:
            continue
        if found.get(name):
            wrong.append(Violation(name + SUFFIX, f"{name} is set, too: only one of them may be"))
            continue
        try:
            text = _read(Path(path))
        except (OSError, UnicodeDecodeError) as error:
            wrong.append(Violation(name + SUFFIX, f"{path} cannot be read: {getattr(error, 'strerror', '') or error}"))
            continue
        if not text:
            wrong.append(Violation(name + SUFFIX, f"{path} is empty"))
        found[name] = text
    if wrong:
        raise InvalidArgument(
            f"secrets by file are wrong: {', '.join(each.path for each in wrong)}", reason="BAD_CONFIG",
            violations=wrong,
        )
    return found


def _read(path: Path) -> str:
    with path.open("rb") as file:
        return file.read(MAX_BYTES).decode().strip()
