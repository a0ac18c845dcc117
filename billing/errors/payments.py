"""What is wrong with a payment."""

from dataclasses import dataclass

from billing.errors.base import BillingError


@dataclass(eq=False)
class WebhookRefused(BillingError):
    """A webhook that is not signed by the payment provider, or says nothing readable."""

    reason: str

    def __str__(self) -> str:
        return f"webhook refused: {self.reason}"


@dataclass(eq=False)
class PaymentDeclined(BillingError):
    """The tenant's bank, or its lack of a payment method, refused a payment; ``code`` is the provider's."""

    code: str

    def __str__(self) -> str:
        return f"payment declined: {self.code}"


@dataclass(eq=False)
class PaymentUnknown(BillingError):
    """No payment, customer or event of the provider's has this id."""

    object_id: str

    def __str__(self) -> str:
        return f"no payment, customer or event {self.object_id!r}"


@dataclass(eq=False)
class PaymentRefused(BillingError):
    """The payment provider refuses a request: trying again will not help; ``code`` is the provider's."""

    code: str
    reason: str

    def __str__(self) -> str:
        return f"Stripe refuses this ({self.code}): {self.reason}"


@dataclass(eq=False)
class PaymentUnavailable(BillingError):
    """The payment provider cannot be reached, or could not serve in time. Whether it acted is not known.

    ``answered``: it said so itself, and says it again to the same idempotency key.
    """

    reason: str
    answered: bool = False

    def __str__(self) -> str:
        return f"Stripe is not available: {self.reason}"


@dataclass(eq=False)
class PaymentsMissing(BillingError):
    """No payment provider is configured; ``setting`` would."""

    setting: str

    def __str__(self) -> str:
        return f"no payment provider is configured: set {self.setting} and start the stack anew"
