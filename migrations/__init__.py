"""Alembic migrations: expand, backfill, contract, one phase a file."""
