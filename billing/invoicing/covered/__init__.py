"""Which requests a document covers, and what they come to."""
