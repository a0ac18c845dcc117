"""Limits and budgets, as rows."""
