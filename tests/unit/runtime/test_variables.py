"""The names of environment variables: all that are read, and what is told of others."""

import re
from pathlib import Path

import pytest

from recmesh.runtime import lifecycle, variables
from recmesh.runtime.errors import Unavailable
from recmesh.runtime.lifecycle import Component, ExitCode
from recmesh.runtime.settings import ServiceSettings, _env_name
from services.brain.config import BrainSettings
from services.ckptcache.config import CkptcacheSettings
from services.forecaster.config import ForecasterSettings
from services.gateway.config import Config as GatewaySettings
from services.jobmaster.config import JobmasterSettings
from services.shardsvc.config import Config as ShardsvcSettings

ROOT = Path(__file__).parents[3]
CONFIGS: tuple[type[ServiceSettings], ...] = (
    BrainSettings, CkptcacheSettings, ForecasterSettings, GatewaySettings, JobmasterSettings, ShardsvcSettings,
)  # fmt: skip
NO_VARIABLES = {"DEAD", "TASKS"}
"""Streams of NATS are named alike."""


def test_the_settings_of_all_services_are_known_and_no_others() -> None:
    assert {_env_name(*field) for each in CONFIGS for field in each.model_fields.items()} == variables.SETTINGS


def test_whatever_else_is_read_somewhere_is_known_and_nothing_else() -> None:
    sources = [path.read_text() for of in ("recmesh", "services") for path in (ROOT / of).rglob("*.py")]
    read = {name for text in sources for name in re.findall(r'"RECMESH_([A-Z0-9_]*[A-Z0-9])"', text)} - NO_VARIABLES
    assert read - variables.SETTINGS == variables.OTHERS


def test_a_misspelt_name_is_told_with_the_nearest_one() -> None:
    found = variables.unknown(["PATH", "RECMESH_RATE_SEASONS", "RECMESH_BENCH_X", "RECMESH_XYZZY", "RECMESH_CORES"])
    assert found == {"RECMESH_RATE_SEASONS": "RECMESH_RATE_SEASON_S", "RECMESH_XYZZY": ""}
    told = [variables.complaint(*each) for each in found.items()]
    assert told[0].endswith("did you mean RECMESH_RATE_SEASON_S?") and "did you mean" not in told[1]


def test_a_service_that_starts_warns_of_it(capfd: pytest.CaptureFixture[str]) -> None:
    async def build(_: object) -> list[Component]:
        raise Unavailable("as far as this test goes")

    code = lifecycle._main("brain", build, {"RECMESH_RATE_SEASONS": "60"})
    assert code is ExitCode.UNAVAILABLE
    told = "RECMESH_RATE_SEASONS is no setting and does nothing; did you mean RECMESH_RATE_SEASON_S?"
    assert told in capfd.readouterr().err
