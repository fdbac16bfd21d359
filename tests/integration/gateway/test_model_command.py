"""`recmesh model register`, `load`, `unload` as a user types them, against a real gateway."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

from recmesh.cli.exit_codes import ExitCode
from tests.integration.gateway.test_service import TOKEN, Service, predictions, running
from tests.support.oip_models import torch_model
from tests.support.servers import nats_server

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    root = tmp_path_factory.mktemp("gateway")
    for version, bias in (("1", 0.0), ("2", 10.0)):
        torch_model(root / "storage/models/tiny" / version, bias=bias)
    with nats_server(root / "nats") as nats, running(Service(root, nats)) as made:
        yield made


def recmesh(service: Service, *arguments: str) -> tuple[int, str, str]:
    """Exit code, stdout, stderr."""
    env = {"PATH": os.environ["PATH"], "RECMESH_URL": service.url, "RECMESH_API_KEY": TOKEN}
    command = [sys.executable, "-m", "recmesh.cli.main", "model", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=env, timeout=240)
    return done.returncode, done.stdout, done.stderr


@pytest.mark.long
def test_versions_are_registered_loaded_and_unloaded_by_command(service: Service) -> None:
    code, said, wrong = recmesh(service, "register", "tiny", "models/tiny/1")
    assert (code, said) == (0, "tiny version 1 serves.\n"), wrong
    assert predictions(service) == [3.5]
    code, said, wrong = recmesh(service, "register", "tiny", "models/tiny/2", "--no-load", "-o", "json")
    told = json.loads(said)
    assert (code, told["version"], told["state"]) == (0, "2", "registered"), wrong
    assert predictions(service) == [3.5]
    assert recmesh(service, "load", "tiny")[:2] == (0, "tiny version 2 serves.\n")
    assert predictions(service) == [13.5]
    assert recmesh(service, "load", "tiny", "--version", "1")[:2] == (0, "tiny version 1 serves.\n")
    assert predictions(service) == [3.5]
    assert recmesh(service, "unload", "tiny", "--version", "2")[:2] == (0, "Served no more: tiny: none.\n")
    assert recmesh(service, "unload", "tiny")[:2] == (0, "Served no more: tiny version 1.\n")


def test_what_cannot_be_done_ends_with_the_reason(service: Service) -> None:
    code, _, wrong = recmesh(service, "load", "nothing")
    assert code == ExitCode.NOT_FOUND and "nothing" in wrong
    code, _, wrong = recmesh(service, "register", "tiny", "models/none/1")
    assert code == ExitCode.NOT_FOUND and "models/none/1 is not there" in wrong
    code, _, wrong = recmesh(service, "register", "a b", "models/tiny/1")
    assert code == ExitCode.USAGE and "name" in wrong
