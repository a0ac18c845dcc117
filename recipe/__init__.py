"""Protocol bodies to conversations, conversations to token ids, token ids to protocol answers. Pure."""
