"""Tenants, and in them: projects, API keys, users, limits and budgets."""
