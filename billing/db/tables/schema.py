"""What all tables share: one set of metadata with named constraints, and how an instant is kept."""

from typing import Final

from sqlalchemy import DateTime, MetaData

metadata: Final = MetaData(
    naming_convention={
        "pk": "pk_%(table_name)s",
        "fk": "fk_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "ck": "ck_%(table_name)s_%(constraint_name)s",
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
    }
)


def instant() -> DateTime:
    """``TIMESTAMPTZ``."""
    return DateTime(timezone=True)
