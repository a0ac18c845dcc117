"""What the engine is made of: the workers' addresses, the deployment's secrets, the deadlines."""

from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

SECRET_BYTES_MIN: Final = 32

Role = Literal["prefill", "decode", "both"]


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

    `prefill_s` covers a prefill with its queue, `first_token_s` decode's first token with its queue,
    `token_gap_s` the silence between two chunks, `abort_s` telling a worker to stop, `health_interval_s` the
    pause between two checks of one worker, `health_s` the answer to a check.
    """

    connect_s: float = 2.0
    prefill_s: float = 120.0
    first_token_s: float = 120.0
    token_gap_s: float = 60.0
    abort_s: float = 2.0
    health_interval_s: float = 1.0
    health_s: float = 5.0
    retry_after_s: int = 5


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """Everything `Engine` needs.

    Args:
        workers: at least one that prefills and one that decodes; names unique.
        salt_secret: at least 32 bytes, the deployment's; a new one makes every stored prefix unreachable.
        deployment_public_key: Ed25519, 32 raw bytes; what worker certificates are checked against.
        worker_requests_max: stages that one worker is given at a time by this process; beyond, it counts as
            full.
    """

    workers: tuple[WorkerAddress, ...]
    salt_secret: bytes
    deployment_public_key: bytes
    deadlines: Deadlines = Deadlines()
    worker_requests_max: int = 128

    def __post_init__(self) -> None:
        names = [worker.name for worker in self.workers]
        if not names or len(set(names)) < len(names):
            raise ValueError(f"workers must be at least one and have different names, got {names}")
        if len(self.salt_secret) < SECRET_BYTES_MIN:
            raise ValueError(f"the salt secret must have at least {SECRET_BYTES_MIN} bytes")


@dataclass(frozen=True, slots=True)
class WorkerSnapshot:
    """One worker as the engine sees it now; `running` counts this process's stages on it."""

    name: str
    role: Role
    ready: bool
    running: int
