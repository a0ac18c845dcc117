"""Limits and budgets as they are kept: with an owner, an id and a date."""

from dataclasses import dataclass
from datetime import datetime

from billing.tenancy.limits import Budget, Level, Limit


@dataclass(frozen=True, slots=True)
class Owner:
    """Whose requests are counted: all of a tenant, or those of one of its projects, or of one of its keys."""

    tenant_id: str
    project_id: str | None = None
    key_id: str | None = None

    def __post_init__(self) -> None:
        assert self.project_id is None or self.key_id is None, "a key has one project: name one of the two"

    @property
    def level(self) -> Level:
        """How wide it is."""
        if self.key_id is not None:
            return "key"
        return "tenant" if self.project_id is None else "project"

    @property
    def id(self) -> str:
        """Id of the tenant, project or key."""
        return self.key_id or self.project_id or self.tenant_id


@dataclass(frozen=True, slots=True)
class KeptLimit:
    """A limit in force. A tenant has one at most for each owner, measure, model and ``per_user``."""

    id: str
    owner: Owner
    created_at: datetime
    limit: Limit


@dataclass(frozen=True, slots=True)
class KeptBudget:
    """A budget in force. There may be several of one period: a soft one below a hard one, say."""

    owner: Owner
    created_at: datetime
    budget: Budget

    @property
    def id(self) -> str:
        """The budget's own."""
        return self.budget.id
