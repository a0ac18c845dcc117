"""The parts of a stack as plans: how each is started, when it is ready, where it is reached."""

import signal
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from admin import settings
from admin.stack import postgres, probe, process, valkey
from admin.stack.model import Model
from admin.stack.part import Plan
from admin.stack.places import GatewayListeners
from admin.stack.process import Command, Traces
from admin.stack.secrets import Secrets
from admin.stack.state import Layout
from admin.stack.workers import Workers

MARK: Final = settings.PREFIX + "STACK"
GATEWAY_DRAIN_S: Final = 30.0
WORKER_READY_S: Final = 300.0
WORKER_STOP_S: Final = 30.0


@dataclass(frozen=True, slots=True)
class Planner:
    """Makes the plans of one data directory's parts."""

    layout: Layout
    secrets: Secrets
    sockets: Path

    def postgres(self) -> tuple[Plan, str]:
        """The embedded database's plan and its URL."""
        server = postgres.locate(self.layout.data_dir, self.sockets / "p")
        passwords = self.secrets.postgres

        async def prepare() -> Command:
            # Sessions of a server killed with -9 hold its shared memory; no new one starts beside them.
            await process.end_leftovers(Traces(homes=(("postgres", server.data),)))
            server.forget_killed()
            await server.prepare(passwords)
            return self._marked(server.command())

        async def ready(pid: int) -> bool:
            return server.ready(pid)

        address = f"{server.sockets}/.s.PGSQL.{postgres.PORT} (data in {server.data})"
        plan = Plan("postgres", prepare, ready, address, ready_timeout_s=120.0, stop_timeout_s=30.0)
        return plan, server.url(passwords.role)

    def valkey(self) -> tuple[Plan, str]:
        """The embedded Valkey's plan and its URL."""
        server = valkey.locate(self.layout.data_dir, self.sockets / "v")
        password = self.secrets.valkey_password

        async def prepare() -> Command:
            # Two servers writing one append-only file would spoil it.
            await process.end_leftovers(Traces(homes=(("valkey-server", server.data),)))
            server.prepare(password)
            return self._marked(server.command())

        async def ready(pid: int) -> bool:
            return await server.ready(password, pid)

        plan = Plan("valkey", prepare, ready, str(server.socket), ready_timeout_s=120.0)
        return plan, server.url(password)

    def worker(
        self, workers: Workers, worker: settings.WorkerSettings, model: Model, cores: tuple[int, ...] | None
    ) -> Plan:
        """A vLLM worker's plan."""

        async def prepare() -> Command:
            return self._marked(workers.command(worker, model, cores))

        async def ready(_pid: int) -> bool:
            return await probe.over_socket(worker.socket, "/health")

        return Plan(
            worker.name,
            prepare,
            ready,
            str(worker.socket),
            WORKER_READY_S,
            stop_timeout_s=WORKER_STOP_S,
            tries=2,
        )

    def gateway(self, name: str, address: str, listeners: GatewayListeners, ready_path: str) -> Plan:
        """A gateway's plan. Its sockets are open already, so readiness is an answer, not a connection."""
        fds = (listeners.shared.fileno(), listeners.own.fileno())

        async def prepare() -> Command:
            environment = {settings.LISTENER_FDS: ",".join(map(str, fds))}
            return replace(self._python("admin.run.gateway", environment), open_fds=fds)

        async def ready(_pid: int) -> bool:
            return await probe.over_socket(Path(listeners.own.getsockname()), ready_path)

        return Plan(name, prepare, ready, address, WORKER_READY_S, stop_timeout_s=GATEWAY_DRAIN_S)

    def jobs(self) -> Plan:
        """The background jobs' plan: they name their pid in a file when they have begun."""
        file = self.layout.run / "jobs.ready"

        async def prepare() -> Command:
            return self._python("admin.run.jobs", {})

        async def ready(pid: int) -> bool:
            return file.exists() and file.read_text() == str(pid)

        return Plan("jobs", prepare, ready)

    def setup(self) -> Command:
        """The step that brings the database up to date and makes the demo."""
        return self._python("admin.run.setup", {})

    def _python(self, module: str, environment: Mapping[str, str]) -> Command:
        variables = {settings.SETTINGS_FILE: str(self.layout.settings), **environment}
        return self._marked(
            Command(
                (sys.executable, "-m", module),
                settings.child_environment(variables),
                stop_signal=signal.SIGTERM,
            )
        )

    def _marked(self, command: Command) -> Command:
        return replace(command, environment={**command.environment, MARK: str(self.layout.data_dir)})


def traces_of(data_dir: Path) -> Traces:
    """What the processes of a data directory's stack are known by: orphans are found so."""
    homes = (
        ("postgres", (data_dir / "postgres").resolve()),
        ("valkey-server", (data_dir / "valkey").resolve()),
    )
    return Traces((MARK, str(data_dir)), homes)


def outside(url: str) -> str:
    """Where a server that the operator brings is, without its password."""
    parts = urlsplit(url)
    place = parts.hostname or parts.path
    return f"{place}:{parts.port}" if parts.port else str(place)
