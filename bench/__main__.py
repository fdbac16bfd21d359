"""`python -m bench NAME [--quick] [--json]`; without a name, what there is."""

import argparse
import importlib
import inspect
import pkgutil
import signal
import sys
from pathlib import Path
from types import FrameType

from bench.figures import Result

_NOT_BENCHES = {
    "criteo", "dl2", "executor_scaling", "figures", "gateway", "mesh", "parameter_server", "quotas", "store_load",
    "synthetic", "peers", "workloads", "__main__",
}


def names() -> list[str]:
    """Modules of this package that have a `run`."""
    modules = pkgutil.iter_modules([str(Path(__file__).parent)])
    return sorted(module.name for module in modules if module.name not in _NOT_BENCHES)


def main(argv: list[str]) -> int:
    """Run one benchmark and print its figures."""
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("name", nargs="?", choices=names(), help="which figures")
    parser.add_argument("--quick", action="store_true", help="within a minute, with smaller sizes")
    parser.add_argument("--json", action="store_true", help="one JSON object on standard output")
    options = parser.parse_args(argv)
    if options.name is None:
        for name in names():
            doc = inspect.getdoc(importlib.import_module(f"bench.{name}")) or ""
            print(f"{name:<12} {doc.splitlines()[0] if doc else ''}")
        return 0
    for number in (signal.SIGTERM, signal.SIGINT):     # a shell's background jobs ignore SIGINT by default
        signal.signal(number, _end)                    # unwinds, so that the mesh is taken down
    result: Result = importlib.import_module(f"bench.{options.name}").run(quick=options.quick)
    print(result.as_json() if options.json else result.as_table())
    return 0


def _end(number: int, _: FrameType | None) -> None:
    sys.exit(128 + number)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
