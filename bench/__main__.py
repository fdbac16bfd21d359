"""`python -m bench NAME [--quick] [--json]`; without a name, or with `--list`, what there is."""

import argparse
import ast
import importlib
import inspect
import pkgutil
import signal
import sys
from pathlib import Path
from types import FrameType

from bench.figures import Result
from recmesh.runtime.progress import Progress

TELL_S = 60.0
"""Between two lines of how long it has taken, where there is no terminal."""

_NOT_BENCHES = {
    "criteo", "dl2", "executor_scaling", "figures", "gateway", "mesh", "offered_load", "parameter_server", "quotas",
    "store_load", "synthetic", "peers", "workloads", "__main__",
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
    parser.add_argument("--list", action="store_true", help="each benchmark with a line of what it measures")
    parser.add_argument("--mesh", action="store_true", help="of autoscale and loans: the part on the real mesh alone")
    parser.add_argument("--halves", action="store_true", help="of freshness: served in halves, by a CN and an HN")
    options = parser.parse_args(argv)
    if options.list or options.name is None:
        listed = names()
        width = max(map(len, listed))
        for name in listed:
            print(f"{name:<{width}}  {_first_line(name)}")
        return 0
    for number in (signal.SIGTERM, signal.SIGINT):     # a shell's background jobs ignore SIGINT by default
        signal.signal(number, _end)                    # unwinds, so that the mesh is taken down
    made = importlib.import_module(f"bench.{options.name}").run
    chosen = {name: True for name in ("mesh", "halves") if getattr(options, name)}
    for name in chosen:
        if name not in inspect.signature(made).parameters:
            parser.error(f"{options.name} knows no --{name}")
    with Progress(f"bench {options.name}", every_s=TELL_S):
        result: Result = made(quick=options.quick, **chosen)
    print(result.as_json() if options.json else result.as_table())
    return 0


def _first_line(name: str) -> str:
    """Of the module's docstring; nothing of it is imported, as that would ask for all that benchmarks need."""
    source = Path(__file__).with_name(f"{name}.py").read_text()
    return (ast.get_docstring(ast.parse(source)) or "").partition("\n")[0]


def _end(number: int, _: FrameType | None) -> None:
    sys.exit(128 + number)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
