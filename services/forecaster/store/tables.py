"""The schema as SQLAlchemy sees it; `revisions/` is how a database gets there, and a test compares them."""

from sqlalchemy import BigInteger, Column, Float, ForeignKey, Index, Integer, MetaData, String, Table

VERSION_TABLE = "forecaster_schema"
metadata = MetaData()

_ID = BigInteger().with_variant(Integer, "sqlite")

series = Table(
    "forecaster_series", metadata,
    Column("id", _ID, primary_key=True, autoincrement=True),
    Column("name", String(200), nullable=False),
    Column("step_s", Float(53), nullable=False),
    Index("forecaster_series_name", "name", "step_s", unique=True),
)  # fmt: skip

rates = Table(
    "forecaster_rates", metadata,
    Column("series_id", _ID, ForeignKey("forecaster_series.id", ondelete="CASCADE"), primary_key=True),
    Column("at", Float(53), primary_key=True),
    Column("value", Float(53), nullable=False),
    Column("step_s", Float(53), nullable=False, server_default="0"),
    Column("steps", Integer, nullable=False, server_default="1"),
    Index("forecaster_rates_at", "at"),
)  # fmt: skip
"""The mean over [at, at + step_s) of `steps` values of the series' own step."""

coarse = Table(
    "forecaster_coarse", metadata,
    Column("series_id", _ID, ForeignKey("forecaster_series.id", ondelete="CASCADE"), primary_key=True),
    Column("step_s", Float(53), primary_key=True),
    Column("until", Float(53), nullable=False),
)  # fmt: skip
"""How far a series' past is on this step already; what is put before it takes the mark back."""

promises = Table(
    "forecaster_promises", metadata,
    Column("series_id", _ID, ForeignKey("forecaster_series.id", ondelete="CASCADE"), primary_key=True),
    Column("step_s", Float(53), primary_key=True),
    Column("lead", Integer, primary_key=True),
    Column("at", Float(53), primary_key=True),
    Column("made", Float(53), nullable=False),
    Column("mean", Float(53), nullable=False),
    Column("low", Float(53), nullable=False),
    Column("high", Float(53), nullable=False),
    Column("level", Float(53), nullable=False),
    Column("model", String(200), nullable=False),
    Column("actual", Float(53)),
)  # fmt: skip
"""Steps of forecasts; `actual` is null until the truth has come."""
