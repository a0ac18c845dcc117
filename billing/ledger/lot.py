"""A lot: what remains of one credit. Lots are drawn on in one order, which draws do not change."""

from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from billing.ledger.credit import PRIORITY_DEFAULT
from billing.ledger.entries import Account, CreditAccount
from billing.money import Femto


@dataclass(slots=True)
class Lot:
    """What remains of one credit, its id the crediting transaction's."""

    id: UUID
    account: CreditAccount
    amount: Femto
    remaining: Femto
    created_at: datetime
    expires_at: datetime | None
    priority: int = PRIORITY_DEFAULT

    def __post_init__(self) -> None:
        assert 0 <= self.remaining <= self.amount, f"lot {self.id} holds {self.remaining} of {self.amount}"

    def draw(self, part: Femto) -> None:
        """Take a part of what remains, in place: every charge does, and a new lot would cost more."""
        assert 0 < part <= self.remaining, f"{part} drawn on lot {self.id}, which holds {self.remaining}"
        self.remaining = Femto(self.remaining - part)

    def __lt__(self, other: "Lot") -> bool:
        """Order of use: granted before topped up, lower priority, sooner expiry, then older first."""
        return self._order() < other._order()

    def _order(self) -> tuple[bool, int, bool, datetime, datetime, UUID]:
        never = self.expires_at is None
        return (
            self.account is Account.TOPPED_UP,
            self.priority,
            never,
            self.expires_at or self.created_at,
            self.created_at,
            self.id,
        )
