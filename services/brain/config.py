"""What the environment may set, with prefix `RECMESH_`."""

from pydantic import Field, SecretStr

from recmesh.runtime.settings import ServiceSettings


class BrainSettings(ServiceSettings):
    """Where the config DB is, and how plans are made."""

    database_url: SecretStr = SecretStr("")
    """`sqlite:///file` or `postgresql://user:password@host/name`; empty: a file in the data folder."""
    warm_start_jobs: int = Field(default=5, ge=1)
    """k: how many similar jobs a plan is made from."""
    warm_start_weight: float = Field(default=0.5, gt=0, le=1)
    """μ: weight of the more similar job against all less similar ones."""
    warm_start_likeness: float = Field(default=0.5, ge=0, le=1)
    """s_min: jobs less alike than this are not similar."""
    profiles_per_job: int = Field(default=2000, ge=1)
    profile_days: float = Field(default=30.0, gt=0)
    """Profiles and plans older than this are forgotten; histories stay."""

    @property
    def database(self) -> str:
        """The database's address; it may hold a password."""
        return self.database_url.get_secret_value() or f"sqlite:///{self.data_dir.absolute()}/db/brain.sqlite"
