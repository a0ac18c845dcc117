"""Control plane, and the main of every process but vLLM's."""
