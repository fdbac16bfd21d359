"""Forecasts that are kept until the truth has come."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None
works_from = "0002"


def upgrade() -> None:
    """One table."""
    key = sa.BigInteger().with_variant(sa.Integer, "sqlite")
    op.create_table(
        "forecaster_promises",
        sa.Column("series_id", key, sa.ForeignKey("forecaster_series.id", ondelete="CASCADE"), primary_key=True),
        sa.Column("step_s", sa.Float(53), primary_key=True),
        sa.Column("lead", sa.Integer, primary_key=True),
        sa.Column("at", sa.Float(53), primary_key=True),
        *(sa.Column(name, sa.Float(53), nullable=False) for name in ("made", "mean", "low", "high", "level")),
        sa.Column("model", sa.String(200), nullable=False),
        sa.Column("actual", sa.Float(53)),
    )


def downgrade() -> None:
    """Drop it."""
    op.drop_table("forecaster_promises")
