"""Accelerators of this machine, whole or in MIG slices, and which process has which."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from recmesh.runtime.errors import FailedPrecondition, ResourceExhausted, Violation

VARIABLE = "CUDA_VISIBLE_DEVICES"
_GPU = re.compile(r"^GPU (\d+): (.*?) \(UUID: (GPU-[\w-]+)\)\s*$")
_MIG = re.compile(r"^\s+MIG (\S+)\s+Device\s+(\d+): \(UUID: (MIG-[\w/-]+)\)\s*$")


@dataclass(frozen=True, slots=True)
class Device:
    """Something that a process can have for itself."""

    uuid: str
    """By which CUDA finds it."""
    kind: str
    """`gpu`, or a slice's profile."""
    card: int
    name: str = ""

    @property
    def label(self) -> str:
        """For people."""
        return f"GPU {self.card}" if self.kind == "gpu" else f"{self.kind} of GPU {self.card}"


def listed(text: str) -> tuple[Device, ...]:
    """The devices in what `nvidia-smi -L` prints. A card that is cut into slices is none itself: CUDA gives no process
    the whole of it (NVIDIA's MIG user guide, "CUDA Device Enumeration"). Lines that say something else are passed over.
    """
    found: list[Device] = []
    card, name = -1, ""
    for line in text.splitlines():
        if whole := _GPU.match(line):
            card, name = int(whole[1]), whole[2]
            found.append(Device(whole[3], "gpu", card, name))
        elif (cut := _MIG.match(line)) and card >= 0:
            found = [device for device in found if device.kind != "gpu" or device.card != card]
            found.append(Device(cut[3], cut[1], card, name))
    return tuple(found)


def visible(devices: Sequence[Device], variable: str | None) -> tuple[Device, ...]:
    """Those that CUDA_VISIBLE_DEVICES leaves; None: all. As in CUDA, the list ends at its first wrong entry."""
    if variable is None:
        return tuple(devices)
    found: list[Device] = []
    for entry in (part.strip() for part in variable.split(",")):
        by_number = entry.isdigit()
        same = [
            device for device in devices
            if (device.kind == "gpu" and device.card == int(entry) if by_number else device.uuid.startswith(entry))
        ]  # fmt: skip
        if not entry or len(same) != 1 or same[0] in found:
            break
        found.extend(same)
    return tuple(found)


@dataclass(frozen=True, slots=True)
class Wish:
    """What a process needs."""

    count: int = 0
    mig: str = ""
    or_cpu: bool = False

    @property
    def kind(self) -> str:
        """Of the devices."""
        return self.mig or "gpu"


@dataclass(frozen=True, slots=True)
class Grant:
    """What a process has; `environment` makes it see that and no more."""

    devices: tuple[Device, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    label: str = ""


NOTHING = Grant()
"""Of a process that asked for nothing: it sees what its parent sees."""


class Ledger:
    """Who has which device. No device has two owners."""

    def __init__(self, devices: Sequence[Device]) -> None:
        self.devices = tuple(devices)
        self._taken: set[str] = set()

    @property
    def free(self) -> tuple[Device, ...]:
        """Those that nobody has."""
        return tuple(device for device in self.devices if device.uuid not in self._taken)

    def take(self, wish: Wish) -> Grant:
        """Devices of one kind, of as few cards as come first.

        FailedPrecondition: this machine has not so many of them at all. ResourceExhausted: others have them.
        """
        if not wish.count:
            return NOTHING
        chosen = [device for device in self.free if device.kind == wish.kind][: wish.count]
        if len(chosen) == wish.count:
            self._taken.update(device.uuid for device in chosen)
            label = ", ".join(device.label for device in chosen)
            return Grant(tuple(chosen), {VARIABLE: ",".join(device.uuid for device in chosen)}, label)
        if wish.or_cpu:
            return Grant((), {VARIABLE: ""}, f"CPU: no {_words(wish)} is free")
        raise self._refusal(wish)

    def give_back(self, grant: Grant) -> None:
        """Its process has ended."""
        self._taken.difference_update(device.uuid for device in grant.devices)

    def _refusal(self, wish: Wish) -> FailedPrecondition | ResourceExhausted:
        there = [device for device in self.devices if device.kind == wish.kind]
        if len(there) < wish.count:
            kinds = sorted({device.kind for device in self.devices})
            has = ", ".join(f"{sum(d.kind == kind for d in self.devices)} {kind}" for kind in kinds) or "no accelerator"
            path = "serving.resources.hn" + (".mig" if wish.mig else ".gpu")
            why = f"{_words(wish)} is asked for, and this machine has {has}"
            return FailedPrecondition(why, reason="NO_SUCH_DEVICE", violations=[Violation(path, why)])
        return ResourceExhausted(
            f"{_words(wish)} is asked for, and of {len(there)} here {len(there) - self._free_of(wish.kind)} are taken",
            reason="NO_DEVICE_FREE",
        )

    def _free_of(self, kind: str) -> int:
        return sum(device.kind == kind for device in self.free)


def _words(wish: Wish) -> str:
    return f"{wish.count} {'MIG slice ' + wish.mig if wish.mig else 'GPU'}"
