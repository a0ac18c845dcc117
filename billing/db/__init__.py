"""Connections, the one transaction, tables and migrations."""
