"""What a tenant has left: a projection of the ledger."""

from dataclasses import dataclass

from billing.money import Femto


@dataclass(frozen=True, slots=True)
class Balance:
    """``total = granted + topped_up``; ``topped_up`` below zero is debt. Version 0: no transaction yet."""

    granted: Femto
    topped_up: Femto
    currency: str
    version: int

    @property
    def total(self) -> Femto:
        """What can be spent."""
        return Femto(self.granted + self.topped_up)


@dataclass(frozen=True, slots=True)
class BalanceVersion:
    """A tenant's total after a commit. Of two, the higher version is the later truth."""

    tenant_id: str
    balance: Femto
    version: int
