"""Who checks the invoices of a bundle."""

from typing import Final

from admin.verify.bundle import InvoiceHook

HOOK: Final[InvoiceHook | None] = None
