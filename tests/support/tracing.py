"""Telemetry for a test: spans are recorded, logs go nowhere new."""

import logging
from collections.abc import Iterator

import pytest

from recmesh.runtime.settings import ServiceSettings
from recmesh.runtime.telemetry import setup
from recmesh.runtime.telemetry.logs import JsonFormatter


@pytest.fixture
def tracing() -> Iterator[None]:
    """Trace ids exist during the test. Import it into the test's module to use it."""
    setup("tests", ServiceSettings())
    yield
    root = logging.getLogger()
    for handler in [item for item in root.handlers if isinstance(item.formatter, JsonFormatter)]:
        root.removeHandler(handler)
    logging.captureWarnings(False)
