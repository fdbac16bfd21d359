"""A model that a CN has loaded: what runs here, the HNs that have the rest, and whether it follows a job."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from recmesh.serving import halves
from recmesh.serving.admission.domain.hedging import HedgeRules
from recmesh.serving.cn import model as models
from recmesh.serving.cn.fleet import Fleet
from recmesh.serving.cn.flights import Flight
from recmesh.serving.cn.following import Following
from recmesh.serving.cn.halves import Members
from recmesh.serving.cn.line import Turn
from recmesh.serving.cn.model import CnModel
from recmesh.serving.cn.peers import Hns
from recmesh.serving.settings import ServingSettings
from recmesh.serving.transport.endpoints import Endpoint


@dataclass(frozen=True, slots=True)
class Loaded:
    """A model, and the HNs that have its dense half."""

    model: CnModel
    fleet: Fleet
    is_usual: bool
    """They are those of all models that name none."""
    following: Following | None = None
    """Of a model that follows its job."""
    turn: Turn[Flight] = field(default_factory=Turn)

    @property
    def members(self) -> Members:
        """Who is told which HNs have the dense half."""
        return self.following or self.fleet

    def use(self, names: Sequence[str]) -> list[str]:
        """These are its HNs from now on; answers with those that must be told of it."""
        if self.following is not None:
            return self.following.use(names)
        before = set(self.fleet.names)
        self.fleet.use(names)
        return [name for name in names if name not in before]

    def begin(self) -> None:
        """It is warm."""
        if self.following is not None:
            self.following.begin()

    def close(self) -> None:
        """It serves no more."""
        if self.following is not None:
            self.following.close()


def opened(
    key: str, folder: Path, settings: ServingSettings, hns: Hns, *, threads: int, hedging: HedgeRules | None,
    log: Callable[[str], None], turn: Turn[Flight],
) -> Loaded:  # fmt: skip
    """Read what runs here. DataLoss: files are not those that they should be."""
    names = hns.know([Endpoint.parse(each) for each in settings.hns]) if settings.hns else hns.usual
    fleet, is_usual = Fleet(names, hedging=hedging), not settings.hns
    try:
        if not halves.is_following(folder):
            return Loaded(models.load(key, folder, threads=threads), fleet, is_usual, turn=turn)
        model, sparse = models.load_following(key, folder, settings, log=log)
    except BaseException:
        if not is_usual:
            hns.forget(names)
        raise
    return Loaded(model, fleet, is_usual, Following(key, model.dense.sha256, sparse, fleet, hns, log=log), turn)
