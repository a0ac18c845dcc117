"""One surface a file: a body to a conversation, events to the surface's answers."""
