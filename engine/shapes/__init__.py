"""Deployment shapes as data: what a worker is, and the command that starts it."""
