"""What can go wrong with the local stack, as a tree. Each text is one line that says what to do.

StackError
├── StackRunning     this data directory already has a running stack
├── StackDown        a command needs the stack and it does not run
├── StackFailed      a part did not become ready; carries its last log lines
├── StackInterrupted it was told to stop before it was ready
├── PortTaken        somebody else listens on the port
├── MemoryShort      the machine has clearly less memory than the shape needs
├── WorkerMissing    the stack has no worker of that name
├── PartMissing      no part of that name has ever logged here
└── SecretsBroken    secrets of a data directory are missing or unreadable
"""

from pathlib import Path


class StackError(Exception):
    """Root of the tree."""


class StackRunning(StackError):
    """A second `up` on a data directory in use."""

    def __init__(self, data_dir: Path, pid: int | None) -> None:
        self.data_dir = data_dir
        self.pid = pid
        super().__init__(
            f"a stack already runs in {data_dir} (pid {pid or 'unknown'}): "
            "`kvitto status` shows it, `kvitto down` stops it"
        )


class StackDown(StackError):
    """Nothing runs in the data directory."""

    def __init__(self, data_dir: Path) -> None:
        self.data_dir = data_dir
        super().__init__(f"no stack runs in {data_dir}: `kvitto up` starts it")


class StackFailed(StackError):
    """A part did not become ready. ``tail`` is the end of its log, for people."""

    def __init__(self, part: str, reason: str, tail: str = "") -> None:
        self.part = part
        self.reason = reason
        self.tail = tail
        super().__init__(f"{part}: {reason}" + (f"\n{tail}" if tail else ""))


class StackInterrupted(StackError):
    """Stopped by a signal or `kvitto down` before it was ready."""

    def __init__(self) -> None:
        super().__init__("stopped before it was ready")


class PortTaken(StackError):
    """The API's port is in use."""

    def __init__(self, host: str, port: int, why: str) -> None:
        self.port = port
        super().__init__(f"cannot listen on {host}:{port} ({why}): choose another with --port")


class MemoryShort(StackError):
    """Starting would end in a process killed for memory."""

    def __init__(self, workers: int, needed_bytes: int, available_bytes: int) -> None:
        self.needed_bytes = needed_bytes
        self.available_bytes = available_bytes
        super().__init__(
            f"{workers} workers and what they stand on need about {needed_bytes / 2**30:.1f} GiB of memory, "
            f"and {available_bytes / 2**30:.1f} GiB are available: free some, or ask for fewer workers "
            "(--prefill, --decode; --mono 1 needs least)"
        )


class WorkerMissing(StackError):
    """No worker of that name in the running stack."""

    def __init__(self, name: str, workers: tuple[str, ...]) -> None:
        self.name = name
        super().__init__(f"the stack has no worker {name!r}; there are: {', '.join(workers) or 'none'}")


class PartMissing(StackError):
    """No log of that part."""

    def __init__(self, part: str, parts: tuple[str, ...]) -> None:
        self.part = part
        super().__init__(f"no part {part!r} has logged here; there are: {', '.join(parts) or 'none'}")


class SecretsBroken(StackError):
    """The data directory's secrets cannot be used."""
