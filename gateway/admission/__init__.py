"""Holds in Valkey: placed all or nothing by one script, released exactly once."""
