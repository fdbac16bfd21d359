"""Queries taken apart, and a real Prometheus (Debian's package)."""

import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.servers import free_port
from tests.support.waiting import until_answers

TARGET_LABELS = frozenset({"job", "instance", "namespace", "pod"})
"""What a scrape adds."""
_WORDS = frozenset({"and", "or", "unless", "by", "on", "without", "ignoring", "offset", "bool", "group_left"})
_TEXT = re.compile(r'"(?:[^"\\]|\\.)*"')
_GROUPING = re.compile(r"\b(?:by|on|without|ignoring|group_left)\s*\(([^)]*)\)")
_SELECTOR = re.compile(r"([a-zA-Z_:][\w:]*)\s*\{([^}]*)\}")
_NAME = re.compile(r"(?<![\w.$])([a-zA-Z_:][\w:]*)\b(?!\s*\()")


@dataclass(frozen=True, slots=True)
class Asked:
    """What a query speaks of."""

    names: frozenset[str]
    matched: Mapping[str, frozenset[str]]
    """Labels in the braces of a name."""
    grouped: frozenset[str]
    """Labels of `by`, `on` and the like."""


def taken_apart(query: str) -> Asked:
    """Names and labels of a query."""
    rest = re.sub(r"\[[^\]]*\]|\boffset\s+\w+", " ", _TEXT.sub('""', query))
    grouped = {label.strip() for group in _GROUPING.findall(rest) for label in group.split(",") if label.strip()}
    rest = _GROUPING.sub(" ", rest)
    matched: dict[str, set[str]] = {}
    for name, labels in _SELECTOR.findall(rest):
        matched.setdefault(name, set()).update(re.findall(r"(\w+)\s*[=!]", labels))
    names = set(_NAME.findall(_SELECTOR.sub(" ", rest))) - _WORDS
    return Asked(
        frozenset(names | matched.keys()), {name: frozenset(found) for name, found in matched.items()},
        frozenset(grouped),
    )  # fmt: skip


def program(name: str) -> str:
    """`promtool` or `prometheus`; the test is skipped where Debian's package is not there."""
    found = shutil.which(name)
    if found is None:
        pytest.skip(f"no {name}: install Debian's package `prometheus`")
    return found


def promtool(*arguments: str | Path, cwd: Path | None = None) -> str:
    """What it prints; AssertionError with its complaint."""
    done = subprocess.run(
        [program("promtool"), *arguments], cwd=cwd, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


class Prometheus:
    """One that runs."""

    def __init__(self, url: str) -> None:
        self._url = url

    def get(self, path: str, **query: str) -> Any:
        """The API's `data`; AssertionError when it refuses."""
        answer = httpx.get(f"{self._url}/api/v1/{path}", params=query, timeout=10, trust_env=False)
        found = answer.json()
        assert found["status"] == "success", (query, found)
        return found["data"]

    def values(self, query: str) -> list[tuple[dict[str, str], float]]:
        """Of an instant query: labels and value of each line."""
        return [(item["metric"], float(item["value"][1])) for item in self.get("query", query=query)["result"]]


@contextmanager
def prometheus(folder: Path, config: Path) -> Iterator[Prometheus]:
    """With the configuration; ended with the block."""
    port = free_port()
    with (folder / "prometheus.log").open("wb") as log:
        process = subprocess.Popen(
            [
                program("prometheus"), f"--config.file={config}", f"--storage.tsdb.path={folder / 'tsdb'}",
                f"--web.listen-address=127.0.0.1:{port}", "--log.level=warn",
            ],
            stdout=subprocess.DEVNULL, stderr=log,
        )  # fmt: skip

    try:
        until_answers(process, f"http://127.0.0.1:{port}/-/ready", log=folder / "prometheus.log")
        yield Prometheus(f"http://127.0.0.1:{port}")
    finally:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(20)
