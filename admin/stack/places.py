"""Things of this machine that a stack takes: a short private folder for sockets, and the API's port."""

import os
import shutil
import socket
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from admin.settings import write_private
from admin.stack.errors import PortTaken
from admin.stack.state import Layout

BACKLOG: Final = 2048
FOLDERS: Final = ("/run", "/tmp") if os.geteuid() == 0 else ("/tmp",)  # noqa: S108 - a private folder is made inside.


def take_sockets(layout: Layout) -> Path:
    """The folder of this stack's sockets: one that a killed run left, else one with a new random name.

    Unix socket paths have 107 bytes at most, so it is not in the data directory. As root it may be passed
    through, because Postgres's account must reach its own private folder inside.
    """
    record = layout.run / "sockets"
    if record.exists():
        known = Path(record.read_text())
        if _is_ours(known):
            return known
    parent = next(folder for folder in FOLDERS if os.access(folder, os.W_OK))
    made = Path(tempfile.mkdtemp(prefix="kvitto-", dir=parent))
    made.chmod(_mode())
    write_private(record, str(made).encode())
    return made


def leave_sockets(layout: Layout) -> None:
    """Remove the folder once nothing of the stack runs."""
    record = layout.run / "sockets"
    if record.exists():
        folder = Path(record.read_text())
        if _is_ours(folder):
            shutil.rmtree(folder, ignore_errors=True)
        record.unlink(missing_ok=True)


def listen(host: str, port: int) -> socket.socket:
    """Open the API's port. The supervisor holds it, so clients wait while a killed gateway is started again.

    Raises:
        PortTaken: it cannot be opened.
    """
    listener = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        raise PortTaken(host, port, error.strerror or str(error)) from error
    return listener


@dataclass(frozen=True, slots=True)
class GatewayListeners:
    """Where a gateway is reached: at the API's port, which all of them share, and at a socket of its own."""

    shared: socket.socket
    own: socket.socket


@contextmanager
def listen_beside(
    shared: socket.socket, sockets: Path, names: Sequence[str]
) -> Iterator[list[GatewayListeners]]:
    """Open the own sockets of gateways that share the API's: only there it is known who answers."""
    folder = sockets / "g"
    folder.mkdir(mode=0o700, exist_ok=True)
    with ExitStack() as stack:
        opened = []
        for name in names:
            path = folder / f"{name}.sock"
            path.unlink(missing_ok=True)
            own = stack.enter_context(socket.socket(socket.AF_UNIX))
            own.bind(str(path))
            own.listen(BACKLOG)
            opened.append(GatewayListeners(shared, own))
        yield opened


def _is_ours(folder: Path) -> bool:
    try:
        status = folder.lstat()
    except OSError:
        return False
    return (
        folder.is_dir()
        and not folder.is_symlink()
        and status.st_uid == os.geteuid()
        and status.st_mode & 0o777 == _mode()
    )


def _mode() -> int:
    return 0o711 if os.geteuid() == 0 else 0o700
