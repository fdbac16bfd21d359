"""round.json: what the last `recmesh up` asked for; a supervisor goes on from it (owner only: secrets)."""

import json
from dataclasses import asdict, dataclass
from typing import Any

from recmesh.cli.mesh.component import PUBLIC_KEY, Component
from recmesh.cli.mesh.home import Home, write_private


@dataclass(frozen=True, slots=True)
class Round:
    """Settings in force."""

    id: str
    """New with every change of settings and every start of a supervisor."""
    config: dict[str, Any]
    """As in config.toml, with what the command line and the environment said over it."""
    ports: dict[str, int]
    components: list[Component]
    """What shall run."""
    told: dict[str, str]
    """The part that came from the command line or the environment; kept until `down`."""

    @property
    def gateway_key(self) -> str:
        """The key that gateway lets do everything; empty where it asks nobody for one."""
        gateway = next((item for item in self.components if item.name == "gateway"), None)
        return gateway.env.get(PUBLIC_KEY, "") if gateway else ""

    def save(self, home: Home) -> None:
        """Durable before the supervisor hears of it."""
        write_private(home.run / "round.json", json.dumps(asdict(self)))


def load(home: Home) -> Round | None:
    """The last round; None when there was none."""
    try:
        values = json.loads((home.run / "round.json").read_bytes())
        components = [Component.load(item) for item in values["components"]]
        return Round(**(values | {"components": components}))
    except (OSError, ValueError, TypeError, KeyError):
        return None
