"""What tenants are billed, and how it is derived from what they used."""
