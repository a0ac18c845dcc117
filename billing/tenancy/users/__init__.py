"""Users of tenants and their roles."""
