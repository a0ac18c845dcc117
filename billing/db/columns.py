"""Column types of ours."""

from decimal import Decimal

from sqlalchemy import Dialect, Numeric
from sqlalchemy.types import TypeDecorator


class FemtoNumeric(TypeDecorator[int]):
    """``NUMERIC(38,0)`` in Postgres, ``int`` in Python: money and rates in femto-units."""

    impl = Numeric(38, 0)
    cache_ok = True

    def process_bind_param(self, value: int | None, dialect: Dialect) -> Decimal | None:  # noqa: ARG002  SQLAlchemy's
        """Exact: the constructor of Decimal does not round."""
        return None if value is None else Decimal(value)

    def process_result_value(self, value: Decimal | None, dialect: Dialect) -> int | None:  # noqa: ARG002  likewise
        """Exact: the column has no fraction."""
        return None if value is None else int(value)
