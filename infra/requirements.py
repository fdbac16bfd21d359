"""What images install: `python infra/requirements.py core service brain` prints the requirements of extras.

`core` is what the SDK itself depends on. Names of other extras (`recmesh[service]`) are left out: an image's layers
name them one by one, so that images share those that they have in common.
"""

import sys
import tomllib
from pathlib import Path


def main(wanted: list[str]) -> None:
    """Prints one requirement a line; ends with a message where an extra does not exist."""
    project = tomllib.loads((Path(sys.argv[0]).resolve().parents[1] / "pyproject.toml").read_text())["project"]
    extras = {"core": project["dependencies"], **project["optional-dependencies"]}
    if unknown := [name for name in wanted if name not in extras]:
        sys.exit(f"no extra {', '.join(unknown)}; there are: {', '.join(sorted(extras))}")
    print("\n".join(line for name in wanted for line in extras[name] if not line.startswith("recmesh[")))


if __name__ == "__main__":
    main(sys.argv[1:])
