"""Usage and charges as files: what is in them, in which form, and how they are made in the background."""
