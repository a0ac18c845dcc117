"""What is wrong with receipts, their log and its proofs."""

from dataclasses import dataclass

from billing.errors.base import BillingError, Faulty


class ReceiptInvalid(Faulty):
    """A text is no receipt, or no line of a file of receipts."""

    what = "no receipt"


@dataclass(eq=False)
class BundleInvalid(BillingError):
    """A bundle of receipts cannot be read; ``file`` and ``line`` say where, as far as there is a place."""

    reason: str
    file: str | None = None
    line: int | None = None

    def __str__(self) -> str:
        place = ":".join(str(part) for part in (self.file, self.line) if part is not None)
        return f"no bundle: {place}: {self.reason}" if place else f"no bundle: {self.reason}"


@dataclass(eq=False)
class ReceiptMissing(BillingError):
    """The log has no receipt of this request for who asks, or no more: it is erased."""

    request_id: str

    def __str__(self) -> str:
        return f"no receipt of {self.request_id!r}"


@dataclass(eq=False)
class ReceiptPending(BillingError):
    """The request is settled, and its receipt will be in the log with the next batch, or the one after it."""

    request_id: str

    def __str__(self) -> str:
        return f"the receipt of {self.request_id!r} is not in the log yet: receipts join it every hour"


@dataclass(eq=False)
class HeadMissing(BillingError):
    """The log has no signed head of this size."""

    size: int

    def __str__(self) -> str:
        return f"the log has no head of size {self.size}"


class ProofBroken(Faulty):
    """Hashes do not prove what they are said to prove."""

    what = "proof broken"
