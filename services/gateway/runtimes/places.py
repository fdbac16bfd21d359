"""Where processes of one kind of model are started, if not as children of the gateway."""

from typing import Protocol

from services.gateway.runtimes.process import Start


class Places(Protocol):
    """Of the processes that run the models of one lane."""

    def starter(self, kind: str) -> Start:
        """How one is started; `kind`: `cn` or `hn`."""
        ...

    def left(self, kind: str) -> int:
        """How many run that nobody uses: of a gateway before this one."""
        ...
