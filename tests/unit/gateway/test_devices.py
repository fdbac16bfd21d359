"""Accelerators of processes: what the driver lists, who has what, and why somebody gets none."""

from pathlib import Path

import pytest

from recmesh.runtime.errors import FailedPrecondition, InvalidArgument, ResourceExhausted
from recmesh.serving.settings import ServingSettings
from services.gateway.domain.devices import NOTHING, VARIABLE, Ledger, Wish, listed, visible
from services.gateway.runtimes.devices import Devices

WHOLE = """\
GPU 0: NVIDIA A100-SXM4-80GB (UUID: GPU-11111111-aaaa-bbbb-cccc-000000000000)
GPU 1: NVIDIA A100-SXM4-80GB (UUID: GPU-22222222-aaaa-bbbb-cccc-000000000000)
"""
SLICED = """\
GPU 0: NVIDIA A100-SXM4-80GB (UUID: GPU-11111111-aaaa-bbbb-cccc-000000000000)
  MIG 3g.40gb     Device  0: (UUID: MIG-31111111-aaaa-bbbb-cccc-000000000000)
  MIG 2g.20gb     Device  1: (UUID: MIG-21111111-aaaa-bbbb-cccc-000000000000)
  MIG 2g.20gb     Device  2: (UUID: MIG-22111111-aaaa-bbbb-cccc-000000000000)
GPU 1: NVIDIA H200 (UUID: GPU-22222222-aaaa-bbbb-cccc-000000000000)
"""
OLD_DRIVER = """\
GPU 0: A100-SXM4-40GB (UUID: GPU-b8ea3855-276c-c9cb-b366-c6fa655957c5)
  MIG 1g.5gb Device 0: (UUID: MIG-GPU-b8ea3855-276c-c9cb-b366-c6fa655957c5/1/0)
"""


def test_a_card_that_is_cut_into_slices_is_none_itself() -> None:
    assert [(each.kind, each.card) for each in listed(WHOLE)] == [("gpu", 0), ("gpu", 1)]
    found = listed(SLICED)
    assert [(each.kind, each.card) for each in found] == [("3g.40gb", 0), ("2g.20gb", 0), ("2g.20gb", 0), ("gpu", 1)]
    assert found[1].uuid == "MIG-21111111-aaaa-bbbb-cccc-000000000000" and found[3].name == "NVIDIA H200"
    assert [each.uuid for each in listed(OLD_DRIVER)] == ["MIG-GPU-b8ea3855-276c-c9cb-b366-c6fa655957c5/1/0"]
    assert listed("NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.\n") == ()


def test_no_device_has_two_owners_and_what_is_given_back_is_free() -> None:
    ledger = Ledger(listed(SLICED))
    first, second = ledger.take(Wish(1, "2g.20gb")), ledger.take(Wish(1, "2g.20gb"))
    assert first.environment == {VARIABLE: "MIG-21111111-aaaa-bbbb-cccc-000000000000"}
    assert second.environment == {VARIABLE: "MIG-22111111-aaaa-bbbb-cccc-000000000000"}
    assert first.label == "2g.20gb of GPU 0"
    with pytest.raises(ResourceExhausted, match="2 are taken") as full:
        ledger.take(Wish(1, "2g.20gb"))
    assert full.value.reason == "NO_DEVICE_FREE"
    ledger.give_back(first)
    assert ledger.take(Wish(1, "2g.20gb")) == first
    assert ledger.take(Wish(1)).label == "GPU 1", "slices do not count as GPUs"


def test_several_gpus_are_one_grant_or_none() -> None:
    ledger = Ledger(listed(WHOLE))
    with pytest.raises(FailedPrecondition):
        ledger.take(Wish(3))
    assert ledger.take(Wish(2)).environment[VARIABLE].count("GPU-") == 2
    assert ledger.free == ()


@pytest.mark.parametrize(
    ("text", "wish", "has", "path"),
    [
        ("", Wish(1), "no accelerator", "serving.resources.hn.gpu"),
        (WHOLE, Wish(1, "2g.20gb"), "2 gpu", "serving.resources.hn.mig"),
        (SLICED, Wish(1, "1g.10gb"), "2 2g.20gb, 1 3g.40gb, 1 gpu", "serving.resources.hn.mig"),
    ],
)
def test_what_the_machine_has_not_is_refused_by_field(text: str, wish: Wish, has: str, path: str) -> None:
    with pytest.raises(FailedPrecondition) as refused:
        Ledger(listed(text)).take(wish)
    assert refused.value.reason == "NO_SUCH_DEVICE" and has in refused.value.message
    assert [each.path for each in refused.value.violations] == [path]


def test_a_cpu_will_do_only_where_it_may() -> None:
    grant = Ledger(()).take(Wish(1, or_cpu=True))
    assert grant.environment == {VARIABLE: ""} and grant.label.startswith("CPU")
    assert Ledger(()).take(Wish()) is NOTHING and not NOTHING.environment


@pytest.mark.parametrize(
    ("variable", "kinds"),
    [
        (None, ["3g.40gb", "2g.20gb", "2g.20gb", "gpu"]),
        ("", []),
        ("1", ["gpu"]),
        ("GPU-2222", ["gpu"]),
        ("MIG-31111111-aaaa-bbbb-cccc-000000000000,1", ["3g.40gb", "gpu"]),
        ("1,-1,GPU-2222", ["gpu"]),
        ("MIG-2", []),
    ],
)
def test_what_the_gateway_may_not_see_it_gives_to_nobody(variable: str | None, kinds: list[str]) -> None:
    assert [each.kind for each in visible(listed(SLICED), variable)] == kinds


@pytest.mark.parametrize(("script", "has"), [(f"cat <<'END'\n{WHOLE}END", 2), (f"echo '{WHOLE}'; exit 9", 0)])
def test_the_driver_is_asked_by_its_tool(tmp_path: Path, script: str, has: int) -> None:
    tool = tmp_path / "nvidia-smi"
    tool.write_text(f"#!/bin/sh\n[ \"$1\" = -L ] || exit 1\n{script}\n")
    tool.chmod(0o755)
    devices = Devices({"PATH": f"{tmp_path}:/bin:/usr/bin"})
    devices.look()
    if not has:
        with pytest.raises(FailedPrecondition):
            devices.take(Wish(1))
        return
    assert devices.take(Wish(has)).environment[VARIABLE].count("GPU-") == has
    without = Devices({"PATH": str(tmp_path / "nowhere")})
    without.look()
    with pytest.raises(FailedPrecondition, match="no accelerator"):
        without.take(Wish(1))


@pytest.mark.parametrize(
    ("hn", "path", "why"),
    [
        ({"mig": "2g.20gb"}, "serving.resources.hn", "gpu must be at least 1"),
        ({"gpu": 2, "mig": "2g.20gb"}, "serving.resources.hn", "one MIG slice"),
        ({"gpu": 1, "mig": "half"}, "serving.resources.hn.mig", "'half' is no profile"),
        ({"gpu": -1}, "serving.resources.hn.gpu", "greater than or equal to 0"),
    ],
)
def test_wrong_resources_are_refused_by_field(hn: dict[str, object], path: str, why: str) -> None:
    with pytest.raises(InvalidArgument) as refused:
        ServingSettings.parse({"resources": {"hn": hn}})
    assert [each.path for each in refused.value.violations] == [path] and why in str(refused.value)
    assert ServingSettings.parse({"resources": {"hn": {"gpu": 1, "mig": "1g.10gb+me"}}}).has_own_processes
