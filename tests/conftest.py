"""Servers and the model that tests of every package share. Real ones: no test talks to an imitation."""

import asyncio
import fcntl
import secrets
import shutil
import signal
import tempfile
from collections.abc import Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import asyncpg
import pytest
from hypothesis import settings
from xdist.scheduler import LoadScopeScheduling

from admin.stack import model, postgres, process, valkey
from billing.db import migrate

ROOT = Path(__file__).resolve().parent.parent
TEMPLATE = "kvitto_template"

# Who start vLLM, the longest first: each lane one after another, the lanes beside each other.
LANES = {
    "stacks": ("tests/e2e/", "tests/chaos/", "tests/scenarios/"),
    "workers": ("tests/engine/worker/", "tests/engine/cluster/test_real_workers.py"),
}

# Nothing is timed in a test: a busy machine would fail it.
settings.register_profile("kvitto", deadline=None)
settings.load_profile("kvitto")


def lane_of(nodeid: str) -> str:
    """What one process of xdist does in a row: a lane, else a file."""
    file = nodeid.partition("::")[0]
    return next((lane for lane, places in LANES.items() if file.startswith(places)), file)


class LaneScheduling(LoadScopeScheduling):
    """Hands out lane by lane, then file by file."""

    def _split_scope(self, nodeid: str) -> str:
        return lane_of(nodeid)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LaneScheduling:
    """See `LaneScheduling`."""
    return LaneScheduling(config, log)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the lanes first, for they take longest."""
    order = list(LANES)
    items.sort(key=lambda item: order.index(lane) if (lane := lane_of(item.nodeid)) in LANES else len(order))


@dataclass(frozen=True)
class PostgresServer:
    """A running server for tests; ``url`` is a superuser's, who passes row security until it takes a role."""

    server: postgres.Postgres
    passwords: postgres.PostgresPasswords

    def url(self, database: str = "postgres") -> str:
        return self.server.url(self.passwords.superuser, database, postgres.SUPERUSER)

    def owner_url(self, database: str) -> str:
        """That of the account that owns the tables in production."""
        return self.server.url(self.passwords.role, database)

    def execute(self, *statements: str) -> None:
        run_apart(self._execute(statements))

    async def _execute(self, statements: tuple[str, ...]) -> None:
        connection = await asyncpg.connect(
            host=str(self.server.sockets),
            user=postgres.SUPERUSER,
            password=self.passwords.superuser,
            database="postgres",
        )
        try:
            for statement in statements:
                await connection.execute(statement)
        finally:
            await connection.close()


@dataclass(frozen=True)
class ValkeyServer:
    server: valkey.Valkey
    password: str

    @property
    def url(self) -> str:
        return self.server.url(self.password)


def run_apart(work: Coroutine[Any, Any, Any]) -> Any:
    """Run a coroutine in a thread of its own: the loop of an asynchronous test is left alone."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, work).result()


@pytest.fixture(scope="session")
def short_folder() -> Iterator[Path]:
    """A private folder, short enough for Unix sockets, that an unprivileged account can pass through."""
    folder = Path(tempfile.mkdtemp(prefix="kv-", dir="/tmp"))
    folder.chmod(0o711)
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def postgres_server(short_folder: Path) -> Iterator[PostgresServer]:
    """A real Postgres for the session."""
    server = postgres.locate(short_folder, short_folder / "p", expendable=True)
    passwords = postgres.PostgresPasswords.generate()
    run_apart(server.prepare(passwords))
    command = server.command()
    with (short_folder / "postgres.log").open("wb") as log:
        child = process.spawn(command, log)
    try:
        ready = process.until(lambda: server.ready(child.pid) or child.poll() is not None, 60.0)
        assert run_apart(ready), (short_folder / "postgres.log").read_text()
        assert child.poll() is None, (short_folder / "postgres.log").read_text()
        yield PostgresServer(server, passwords)
    finally:
        run_apart(process.stop(child, signal.SIGQUIT, 10.0))


@pytest.fixture(scope="session")
def migrated_template(postgres_server: PostgresServer) -> str:
    """Name of a migrated database that others are copied from."""
    postgres_server.execute(f"CREATE DATABASE {TEMPLATE} OWNER {postgres.ROLE}")
    migrate.upgrade(postgres_server.owner_url(TEMPLATE))
    return TEMPLATE


@pytest.fixture(scope="module")
def database_url(postgres_server: PostgresServer, migrated_template: str) -> Iterator[str]:
    """URL of a fresh migrated database, one a test module; its role may do everything."""
    name = f"kvitto_{secrets.token_hex(6)}"
    postgres_server.execute(f"CREATE DATABASE {name} TEMPLATE {migrated_template}")
    yield postgres_server.url(name)
    postgres_server.execute(f"DROP DATABASE {name} WITH (FORCE)")


@pytest.fixture(scope="session")
def valkey_server(short_folder: Path) -> Iterator[ValkeyServer]:
    """A real Valkey for the session."""
    server = valkey.locate(short_folder, short_folder / "v", expendable=True)
    password = valkey.generate_password()
    server.prepare(password)
    with (short_folder / "valkey.log").open("wb") as log:
        child = process.spawn(server.command(), log)

    async def ready() -> None:
        while not await server.ready(password, child.pid):
            assert child.poll() is None, (short_folder / "valkey.log").read_text()
            await asyncio.sleep(0.01)

    try:
        run_apart(ready())
        yield ValkeyServer(server, password)
    finally:
        run_apart(process.stop(child, signal.SIGTERM, 10.0))


@pytest.fixture
def valkey_url(valkey_server: ValkeyServer) -> str:
    """URL of the session's Valkey, emptied for each test."""
    run_apart(valkey_server.server.call(valkey_server.password, "FLUSHALL"))
    return valkey_server.url


@pytest.fixture(scope="session")
def model_dir() -> Path:
    """The default model in the form the workers serve, made once and kept in ``.cache``."""
    (ROOT / ".cache").mkdir(exist_ok=True)
    with (ROOT / ".cache" / "model.lock").open("w") as alone:
        fcntl.flock(alone, fcntl.LOCK_EX)  # processes of xdist share the folder
        return model.prepare_now(ROOT / ".cache")
