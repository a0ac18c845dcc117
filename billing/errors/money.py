"""What is wrong with money that moves."""

from dataclasses import dataclass

from billing.errors.base import BillingError


@dataclass(eq=False)
class AmountInvalid(BillingError):
    """A text or number is no amount of money that can be granted."""

    text: str

    def __str__(self) -> str:
        return f"not a positive amount of money with at most 15 decimals: {self.text!r}"


@dataclass(eq=False)
class ReasonMissing(BillingError):
    """Money was to be moved without a reason or an actor."""

    def __str__(self) -> str:
        return "every movement of money names its reason and its actor"


@dataclass(eq=False)
class AmountExceeds(BillingError):
    """More than there is; ``of`` names what there is not enough of, amounts are decimals."""

    amount: str
    of: str
    at_most: str

    def __str__(self) -> str:
        return f"{self.amount} is more than the {self.of}, which is {self.at_most}"


@dataclass(eq=False)
class MovementConflict(BillingError):
    """An idempotency key already names another movement of this tenant's money."""

    tenant_id: str
    idempotency_key: str

    def __str__(self) -> str:
        return f"idempotency key {self.idempotency_key!r} already names another movement of money"


@dataclass(eq=False)
class ChargeUnexplained(BillingError):
    """A charge that its price row does not explain, or whose price row is not there."""

    price_row_id: str
    window: str
    tier: str
    reason: str

    def __str__(self) -> str:
        return f"price {self.price_row_id}, window {self.window!r}, tier {self.tier!r}: {self.reason}"


@dataclass(eq=False)
class BalanceExhausted(BillingError):
    """The tenant cannot cover the hold."""

    tenant_id: str

    def __str__(self) -> str:
        return f"tenant {self.tenant_id} has no balance for this request"
