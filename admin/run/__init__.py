"""Composition roots: one module per process."""
