"""Reads over usage events."""
