"""What tenants are told, and their webhooks: kept, signed, delivered at least once."""
