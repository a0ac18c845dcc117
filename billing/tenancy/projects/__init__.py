"""Projects of tenants."""
