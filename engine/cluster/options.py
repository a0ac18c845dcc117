"""What the engine is made of: the workers' addresses, the deployment's secrets, the deadlines."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal, Protocol

from engine import mac
from engine.proof.ring import DeploymentRing

SECRET_BYTES_MIN: Final = 32

Role = Literal["encode", "prefill", "decode", "both"]


@dataclass(frozen=True, slots=True)
class WorkerAddress:
    """One worker.

    Args:
        name: as in its certificate and attestations.
        role: stages it is given.
        socket: Unix socket its HTTP server listens on.
    """

    name: str
    role: Role
    socket: Path


@dataclass(frozen=True, slots=True)
class Deadlines:
    """How long the engine waits for a worker, in seconds.

    `prefill_s` covers a prefill with its queue, also where its worker goes on; `first_token_s` decode's first
    token with its queue; `token_gap_s` the silence between two chunks, also while a begun answer waits for
    another worker; `abort_s` telling a worker to stop; `health_interval_s` the pause between two checks of
    one worker; `health_s` the answer to a check, or to a question about its journal.
    """

    connect_s: float = 2.0
    prefill_s: float = 120.0
    first_token_s: float = 120.0
    token_gap_s: float = 60.0
    abort_s: float = 2.0
    health_interval_s: float = 1.0
    health_s: float = 5.0
    retry_after_s: int = 5


class ScriptRunner(Protocol):
    """Runs Lua scripts where all gateways meet (`gateway.valkey`)."""

    def run_source(self, source: str, keys: Sequence[str], arguments: Sequence[str | int]) -> Awaitable[Any]:
        """Run a script atomically; any error means that it may or may not have run."""


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """Everything `Engine` needs.

    Args:
        workers: at least one that prefills and one that decodes (`elastic`: at least one of either); names
            unique. Those that encode get images before their prompts are placed, and nothing else.
        salt_secret: at least 32 bytes, the deployment's; a new one makes every stored prefix unreachable.
        deployment: the keys that worker certificates are checked against.
        worker_requests_max: stages that one worker is given at a time by all gateways together; beyond, it
            counts as full.
        store_dir: root of the prefix store, to estimate what of a prompt is stored; None: nothing is known.
        call_secret: at least 32 bytes; what workers ask of callers (`engine.mac`), None: nothing.
        now_s: the wall clock in Unix seconds; needed with `call_secret`.
        first_token: whether prefill's token may be the client's first.
        elastic: whether a worker may be given stages that its role does not name.
        queue_s_max: longest predicted wait of a prompt before its prefill; beyond, it is refused.
        shared: where the ledgers of all gateways meet; None: this process is alone.
        gateway: begins the name of this process's leases there.
    """

    workers: tuple[WorkerAddress, ...]
    salt_secret: bytes
    deployment: DeploymentRing
    deadlines: Deadlines = Deadlines()
    worker_requests_max: int = 128
    store_dir: Path | None = None
    call_secret: bytes | None = None
    now_s: Callable[[], int] | None = None
    first_token: bool = True
    elastic: bool = True
    queue_s_max: float = 120.0
    shared: ScriptRunner | None = None
    gateway: str = ""

    def __post_init__(self) -> None:
        names = [worker.name for worker in self.workers]
        if not names or len(set(names)) < len(names):
            raise ValueError(f"workers must be at least one and have different names, got {names}")
        if len(self.salt_secret) < SECRET_BYTES_MIN:
            raise ValueError(f"the salt secret must have at least {SECRET_BYTES_MIN} bytes")
        if self.call_secret is not None and len(self.call_secret) < mac.SECRET_BYTES_MIN:
            raise ValueError(f"the call secret must have at least {mac.SECRET_BYTES_MIN} bytes")
        if self.call_secret is not None and self.now_s is None:
            raise ValueError("calls are signed with the time: give a clock with the call secret")

    def call_headers(self, method: str, path: str, body: bytes) -> dict[str, str]:
        """Headers that prove to a worker that a call is the deployment's; `path` includes the query."""
        if self.call_secret is None or self.now_s is None:
            return {}
        return {mac.MAC_HEADER: mac.call_mac(self.call_secret, method, path, body, self.now_s())}


@dataclass(frozen=True, slots=True)
class WorkerSnapshot:
    """One worker as the engine sees it now; `running` counts this process's stages on it.

    A `draining` worker lives, but is given nothing.
    """

    name: str
    role: Role
    ready: bool
    running: int
    draining: bool = False
