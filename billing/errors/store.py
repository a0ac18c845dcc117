"""What is wrong with the database."""

from dataclasses import dataclass

from billing.errors.base import BillingError, Faulty


@dataclass(eq=False)
class RolesMissing(BillingError):
    """The database lacks the roles that transactions act as, and we may not make them; ``sql`` does."""

    sql: str

    def __str__(self) -> str:
        return (
            f"Kvitto's roles are missing and this account may not make them; run as a superuser: {self.sql}"
        )


class StoreUnavailable(Faulty):
    """Postgres cannot be reached, or could not serve in time. Whether a commit arrived is not known."""

    what = "database not available"


@dataclass(eq=False)
class StoreRefused(BillingError):
    """Postgres refused a row; ``constraint`` names the rule when it has a name."""

    constraint: str | None
    reason: str

    def __str__(self) -> str:
        return f"database refused the row: {self.reason}"
