"""The names of environment variables: all that are read, and what is told of others."""

import re
from collections.abc import Mapping
from pathlib import Path

import pytest

from recmesh.runtime import lifecycle, secret_files, variables
from recmesh.runtime.errors import InvalidArgument, Unavailable
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
NO_VARIABLES = {"AUDIT", "DEAD", "TASKS"}
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


def test_each_secret_may_be_given_by_a_file(tmp_path: Path) -> None:
    fields = [field for each in CONFIGS for field in each.model_fields.items()]
    assert {_env_name(*field) for field in fields if "SecretStr" in str(field[1].annotation)} == variables.SECRETS
    file = tmp_path / "key"
    file.write_text("k3y\n")
    env = secret_files.expanded({"RECMESH_API_KEY_FILE": str(file), "RECMESH_CORES": "2"})
    assert env == {"RECMESH_API_KEY": "k3y", "RECMESH_CORES": "2"}
    assert ServiceSettings.from_env(env, "RECMESH_").token == "k3y"
    assert variables.unknown(["RECMESH_API_KEY_FILE"]) == {}
    assert variables.unknown(["RECMESH_CORES_FILE"])


def test_a_secret_s_file_that_is_none_is_named(tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.touch()
    with pytest.raises(InvalidArgument) as caught:
        secret_files.expanded({
            "RECMESH_API_KEY_FILE": str(tmp_path / "absent"), "RECMESH_NATS_TOKEN_FILE": str(empty),
            "RECMESH_VALKEY_URL_FILE": str(empty), "RECMESH_VALKEY_URL": "redis://x",
        })
    assert [item.path for item in caught.value.violations] == [
        "RECMESH_API_KEY_FILE", "RECMESH_NATS_TOKEN_FILE", "RECMESH_VALKEY_URL_FILE",
    ]
    assert "cannot be read" in str(caught.value) and "is set, too" in str(caught.value)


def test_a_service_starts_with_secrets_by_file(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("t0ken")
    seen: list[str] = []

    async def build(env: Mapping[str, str]) -> list[Component]:
        seen.append(env["RECMESH_NATS_TOKEN"])
        raise Unavailable("as far as this test goes")

    lifecycle._main("brain", build, {"RECMESH_NATS_TOKEN_FILE": str(tmp_path / "token")})
    assert seen == ["t0ken"]
    assert lifecycle._main("brain", build, {"RECMESH_NATS_TOKEN_FILE": "/absent"}) is ExitCode.BAD_CONFIG
