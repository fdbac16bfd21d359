from pathlib import Path

import pytest
from pydantic import Field

from recmesh.runtime.errors import InvalidArgument
from recmesh.runtime.settings import ServiceSettings, Settings


class Example(Settings):
    workers: int = 4
    ratio: float = Field(default=0.5, ge=0, le=1)
    folders: list[str] = Field(default_factory=list)
    label: str = "x"
    limit: int | None = None
    needed: Path


def test_values_come_from_variables_of_the_prefix_and_the_rest_is_default() -> None:
    read = Example.from_env({"X_NEEDED": "/data", "X_FOLDERS": '["a","b"]', "WORKERS": "9"}, "X_")
    assert (read.workers, read.folders, read.needed) == (4, ["a", "b"], Path("/data"))


def test_every_wrong_variable_is_named_with_its_reason() -> None:
    with pytest.raises(InvalidArgument) as caught:
        Example.from_env({"X_WORKERS": "many", "X_RATIO": "2"}, "X_")
    assert {item.path for item in caught.value.violations} == {"X_WORKERS", "X_RATIO", "X_NEEDED"}
    assert "X_WORKERS" in str(caught.value)


def test_a_list_that_is_not_json_is_named() -> None:
    with pytest.raises(InvalidArgument, match="X_FOLDERS"):
        Example.from_env({"X_NEEDED": "/", "X_FOLDERS": "a,b"}, "X_")


def test_an_empty_variable_means_not_set_except_for_text() -> None:
    read = Example.from_env({"X_NEEDED": "/", "X_LIMIT": "", "X_WORKERS": "", "X_LABEL": ""}, "X_")
    assert (read.limit, read.workers, read.label) == (None, 4, "")


def test_peers_are_read_from_the_variables_that_name_their_rpc_address() -> None:
    read = ServiceSettings.from_env({"RECMESH_BRAIN_RPC": "127.0.0.1:7001"}, "RECMESH_")
    assert read.brain == "127.0.0.1:7001"
    assert read.tls is None and read.token is None


def test_the_api_key_does_not_appear_when_settings_are_printed() -> None:
    env = {"RECMESH_API_KEY": "hunter2", "RECMESH_NATS_TOKEN": "hunter3"}
    read = ServiceSettings.from_env(env, "RECMESH_")
    assert read.token == "hunter2"
    assert "hunter" not in repr(read)


def test_a_certificate_without_its_key_is_refused() -> None:
    read = ServiceSettings.from_env({"RECMESH_TLS_CERT": "/x.pem"}, "RECMESH_")
    with pytest.raises(InvalidArgument, match="tls_key"):
        _ = read.tls
