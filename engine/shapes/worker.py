"""One worker as data: everything `engine.worker.launch` needs, in one JSON file without secrets."""

import dataclasses
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal, Self, get_args

Role = Literal["encode", "prefill", "decode", "both"]

KV_CACHE_BYTES: Final = 512 * 1024**2


class SpecInvalid(ValueError):
    """A worker's spec file that cannot be used; the message says what is wrong with which field."""


_LEAST: Final = {
    "kv_cache_bytes": 1,
    "threads": 1,
    "batched_tokens_max": 1,
    "sequences_max": 1,
    "block_tokens": 1,
    "store_bytes_max": 0,
    "tenant_bytes_max": 0,
}


@dataclass(frozen=True, slots=True)
class WorkerSpec:
    """One vLLM worker. Paths are absolute; sizes in bytes, times in seconds.

    ``cpu_cores`` None leaves the threads unbound. ``context_tokens`` None takes the model's own maximum.
    ``batched_tokens_max`` is the prefill chunk of a step. With ``step_budget_s`` a chunk also takes no longer
    than that, prompts are served by cost and fairly between tenants, and a greedy answer may depend on the
    load; None leaves fixed chunks, first come, first served.

    ``key_file`` (PEM, mode 0600) signs attestations; ``certificate_file`` holds the deployment's certificate
    for it. ``recipe_version`` is part of the store's namespace: a new way of rendering prompts starts with an
    empty one. ``store_dir`` None turns the store off. ``journal_dir`` keeps what the worker attests until it
    is acknowledged; ``call_secret_file`` (hexadecimal, mode 0600) holds what callers must know, None: nobody
    is asked. ``promise`` False stores blocks without promising to keep them. ``store_bytes_max`` limits the
    block files of the whole store, ``tenant_bytes_max`` what is promised or owed to any one tenant; None: no
    limit. ``retention_s`` adds retention classes, or changes how many seconds the known ones promise.

    ``speculative`` is vLLM's configuration of speculative decoding, under its own names; None: no drafts.

    A worker of role ``encode`` runs a model's image encoder alone: it leaves in ``encoded_dir`` what the
    others look for there before they encode an image themselves, and attests nothing. None: everybody
    encodes.
    """

    name: str
    role: Role
    model_dir: Path
    served_name: str
    socket: Path
    store_dir: Path | None
    journal_dir: Path
    key_file: Path
    certificate_file: Path
    call_secret_file: Path | None = None
    promise: bool = True
    context_tokens: int | None = None
    kv_cache_bytes: int = KV_CACHE_BYTES
    cpu_cores: tuple[int, ...] | None = None
    threads: int = 1
    batched_tokens_max: int = 512
    step_budget_s: float | None = None
    sequences_max: int = 32
    block_tokens: int = 64
    dtype: str = "auto"
    recipe_version: str = ""
    store_bytes_max: int | None = None
    tenant_bytes_max: int | None = None
    retention_s: Mapping[str, int] = field(default_factory=dict)
    shutdown_timeout_s: int = 20
    log_level: str = "INFO"
    speculative: Mapping[str, Any] | None = None
    encoded_dir: Path | None = None

    def __post_init__(self) -> None:
        if self.role not in get_args(Role):
            raise SpecInvalid(f"role is {self.role!r}")
        if self.role == "encode" and self.encoded_dir is None:
            raise SpecInvalid("encoded_dir is null: a worker that encodes has to leave it somewhere")
        for name, least in _LEAST.items():
            value = getattr(self, name)
            if value is not None and value < least:
                raise SpecInvalid(f"{name} must be at least {least}")
        for name, seconds in self.retention_s.items():
            if seconds < 1:
                raise SpecInvalid(f"retention_s of {name!r} must be at least 1")
        if self.step_budget_s is not None and not 0 < self.step_budget_s < math.inf:
            raise SpecInvalid("step_budget_s must be above 0, or null for none")
        if self.shutdown_timeout_s < 1:
            raise SpecInvalid("shutdown_timeout_s must be at least 1: without it a stop hangs the clients")
        if len(str(self.socket).encode()) > 100:
            raise SpecInvalid("socket path is too long for a Unix socket")

    def write(self, path: Path) -> None:
        """Write the spec as JSON, replacing the file in one step."""
        fields = {name: _plain(value) for name, value in dataclasses.asdict(self).items()}
        temporary = path.with_name(path.name + ".tmp")
        temporary.write_text(json.dumps(fields, indent=2) + "\n")
        temporary.replace(path)

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read a spec file; raises SpecInvalid naming the field."""
        try:
            fields: dict[str, Any] = json.loads(path.read_text())
            for name in ("model_dir", "socket", "journal_dir", "key_file", "certificate_file"):
                fields[name] = Path(fields[name])
            for name in ("store_dir", "call_secret_file", "encoded_dir"):
                fields[name] = None if fields.get(name) is None else Path(fields[name])
            if fields.get("cpu_cores") is not None:
                fields["cpu_cores"] = tuple(int(core) for core in fields["cpu_cores"])
            return cls(**fields)
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise SpecInvalid(f"{path}: {error}") from error


def default_cores(role: Role, cores: int) -> tuple[int, ...] | None:
    """Cores of a worker beside one of the other role: prefill on core 0, decode on core 1, if there are two.

    With more cores prefill gets the first half and decode the rest; ``both`` is left unbound.
    """
    if cores < 2 or role == "both":
        return None
    half = cores // 2
    return tuple(range(half)) if role == "prefill" else tuple(range(half, cores))


def _plain(value: object) -> object:
    return str(value) if isinstance(value, Path) else value
