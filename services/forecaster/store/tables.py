"""The schema as SQLAlchemy sees it; `revisions/` is how a database gets there, and a test compares them."""

from sqlalchemy import BigInteger, Column, Float, ForeignKey, Index, Integer, MetaData, String, Table

VERSION_TABLE = "forecaster_schema"
metadata = MetaData()

series = Table(
    "forecaster_series", metadata,
    Column("id", BigInteger().with_variant(Integer, "sqlite"), primary_key=True, autoincrement=True),
    Column("name", String(200), nullable=False),
    Column("step_s", Float(53), nullable=False),
    Index("forecaster_series_name", "name", "step_s", unique=True),
)  # fmt: skip

rates = Table(
    "forecaster_rates", metadata,
    Column("series_id", BigInteger().with_variant(Integer, "sqlite"),
           ForeignKey("forecaster_series.id", ondelete="CASCADE"), primary_key=True),
    Column("at", Float(53), primary_key=True),
    Column("value", Float(53), nullable=False),
    Index("forecaster_rates_at", "at"),
)  # fmt: skip
