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


@pytest.mark.parametrize("address", ["0.0.0.0:7000", "[::]:7000", "10.1.2.3:0", "brain.example:7000"])
def test_a_service_that_others_can_reach_needs_the_token_of_the_mesh(address: str) -> None:
    with pytest.raises(InvalidArgument) as raised:
        ServiceSettings.from_env({"RECMESH_RPC_ADDRESS": address}, "RECMESH_")
    assert "RECMESH_API_KEY, must be set" in raised.value.violations[0].reason
    for name in ("127.0.0.1:0", "127.0.0.2:7000", "[::1]:7000", "localhost:7000", "unix:/tmp/socket"):
        assert ServiceSettings.from_env({"RECMESH_RPC_ADDRESS": name}, "RECMESH_").rpc_address == name
    closed = ServiceSettings.from_env({"RECMESH_RPC_ADDRESS": address, "RECMESH_API_KEY": "k"}, "RECMESH_")
    assert closed.token == "k"


def test_the_certificate_of_the_http_port_is_another_one_and_its_key_may_not_be_missing() -> None:
    own = {"RECMESH_TLS_CERT": "a", "RECMESH_TLS_KEY": "b", "RECMESH_TLS_CA": "c"}
    assert ServiceSettings.from_env(own, "RECMESH_").http_tls is None
    settings = ServiceSettings.from_env(own | {"RECMESH_HTTP_TLS_CERT": "d"}, "RECMESH_")
    with pytest.raises(InvalidArgument) as raised:
        settings.http_tls   # noqa: B018  (a property that checks)
    assert [item.path for item in raised.value.violations] == ["http_tls_key"]
