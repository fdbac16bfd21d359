"""Models whose dense halves run in HNs of other machines: CN processes here, seen from outside as one model server."""

from collections.abc import Callable, Mapping

from recmesh.serving.settings import Scaling
from services.gateway.domain.devices import NOTHING
from services.gateway.runtimes.fleet import Fleet
from services.gateway.runtimes.group import Group
from services.gateway.runtimes.places import Places
from services.gateway.runtimes.process import Limits, Lost, ModelServer, started_here
from services.gateway.runtimes.split import CN_MODULE, first_count, queue_of


class RemoteServer(Group):
    """CNs, whose HNs `serving.hns` names.

    A CN has those load the models that load what they are told to, and again when they come back; a request goes to
    one that has its model. An HN that is gone is no reason to be down.
    """

    def __init__(
        self, framework: str, *, environment: Mapping[str, str], limits: Limits, lost: Lost,
        log: Callable[[str], None], scaling: Scaling, pods: Places | None = None,
    ) -> None:  # fmt: skip
        super().__init__(lost)

        def made(_number: int, _grant: object, lost: Lost) -> ModelServer:
            return ModelServer(
                f"{framework} CN", command=[CN_MODULE, "--framework", framework, *queue_of(limits)],
                environment=environment, limits=limits, lost=lost, log=log,
                start=started_here if pods is None else pods.starter("cn"),
            )  # fmt: skip

        cns = Fleet(
            made, part="sparse", count=first_count("cn", scaling.cn, pods=pods), take=lambda: NOTHING,
            give_back=lambda _grant: None, lost=self._none_left, log=log,
        )  # fmt: skip
        self.fleets = {"cn": cns}
