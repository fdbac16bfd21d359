"""Series and their rates."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Make both tables."""
    key = sa.BigInteger().with_variant(sa.Integer, "sqlite")
    op.create_table(
        "forecaster_series",
        sa.Column("id", key, primary_key=True, autoincrement=True),
        sa.Column("name", sa.String(200), nullable=False),
        sa.Column("step_s", sa.Float(53), nullable=False),
    )
    op.create_index("forecaster_series_name", "forecaster_series", ["name", "step_s"], unique=True)
    op.create_table(
        "forecaster_rates",
        sa.Column("series_id", key, sa.ForeignKey("forecaster_series.id", ondelete="CASCADE"), primary_key=True),
        sa.Column("at", sa.Float(53), primary_key=True),
        sa.Column("value", sa.Float(53), nullable=False),
    )
    op.create_index("forecaster_rates_at", "forecaster_rates", ["at"])


def downgrade() -> None:
    """Drop them."""
    op.drop_table("forecaster_rates")
    op.drop_table("forecaster_series")
