"""The prefix store: a directory of content-addressed KV blocks. Everything it does degrades to a miss."""
