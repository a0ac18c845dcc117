"""Budgets as the scripts count them: their keys."""

from billing.tenancy.limits import Budget


def name_of(budget: Budget) -> str:
    """The end of its key in Valkey. A budget of another period or zone is another one, and read anew."""
    return f"budget:{budget.id}/{budget.period}/{budget.tz}"
