"""What holds for every test."""

import asyncio
from typing import Any

import pytest
from hypothesis import settings
from xdist.scheduler.loadscope import LoadScopeScheduling

settings.register_profile("any machine", deadline=None)     # no test is about how fast a busy machine is
settings.load_profile("any machine")
WITH_SERVERS = ("tests/integration/", "tests/e2e/")


def pytest_configure() -> None:
    """No event loop until a test has its own.

    Before the first test asyncio would make one for whoever asks, and looptime asks in every synchronous test:
    nobody closes that loop, and a later garbage collection fails an innocent test.
    """
    asyncio.set_event_loop(None)


class ByServers(LoadScopeScheduling):  # type: ignore[misc]  # untyped
    """Modules that start servers stay whole, so that each mesh is started once, and come first; the rest fills up."""

    def _split_scope(self, nodeid: str) -> str:
        module = nodeid.partition("::")[0]
        return module if module.startswith(WITH_SERVERS) else nodeid


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> ByServers | None:
    """What `-n` does unless `--dist` says otherwise."""
    return ByServers(config, log) if config.getvalue("dist") == "load" else None
