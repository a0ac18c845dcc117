"""What is wrong with invoices and what is agreed about them."""

from dataclasses import dataclass

from billing.errors.base import BillingError, Faulty, Placed


class TermsInvalid(Placed):
    """Terms of invoices, a coupon or a billing profile that mean nothing; ``field`` says which part."""


class UsageUnexplained(Faulty):
    """Settled usage that the published prices do not give: a row that vanished, or a charge that differs."""

    what = "usage that the price book does not explain"


class PeriodOpen(Faulty):
    """The period cannot be closed yet."""

    what = "the period cannot be closed"


@dataclass(eq=False)
class DocumentUnprintable(BillingError):
    """No PDF can be made of a document on this machine; ``reason`` is what Typst says."""

    number: str
    reason: str

    def __str__(self) -> str:
        return (
            f"no PDF of {self.number}: {self.reason}; where a character has no font, install one that has it"
            " (on Debian fonts-noto-core and fonts-noto-cjk); HTML and JSON do without"
        )


class InvoiceInvalid(Faulty):
    """A text is no invoice document."""

    what = "no invoice"


@dataclass(eq=False)
class InvoiceMissing(BillingError):
    """No document of this tenant has this number."""

    number: str

    def __str__(self) -> str:
        return f"no invoice {self.number!r}"


class InvoiceConflict(Placed):
    """A document is in another state, or leaves less open than was asked for; terms contradict one.

    ``field`` is its number, or what was to be agreed.
    """
