"""Usage events, their ledger transactions and attestations, in one batched transaction."""
