"""Accelerators, from a driver's files."""

from pathlib import Path

import pytest

from recmesh.runtime.errors import InvalidArgument
from services.jobmaster.cluster.accelerators import accelerators
from services.jobmaster.cluster.local import LocalController
from services.jobmaster.config import JobmasterSettings
from services.jobmaster.peers.brain import _free

CARD = """Model: \t\t {model}
IRQ:   \t\t 229
GPU UUID: \t GPU-4cf8db2d-06c0-7d70-1a51-e59b25b2c16c
Video BIOS: \t 92.00.36.00.01
Bus Location: \t {bus}
Device Minor: \t {minor}
GPU Excluded:\t No
"""


def machine(folder: Path, *models: str, visible: int) -> tuple[Path, Path]:
    """A driver that lists those cards, of which the first were given to this container."""
    driver, devices = folder / "driver", folder / "dev"
    devices.mkdir()
    for minor, model in enumerate(models):
        bus = f"0000:{minor:02x}:00.0"
        (driver / "gpus" / bus).mkdir(parents=True)
        (driver / "gpus" / bus / "information").write_text(CARD.format(model=model, bus=bus, minor=minor))
        if minor < visible:
            (devices / f"nvidia{minor}").touch()
    return driver, devices


def test_cards_are_counted_by_model_and_together(tmp_path: Path) -> None:
    models = ("NVIDIA A100-SXM4-80GB", "NVIDIA A100-SXM4-80GB", "Tesla T4")
    assert accelerators(*machine(tmp_path, *models, visible=3)) == {"gpu": 3.0, "a100-sxm4-80gb": 2.0, "tesla-t4": 1.0}


def test_cards_that_a_container_was_not_given_do_not_count(tmp_path: Path) -> None:
    assert accelerators(*machine(tmp_path, "NVIDIA H200", "NVIDIA H200", visible=1)) == {"gpu": 1.0, "h200": 1.0}


def test_a_machine_without_a_driver_has_none_and_says_so(tmp_path: Path) -> None:
    assert accelerators(tmp_path / "none", tmp_path) == {"gpu": 0.0}


def test_a_card_whose_file_says_nothing_is_one_of_no_kind(tmp_path: Path) -> None:
    driver, devices = machine(tmp_path, "NVIDIA H200", visible=1)
    (driver / "gpus" / "0000:00:00.0" / "information").write_text("?")
    assert accelerators(driver, devices) == {"gpu": 1.0}


@pytest.mark.asyncio
async def test_what_a_machine_has_is_told_to_brain_as_free(tmp_path: Path) -> None:
    local = LocalController(tmp_path, cores=4.0, gpus={"gpu": 2.0, "h200": 2.0})
    told = _free(await local.capacity())
    assert told["free_cpu"] == 4.0 and told["free_gpus"] == {"gpu": 2.0, "h200": 2.0}
    assert _free(await LocalController(tmp_path, cores=4.0).capacity())["free_gpus"] == {}


def test_a_setting_names_them_and_is_checked() -> None:
    needed = {"RECMESH_DATA_DIR": "/tmp/recmesh"}
    read = JobmasterSettings.from_env(needed | {"RECMESH_ACCELERATORS": '{"a100": 4, "gpu": 4}'}, "RECMESH_")
    assert read.accelerators == {"a100": 4.0, "gpu": 4.0}
    with pytest.raises(InvalidArgument, match="RECMESH_ACCELERATORS"):
        JobmasterSettings.from_env(needed | {"RECMESH_ACCELERATORS": '{"a100": -1}'}, "RECMESH_")
