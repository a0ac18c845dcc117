"""Movements of money that people make: credit given, paid back, forgiven, corrected.

Each says why and who, moves more than nothing, and happens once for its ``idempotency_key``. Of two movements
with one key, ``effect`` says whether they are the same: who asks again may word it otherwise.
"""

from dataclasses import dataclass
from datetime import datetime
from typing import ClassVar, Final, Literal
from uuid import UUID

from billing.errors import AmountInvalid, ReasonMissing
from billing.ledger.balance import BalanceVersion
from billing.ledger.entries import CREDIT_ACCOUNTS, SOURCE_OF, Account, CreditAccount, Kind
from billing.money import Femto, decimal_of

PRIORITY_FIRST: Final = 1
PRIORITY_DEFAULT: Final = 50
PRIORITY_LAST: Final = 100


@dataclass(frozen=True, slots=True)
class Effect:
    """What a movement does, as the ledger keeps it: the entry on our side, and how its lot is used."""

    kind: Kind
    account: Account
    amount: Femto
    expires_at: datetime | None = None
    priority: int | None = None


@dataclass(frozen=True, slots=True)
class Grant:
    """Credit for a tenant: granted, or topped up, which is paid for. A lower ``priority`` is spent first.

    Raises:
        AmountInvalid: not more than zero.
        ReasonMissing: no reason or no actor; likewise below.
    """

    transaction_kind: ClassVar[Kind] = "credit"

    amount: Femto
    kind: Literal["granted", "topped_up"]
    reason: str
    actor: str
    expires_at: datetime | None = None
    idempotency_key: str | None = None
    priority: int = PRIORITY_DEFAULT

    def __post_init__(self) -> None:
        _check(self)
        assert PRIORITY_FIRST <= self.priority <= PRIORITY_LAST, f"priority {self.priority}"

    @property
    def action(self) -> str:
        """As the audit log names it; likewise below."""
        return "credit.grant" if self.kind == "granted" else "credit.top_up"

    @property
    def account(self) -> CreditAccount:
        """Where it is credited."""
        return CREDIT_ACCOUNTS[self.kind]

    @property
    def effect(self) -> Effect:
        """See `Effect`."""
        source = SOURCE_OF[self.account]
        return Effect("credit", source, Femto(-self.amount), self.expires_at, self.priority)


@dataclass(frozen=True, slots=True)
class Refund:
    """Paid credit paid back, at most what remains of it, or of the lot ``lot_id`` where that is named.

    ``gone``: the money has left already, as a bank's dispute takes it. What does not remain becomes debt.
    """

    transaction_kind: ClassVar[Kind] = "refund"
    action: ClassVar[str] = "credit.refund"

    amount: Femto
    reason: str
    actor: str
    lot_id: UUID | None = None
    idempotency_key: str | None = None
    gone: bool = False

    def __post_init__(self) -> None:
        _check(self)

    @property
    def effect(self) -> Effect:
        """See `Effect`."""
        return Effect("refund", Account.CASH, self.amount)


@dataclass(frozen=True, slots=True)
class WriteOff:
    """What a tenant owes, debt before receivable, forgiven: at most all of it."""

    transaction_kind: ClassVar[Kind] = "write_off"
    action: ClassVar[str] = "credit.write_off"

    amount: Femto
    reason: str
    actor: str
    idempotency_key: str | None = None

    def __post_init__(self) -> None:
        _check(self)

    @property
    def effect(self) -> Effect:
        """See `Effect`."""
        return Effect("write_off", Account.BAD_DEBT, Femto(-self.amount))


@dataclass(frozen=True, slots=True)
class Correction:
    """What was charged too much, given back as if paid for; or charged too little, drawn as a charge is."""

    transaction_kind: ClassVar[Kind] = "correction"
    action: ClassVar[str] = "credit.correct"

    amount: Femto
    favours: Literal["tenant", "house"]
    reason: str
    actor: str
    idempotency_key: str | None = None

    def __post_init__(self) -> None:
        _check(self)

    @property
    def effect(self) -> Effect:
        """See `Effect`."""
        if self.favours == "house":
            return Effect("correction", Account.REVENUE, self.amount)
        return Effect("correction", Account.REVENUE, Femto(-self.amount), None, PRIORITY_DEFAULT)


Movement = Grant | Refund | WriteOff | Correction


@dataclass(frozen=True, slots=True)
class Posted:
    """A movement in the ledger: the transaction that made it, and what can be spent since."""

    transaction_id: UUID
    balance: BalanceVersion


@dataclass(frozen=True, slots=True)
class MovementRow:
    """A movement of money that was no charge, and what remains of the lot it opened, if it opened one."""

    transaction_id: UUID
    at: datetime
    effect: Effect
    reason: str
    actor: str
    idempotency_key: str | None
    remaining: int | None


def _check(movement: Movement) -> None:
    if movement.amount <= 0:
        raise AmountInvalid(decimal_of(movement.amount))
    if not (movement.reason.strip() and movement.actor.strip()):
        raise ReasonMissing
