"""What the environment may set, with prefix `RECMESH_`."""

from pydantic import Field, SecretStr

from recmesh.runtime.settings import ServiceSettings


class ForecasterSettings(ServiceSettings):
    """Where series are kept, and for how long."""

    database_url: SecretStr = SecretStr("")
    """`sqlite:///file` or `postgresql://user:password@host/name`; empty: a file in the data folder."""
    rate_days: float = Field(default=60.0, gt=0)
    """Rates older than this are forgotten."""
    rate_points: int = Field(default=100_000, ge=100)
    """Newest values kept of each series."""
    rate_series: int = Field(default=10_000, ge=1)
    """Series beyond this are refused."""
    forecast_watch: tuple[str, ...] = ()
    """Series (JSON list) whose forecast is made anew every `forecast_every_s`, with an event."""
    forecast_every_s: float = Field(default=300.0, gt=0)
    forecast_horizon: int = Field(default=24, ge=1, le=10_000)
    """Steps of a watched forecast."""
    forecast_models: tuple[str, ...] = ()
    """Models (JSON list) that may answer; empty: all that are installed."""
    forecast_processes: int = Field(default=1, ge=1, le=64)
    """Processes that answer; each series has its own among them."""
    forecast_dear_share: float = Field(default=0.1, ge=0.0, le=1.0)
    """Share of one core that is spent on trying dear models; 0: they are never tried."""

    @property
    def database(self) -> str:
        """The database's address; it may hold a password."""
        return self.database_url.get_secret_value() or f"sqlite:///{self.data_dir.absolute()}/db/forecaster.sqlite"
