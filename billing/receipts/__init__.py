"""What workers attest of requests, and how well it covers what was billed."""
