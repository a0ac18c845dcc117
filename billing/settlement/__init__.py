"""Usage events, their ledger transactions, attempts and attestations, in one batched transaction."""
