"""What a gateway does about versions of a model that another one has loaded, loaded anew, unloaded or forgotten.

The registry says what serves. Whoever is told to load a version tries it alone; when it is `ready`, the others load it,
too, and keep what it replaces until they have it. Pure: the decision is made on one reading of the registry.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from services.gateway.domain.models import ON_REQUEST, ModelVersion, State
from services.gateway.domain.traffic import Traffic, kept


@dataclass(frozen=True, slots=True)
class Steps:
    """What brings one gateway to where the registry is, of one model."""

    order: tuple[str, ...]
    """Versions that should serve, loaded last comes last: it answers those who name none."""
    load: tuple[ModelVersion, ...]
    leave: tuple[str, ...]
    """Versions that nobody wants: at once."""
    replaced: tuple[str, ...]
    """Versions that leave when all that is to be loaded serves."""
    mend: tuple[str, ...]
    """Versions that serve here, while another gateway that could not load them has said that they failed."""
    loading: tuple[ModelVersion, ...]
    """Versions that another gateway loads, if it is still there."""


def steps(
    records: Sequence[ModelVersion], traffic: Traffic, here: Mapping[str, ModelVersion], *, moved: Collection[str] = ()
) -> Steps:
    """`here`: what this gateway serves, by version, as it knew it; `moved`: versions that belong into another model
    server by now."""
    known = {record.version: record for record in records}
    served = sorted((each for each in records if each.state is State.READY), key=lambda each: each.loaded)
    stay = kept(traffic, [record.version for record in served])
    wanted = [record for record in served if record.version in stay]
    gone = [version for version in here if version not in {record.version for record in wanted}]
    leave = [version for version in gone if _unwanted(here[version], known.get(version))]
    replaced = [
        version for version in gone if version not in leave and known[version].state in (State.UNLOADED, State.READY)
    ]
    return Steps(
        tuple(record.version for record in wanted),
        tuple(record for record in wanted if record.version in moved or _is_new(record, here.get(record.version))),
        tuple(leave),
        tuple(replaced),
        tuple(version for version in gone if version not in leave and known[version].state is State.FAILED),
        tuple(record for record in records if record.state is State.LOADING and record.version not in here),
    )


def _is_new(record: ModelVersion, here: ModelVersion | None) -> bool:
    """Registered anew, or loaded anew because its files have changed."""
    return here is None or (here.created, here.loaded) != (record.created, record.loaded)


def _unwanted(here: ModelVersion, record: ModelVersion | None) -> bool:
    """It was forgotten, is another model by now, or somebody asked for it to be unloaded."""
    if record is None or record.created != here.created or record.state is State.REGISTERED:
        return True
    return record.state is State.UNLOADED and record.reason == ON_REQUEST
