"""What a tenant has left: a projection of the ledger."""

from dataclasses import dataclass
from typing import Literal

from billing.money import ZERO, Femto


@dataclass(frozen=True, slots=True)
class BillingTerms:
    """When a tenant pays: before it uses (prepaid), or after, up to a limit that it may owe (postpaid)."""

    mode: Literal["prepaid", "postpaid"] = "prepaid"
    credit_limit: Femto = ZERO

    def spendable(self, granted: Femto, topped_up: Femto, receivable: Femto) -> Femto:
        """What admission may hold. Credit of a postpaid tenant waits for its invoice; debt counts in both."""
        if self.mode == "prepaid":
            return Femto(granted + topped_up)
        return Femto(self.credit_limit + receivable + min(0, topped_up))


PREPAID = BillingTerms()


@dataclass(frozen=True, slots=True)
class Balance:
    """``topped_up`` below zero is debt, ``receivable`` below zero what is to be invoiced.

    Version 0: no transaction yet.
    """

    granted: Femto
    topped_up: Femto
    receivable: Femto
    currency: str
    version: int
    terms: BillingTerms = PREPAID

    @property
    def total(self) -> Femto:
        """Credit less what is owed."""
        return Femto(self.granted + self.topped_up + self.receivable)

    @property
    def spendable(self) -> Femto:
        """What admission may hold."""
        return self.terms.spendable(self.granted, self.topped_up, self.receivable)


@dataclass(frozen=True, slots=True)
class BalanceVersion:
    """What a tenant can spend after a commit. Of two, the higher version is the later truth."""

    tenant_id: str
    balance: Femto
    version: int
