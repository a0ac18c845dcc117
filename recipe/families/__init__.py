"""Model families: how a conversation becomes a prompt, and a model's tokens an answer."""
