"""Runs in the gateway: where a request goes, and what comes back from the workers."""
