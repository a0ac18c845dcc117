"""Verification by outsiders: no database, no Valkey, no model server, no network."""
