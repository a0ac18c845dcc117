"""One surface a file."""
