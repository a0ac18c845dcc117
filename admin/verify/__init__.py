"""Verification without the house: no database, no Valkey, no vLLM, no network."""
