"""Money by way of Stripe: what it says becomes facts, facts move the ledger, and what it must be told is."""
