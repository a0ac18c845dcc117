"""The command `kvitto`: one file a noun, each importing what it needs only when it is called."""
