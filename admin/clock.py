"""The one clock of every process but vLLM's."""

from datetime import UTC, datetime


def now() -> datetime:
    """This instant, aware, UTC. What rates uses Valkey's TIME of the admission instead."""
    return datetime.now(UTC)
