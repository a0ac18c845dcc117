"""Exports made in the background: asked for, written once, fetched by a signed link, forgotten."""
