"""What the environment may set, with prefix `RECMESH_`."""

from pathlib import Path

from pydantic import Field, SecretStr

from recmesh.runtime.errors import InvalidArgument, Violation
from recmesh.runtime.loopback import is_loopback
from recmesh.runtime.settings import ServiceSettings
from recmesh.runtime.tls import Tls


class ForecasterSettings(ServiceSettings):
    """Where series are kept, and for how long."""

    database_url: SecretStr = SecretStr("")
    """`sqlite:///file` or `postgresql://user:password@host/name`; empty: a file in the data folder."""
    rate_days: float = Field(default=1095.0, gt=0)
    """Rates older than this are forgotten."""
    rate_idle_days: float = Field(default=60.0, gt=0)
    """Series of which nothing was heard for so long are forgotten as a whole: those of jobs that ended, most of all."""
    rate_tiers: tuple[tuple[float, float], ...] = ((2, 60), (15, 600), (90, 3600))
    """[days, seconds] pairs (JSON): rates older than so many days are kept as means over so many seconds."""
    rate_points: int = Field(default=100_000, ge=100)
    """Newest rows kept of each series, a mean of a coarser step being one."""
    rate_series: int = Field(default=10_000, ge=1)
    """Series beyond this are refused."""
    rate_season_s: float = Field(default=0.0, ge=0, le=30 * 86_400)
    """What rates repeat after, where who asks does not say: of series whose step divides it. 0: a week, else a day."""
    forecast_watch: tuple[str, ...] = ()
    """Series (JSON list; `*` and `?` for any characters) that are forecast every `forecast_every_s`: an event, gauges
    and past errors of each. Those that a scaler asks for are watched, too."""
    forecast_every_s: float = Field(default=300.0, gt=0)
    forecast_horizon: int = Field(default=24, ge=1, le=10_000)
    """Steps of a watched forecast at least; as many as `forecast_shown_s` needs."""
    forecast_shown_s: tuple[float, ...] = (60.0, 300.0, 900.0, 3600.0)
    """How far ahead the gauges of watched series look (JSON list), as far as the forecast goes."""
    forecast_models: tuple[str, ...] = ()
    """Models (JSON list) that may answer; empty: all that are installed."""
    forecast_processes: int = Field(default=1, ge=1, le=64)
    """Processes that answer; each series has its own among them."""
    forecast_dear_share: float = Field(default=0.1, ge=0.0, le=1.0)
    """Share of one core that is spent on trying dear models; 0: they are never tried."""
    keda_address: str = ""
    """host:port of KEDA's external scaler; empty: none."""
    keda_tls_cert: Path | None = None
    keda_tls_key: Path | None = None
    keda_tls_ca: Path | None = None
    """Whose client certificates are let in. Without these three the mesh's own are used."""
    keda_insecure: bool = False
    """Let everybody in who reaches the address: something else (a service mesh, a network policy) keeps others out."""
    keda_cache_s: float = Field(default=30.0, gt=0)
    """An ask is forecast again after so long, however often it comes."""
    keda_streams: int = Field(default=1_000, ge=1)
    """Open at once; more are refused."""

    @property
    def database(self) -> str:
        """The database's address; it may hold a password."""
        return self.database_url.get_secret_value() or f"sqlite:///{self.data_dir.absolute()}/db/forecaster.sqlite"

    @property
    def keda_tls(self) -> Tls | None:
        """Certificates of KEDA's listener.

        KEDA cannot send the mesh's token, so its certificate is what lets it in: InvalidArgument for an address that
        others can reach without one.
        """
        own = (self.keda_tls_cert, self.keda_tls_key, self.keda_tls_ca)
        tls = Tls(*own) if any(own) else self.tls
        if self.keda_address and not (self.keda_insecure or is_loopback(self.keda_address)) and not (tls and tls.ca):
            reason = (
                "can be reached by others, and KEDA sends no token: set RECMESH_KEDA_TLS_CERT, _KEY and _CA, so that "
                "only its client certificate is let in, or RECMESH_KEDA_INSECURE=true where something else does that"
            )
            raise InvalidArgument(
                "the address of the external scaler is open", reason="BAD_CONFIG",
                violations=[Violation("RECMESH_KEDA_ADDRESS", reason)],
            )
        return tls
