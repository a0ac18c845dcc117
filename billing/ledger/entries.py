"""Double entry: a transaction is a set of entries that sum to zero.

    kind        what happened                granted  topped_up  receivable   faced by
    credit      granted                        +a        .           .        promotion  -a
                paid for                       .         +a          .        cash       -a
    charge      used, prepaid: out of credit   -c        -c          .        revenue    +c
                used, postpaid                 .         .           -c       revenue    +c
    expiry      ended credit taken back        -r        -r          .        promotion, breakage  +r
    refund      paid credit paid back, by us   .         -a          .        cash       +a
                or by a bank: debt may arise
    write_off   what is owed forgiven          .         +a          +a       bad_debt   -a
    correction  in the tenant's favour         .         +a          +a       revenue    -a
                in the house's                 as a charge                    revenue    +a
    invoice     fees, discounts and tax        .         .           -n       fees, discounts, tax  +n
                its credits applied            -k        -k          +k
                tax on what was paid in        .         .           .        cash  -t  tax  +t
    payment     of an invoice                  .         .           +a       cash       -a
    credit_note what is open, else as credit   .         +p          +o       revenue, fees, discounts, tax
    uncollectible  an invoice given up         .         .           +a       bad_debt   -a

The first three accounts are the tenant's, the others ours. ``granted`` and ``topped_up`` are what we owe the
tenant; ``topped_up`` below zero is what the tenant owes us (debt), and so is ``receivable``, until invoiced.
What comes in pays first what is owed: any credit pays debt, and what a postpaid tenant pays in also pays its
receivable; only the rest opens a lot. On the receivable are usage as it is charged, what an invoice adds to
it, and, against both, what was paid: above zero it is paid on account.
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
    """The tenant's accounts, and ours that face them. Each is kept per tenant."""

    GRANTED = "granted"
    TOPPED_UP = "topped_up"
    RECEIVABLE = "receivable"
    REVENUE = "revenue"
    PROMOTION = "promotion"
    CASH = "cash"
    BREAKAGE = "breakage"
    BAD_DEBT = "bad_debt"
    FEES = "fees"
    DISCOUNTS = "discounts"
    TAX_PAYABLE = "tax_payable"


Kind = Literal[
    "charge",
    "credit",
    "expiry",
    "refund",
    "write_off",
    "correction",
    "invoice",
    "payment",
    "credit_note",
    "uncollectible",
]
CreditAccount = Literal[Account.GRANTED, Account.TOPPED_UP]

CREDIT_ACCOUNTS: Final[Mapping[str, CreditAccount]] = MappingProxyType(
    {"granted": Account.GRANTED, "topped_up": Account.TOPPED_UP}
)
TENANTS_ACCOUNTS: Final = (Account.GRANTED, Account.TOPPED_UP, Account.RECEIVABLE)

SOURCE_OF: Final[Mapping[CreditAccount, Account]] = MappingProxyType(
    {Account.GRANTED: Account.PROMOTION, Account.TOPPED_UP: Account.CASH}
)
ENDED_TO: Final[Mapping[CreditAccount, Account]] = MappingProxyType(
    {Account.GRANTED: Account.PROMOTION, Account.TOPPED_UP: Account.BREAKAGE}
)
# What an invoice adds to the usage that was charged.
INVOICED: Final = (Account.FEES, Account.DISCOUNTS, Account.TAX_PAYABLE)
# Which account of ours a kind of transaction touches. Older expiries of paid credit say cash.
FACED_BY: Final[Mapping[Kind, tuple[Account, ...]]] = MappingProxyType(
    {
        "charge": (Account.REVENUE,),
        "credit": (Account.PROMOTION, Account.CASH),
        "expiry": (Account.PROMOTION, Account.BREAKAGE, Account.CASH),
        "refund": (Account.CASH,),
        "write_off": (Account.BAD_DEBT,),
        "correction": (Account.REVENUE,),
        "invoice": (*INVOICED, Account.CASH),
        "payment": (Account.CASH,),
        "credit_note": (Account.REVENUE, *INVOICED, Account.PROMOTION, Account.CASH),
        "uncollectible": (Account.BAD_DEBT,),
    }
)


class Entry(NamedTuple):
    """One side: never zero. ``lot_id`` names the credit lot that it fills or draws on; debt has none."""

    account: Account
    amount: Femto
    lot_id: UUID | None = None


@dataclass(frozen=True, slots=True)
class Transaction:
    """A fact of the ledger. The id of a charge is its request id, and that of a credit also its lot's.

    A charge is explained by its usage event; every other kind names its actor and its reason.
    """

    id: UUID
    tenant_id: str
    kind: Kind
    at: datetime
    entries: tuple[Entry, ...]
    actor: str | None = None
    reason: str | None = None
    idempotency_key: str | None = None

    def __post_init__(self) -> None:
        total = 0
        for entry in self.entries:
            assert entry.amount, f"{self.id} has an entry of zero"
            total += entry.amount
        assert total == 0, f"entries of {self.id} sum to {total}"
        assert self.kind == "charge" or (self.actor and self.reason), f"{self.id} is not explained"


def net(entries: Iterable[Entry]) -> Iterator[Entry]:
    """Entries on the same account and lot added up, zeros left out, in the order of first appearance."""
    sums: dict[tuple[Account, UUID | None], int] = {}
    for entry in entries:
        side = entry.account, entry.lot_id
        sums[side] = sums.get(side, 0) + entry.amount
    return (Entry(account, Femto(amount), lot) for (account, lot), amount in sums.items() if amount)
