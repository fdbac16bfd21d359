"""What holds for every test."""

import asyncio
import gc
import os
import time
from collections.abc import Generator
from typing import Any

import pytest
from hypothesis import settings
from xdist.scheduler.loadscope import LoadScopeScheduling

from tests.support.kube import simulated_cluster
from tests.support.yarn import yarn_cluster

__all__ = ["simulated_cluster", "yarn_cluster"]     # fixtures of all tests

settings.register_profile("any machine", deadline=None)     # no test is about how fast a busy machine is
settings.load_profile("any machine")
WITH_SERVERS = ("tests/integration/", "tests/e2e/")
BEGIN_UNTIL = "RECMESH_TESTS_BEGIN_UNTIL"
"""Unix seconds: tests that would begin later are left out, where only so much time is given to them."""


def pytest_configure() -> None:
    """No event loop until a test has its own.

    Before the first test asyncio would make one for whoever asks, and looptime asks in every synchronous test:
    nobody closes that loop, and a later garbage collection fails an innocent test.
    """
    asyncio.set_event_loop(None)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    """Before any fixture of the test."""
    until = os.environ.get(BEGIN_UNTIL)
    if until and time.time() > float(until):
        pytest.skip(f"left out: the time of {BEGIN_UNTIL} is over")


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_makereport() -> Generator[None, Any, Any]:
    """Nothing is collected while pytest makes a report of a failure.

    It parses the test's source for that. Where a collection comes in between, and what is collected parses source, too,
    as a task does whose exception nobody has read, to show it, CPython 3.11.7 takes one for the other ("AST constructor
    recursion depth mismatch", gh-106905), and pytest or its worker ends.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        return (yield)
    finally:
        if enabled:
            gc.enable()


class ByServers(LoadScopeScheduling):  # type: ignore[misc]  # untyped
    """Modules that start servers stay whole, so that each mesh is started once, and come first; the rest fills up."""

    def _split_scope(self, nodeid: str) -> str:
        module = nodeid.partition("::")[0]
        return module if module.startswith(WITH_SERVERS) else nodeid


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> ByServers | None:
    """What `-n` does unless `--dist` says otherwise."""
    return ByServers(config, log) if config.getvalue("dist") == "load" else None
