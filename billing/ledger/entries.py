"""Double entry: a transaction is a set of entries that sum to zero.

    credit granted      granted    +a      promotion  -a
    credit topped up    topped_up  +a      cash       -a
    charge              granted, topped_up  -c      revenue    +c
    credit expired      granted, topped_up  -r      promotion, cash  +r

``granted`` and ``topped_up`` are what we owe the tenant; ``topped_up`` below zero is what the tenant owes us.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from types import MappingProxyType
from typing import Final, Literal, NamedTuple
from uuid import UUID

from billing.money import Femto


class Account(StrEnum):
    """The tenant's two credit accounts, and ours that face them. Each is kept per tenant."""

    GRANTED = "granted"
    TOPPED_UP = "topped_up"
    REVENUE = "revenue"
    PROMOTION = "promotion"
    CASH = "cash"


CreditAccount = Literal[Account.GRANTED, Account.TOPPED_UP]

CREDIT_ACCOUNTS: Final[Mapping[str, CreditAccount]] = MappingProxyType(
    {"granted": Account.GRANTED, "topped_up": Account.TOPPED_UP}
)

SOURCE_OF: Final[Mapping[CreditAccount, Account]] = MappingProxyType(
    {Account.GRANTED: Account.PROMOTION, Account.TOPPED_UP: Account.CASH}
)


class Entry(NamedTuple):
    """One side: never zero. ``lot_id`` names the credit lot that it fills or draws on; debt has none."""

    account: Account
    amount: Femto
    lot_id: UUID | None = None


@dataclass(frozen=True, slots=True)
class Transaction:
    """A fact of the ledger. The id of a charge is its request id, and that of a credit also its lot's."""

    id: UUID
    tenant_id: str
    kind: Literal["charge", "credit", "expiry"]
    at: datetime
    entries: tuple[Entry, ...]
    actor: str | None = None
    reason: str | None = None
    idempotency_key: str | None = None

    def __post_init__(self) -> None:
        total = sum(entry.amount for entry in self.entries)
        assert total == 0, f"entries of {self.id} sum to {total}"
        assert all(entry.amount for entry in self.entries), f"{self.id} has an entry of zero"


def net(entries: Iterable[Entry]) -> Iterator[Entry]:
    """Entries on the same account and lot added up, zeros left out, in the order of first appearance."""
    sums: dict[tuple[Account, UUID | None], int] = {}
    for entry in entries:
        side = entry.account, entry.lot_id
        sums[side] = sums.get(side, 0) + entry.amount
    return (Entry(account, Femto(amount), lot) for (account, lot), amount in sums.items() if amount)
