"""Whether all books say the same: events, ledger, receipts, invoices and the payment provider."""
