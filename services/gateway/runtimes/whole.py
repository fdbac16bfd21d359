"""Models that run whole: processes of a framework, supervised, and seen from outside as one model server."""

from collections.abc import Callable, Mapping

from recmesh.serving.settings import Scaling
from services.gateway.domain.devices import Grant
from services.gateway.runtimes.fleet import Fleet
from services.gateway.runtimes.group import Group
from services.gateway.runtimes.places import Places
from services.gateway.runtimes.process import Limits, Lost, ModelServer, started_here
from services.gateway.runtimes.split import HN_MODULE, first_count, queue_of


class WholeServer(Group):
    """HN processes that run whole models, for the gateway alone."""

    def __init__(
        self,
        framework: str,
        *,
        environment: Mapping[str, str],
        limits: Limits,
        lost: Lost,
        log: Callable[[str], None],
        scaling: Scaling,
        take: Callable[[], Grant],
        give_back: Callable[[Grant], None],
        pods: Places | None = None,
    ) -> None:
        """`pods`: where the processes are started; None: as children of this one."""
        super().__init__(lost)

        def made(_number: int, grant: Grant, lost: Lost) -> ModelServer:
            needs = ["--accelerator"] if grant.devices else []
            return ModelServer(
                framework, command=[HN_MODULE, "--framework", framework, *queue_of(limits), *needs],
                environment={**environment, **grant.environment}, limits=limits, lost=lost, log=log,
                start=started_here if pods is None else pods.starter("hn"),
            )  # fmt: skip

        hns = Fleet(
            made, part="whole", count=first_count("hn", scaling.hn, pods=pods), take=take, give_back=give_back,
            lost=self._none_left, log=log,
        )  # fmt: skip
        self.fleets = {"hn": hns}
