"""Controllers of other packages."""

from pathlib import Path

import pytest

from recmesh.runtime.errors import InvalidArgument
from recmesh.runtime.variables import unknown
from services.jobmaster.__main__ import cluster
from services.jobmaster.cluster.plugged import Place, options, plugged
from services.jobmaster.config import JobmasterSettings
from tests.support.installed import installed
from tests.support.niced import Niced

POINTS = {
    "niced": "tests.support.niced:Niced", "half": "tests.support.niced:NoController",
    "broken": "tests.support.niced:broken", "away": "tests.support.nowhere:Controller",
}


@pytest.mark.asyncio
async def test_a_controller_is_chosen_by_its_name(tmp_path: Path) -> None:
    env = {"RECMESH_JOBMASTER_CLUSTER": "niced", "RECMESH_DATA_DIR": str(tmp_path), "RECMESH_CONTROLLER_LEVEL": "3"}
    with installed(tmp_path, POINTS):
        made = await cluster(JobmasterSettings.from_env(env, "RECMESH_"), None, None, options(env))
    assert isinstance(made, Niced)
    assert made._command[:3] == ("nice", "-n", "3")
    assert not unknown(env)


@pytest.mark.parametrize(("name", "words"), [
    ("slurm", "'slurm' is none of away, broken, half, kubernetes, local, niced, several, yarn"),
    ("half", "it has no refusals, find_again, stop,"),
    ("broken", "'broken' cannot be made: KeyError(\"queue, of ['level']\")"),
    ("away", "away (tests.support.nowhere:Controller) of recmesh.controllers cannot be loaded: ModuleNotFoundError"),
])  # fmt: skip
def test_one_that_cannot_be_had_is_refused_with_the_reason(tmp_path: Path, name: str, words: str) -> None:
    with installed(tmp_path, POINTS), pytest.raises(InvalidArgument) as raised:
        plugged(name, Place(tmp_path, "s3://models", {"level": "3"}))
    violation, = raised.value.violations
    assert violation.path == "RECMESH_JOBMASTER_CLUSTER"
    assert words in violation.reason
