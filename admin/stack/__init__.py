"""The local stack: every part as a supervised child process."""
