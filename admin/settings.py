"""The one reader of the environment: what an operator may set, and what parts of a stack are told."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from ipaddress import ip_network
from pathlib import Path
from typing import Any, Final, Literal

import msgspec

from recipe.memo import BYTES_MAX

PREFIX: Final = "KVITTO_"
SETTINGS_FILE: Final = PREFIX + "SETTINGS_FILE"
LISTENER_FDS: Final = PREFIX + "LISTENER_FDS"
STRIPE_SECRET_KEY: Final = PREFIX + "STRIPE_SECRET_KEY"
KEPT_BY_CHILDREN: Final = (
    *("PATH", "HOME", "USER", "LOGNAME", "LANG", "LC_ALL", "TZ", "TMPDIR", "LD_LIBRARY_PATH", "VIRTUAL_ENV"),
    *("PYTHONPATH", "SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY"),
    *("http_proxy", "https_proxy", "no_proxy"),
)
KEPT_PREFIXES: Final = ("HF_", "VLLM_", "CUDA_", "NVIDIA_", "XDG_CACHE_", "COVERAGE_")


class SettingsMissing(RuntimeError):
    """A process that belongs to a stack was started without its settings."""


class SettingsInvalid(RuntimeError):
    """A variable of the environment has a value that means nothing."""


@dataclass(frozen=True, slots=True)
class StoreQuotas:
    """Limits of the prefix store in bytes: of all blocks, of what a tenant is promised. None: no limit."""

    store_bytes_max: int | None = None
    tenant_bytes_max: int | None = None


@dataclass(frozen=True, slots=True)
class WorkerSettings:
    """How the gateway reaches one worker; paths are absolute."""

    name: str
    role: Literal["encode", "prefill", "decode", "both"]
    socket: Path
    certificate_file: Path


@dataclass(frozen=True, slots=True)
class StripeSettings:
    """The payment provider: each secret enables its half. ``api_url`` None: Stripe itself."""

    secret_key: str | None = field(default=None, repr=False)
    webhook_secret: str | None = field(default=None, repr=False)
    api_url: str | None = None


@dataclass(frozen=True, slots=True)
class Settings:
    """All that a process of one stack needs. It travels in a file of mode 0600, never on a command line.

    ``model_dir`` is None for a stack without engine, ``store_dir`` for one without prefix store.
    ``worker_secret`` opens the workers' doors. ``deployment_ring`` is the text of the deployment's keys
    (`engine.proof.ring`), ``deployment_key_file`` holds the private one that signs now (`admin.deployment`);
    None: nothing signs here. ``first_token``: a prefill may draw the first token of an answer
    (`engine.shapes.shape.Shape`). ``valkey_lost`` and ``gateway_replicas``: see
    `gateway.options.GatewayOptions`. ``trusted_proxies``: CIDR blocks of proxies before the API, whose
    ``X-Forwarded-For`` is believed. ``encode_memo_bytes_max``: what each gateway may keep of encoded prompts
    (`recipe.memo`). ``image_urls``: images that bodies name by URL are fetched.
    ``private_destinations``: CIDR blocks, beside the internet, that tenants' webhooks may be in
    (`gateway.destinations`).
    """

    data_dir: Path
    database_url: str = field(repr=False)
    valkey_url: str = field(repr=False)
    host: str
    port: int
    model_dir: Path | None
    served_name: str
    workers: tuple[WorkerSettings, ...]
    key_pepper: bytes = field(repr=False)
    salt_secret: bytes = field(repr=False)
    worker_secret: bytes = field(repr=False)
    deployment_ring: str
    deployment_key_file: Path | None = None
    store_dir: Path | None = None
    first_token: bool = True
    valkey_lost: Literal["refuse", "share"] = "refuse"
    gateway_replicas: int = 1
    trusted_proxies: tuple[str, ...] = ()
    encode_memo_bytes_max: int = BYTES_MAX
    image_urls: bool = True
    private_destinations: tuple[str, ...] = ()
    stripe: StripeSettings = StripeSettings()

    @property
    def base_url(self) -> str:
        """Address of the API as clients of this machine write it."""
        return f"http://{'127.0.0.1' if self.host in ('0.0.0.0', '::') else self.host}:{self.port}/v1"  # noqa: S104 - compared, not bound.

    @property
    def exports_folder(self) -> Path:
        """Where files of exports are kept; gateways on other machines serve them if they share it."""
        return self.data_dir / "exports"

    def write(self, path: Path) -> None:
        """Store for the parts of the stack, readable by this user alone."""
        write_private(path, msgspec.json.encode(self, enc_hook=_encoded))

    @classmethod
    def read(cls, path: Path) -> "Settings":
        """Read what ``write`` stored; raises SettingsMissing."""
        try:
            return msgspec.json.decode(path.read_bytes(), type=cls, dec_hook=_decoded)
        except (OSError, msgspec.DecodeError) as error:
            raise SettingsMissing(f"no settings of a stack in {path}") from error


@dataclass(frozen=True, slots=True)
class OwnServers:
    """Servers that the operator brings instead of the embedded ones."""

    database_url: str | None = field(repr=False)
    valkey_url: str | None = field(repr=False)


def own_servers() -> OwnServers:
    """Read ``KVITTO_DATABASE_URL`` (``postgres://`` is welcome too) and ``KVITTO_VALKEY_URL``."""
    database = os.environ.get(PREFIX + "DATABASE_URL") or None
    if database is not None:
        scheme, _, rest = database.partition("://")
        if scheme in ("postgres", "postgresql"):
            database = f"postgresql+asyncpg://{rest}"
    return OwnServers(database, os.environ.get(PREFIX + "VALKEY_URL") or None)


def store_quotas() -> StoreQuotas:
    """Read ``KVITTO_STORE_BYTES_MAX`` and ``KVITTO_TENANT_BYTES_MAX``.

    Raises:
        SettingsInvalid: one of them is no whole number of bytes.
    """
    return StoreQuotas(_bytes_max("STORE_BYTES_MAX"), _bytes_max("TENANT_BYTES_MAX"))


@dataclass(frozen=True, slots=True)
class ValkeyLost:
    """What gateways do while Valkey is away, and how many of them share limits then."""

    policy: Literal["refuse", "share"] = "refuse"
    replicas: int = 1


def valkey_lost() -> ValkeyLost:
    """Read ``KVITTO_VALKEY_LOST`` (``refuse`` or ``share``) and ``KVITTO_GATEWAY_REPLICAS``.

    Raises:
        SettingsInvalid: one of them is something else.
    """
    replicas = os.environ.get(PREFIX + "GATEWAY_REPLICAS") or "1"
    if not (replicas.isascii() and replicas.isdecimal() and int(replicas) > 0):
        raise SettingsInvalid(f"{PREFIX}GATEWAY_REPLICAS is {replicas!r}: write how many gateways there are")
    match os.environ.get(PREFIX + "VALKEY_LOST") or "refuse":
        case "refuse" | "share" as policy:
            return ValkeyLost(policy, int(replicas))
        case written:
            raise SettingsInvalid(f"{PREFIX}VALKEY_LOST is {written!r}: write refuse or share")


def trusted_proxies() -> tuple[str, ...]:
    """Read ``KVITTO_TRUSTED_PROXIES``: addresses and CIDR blocks between commas, such as ``10.0.0.0/8``.

    Raises:
        SettingsInvalid: one of them is neither.
    """
    return _networks("TRUSTED_PROXIES")


def private_destinations() -> tuple[str, ...]:
    """Read ``KVITTO_PRIVATE_DESTINATIONS``, likewise: none unless it is set.

    Raises:
        SettingsInvalid: one of them is neither.
    """
    return _networks("PRIVATE_DESTINATIONS")


def encode_memo_bytes_max() -> int:
    """Read ``KVITTO_ENCODE_MEMO_BYTES_MAX``; 0 keeps nothing.

    Raises:
        SettingsInvalid: it is no whole number of bytes.
    """
    given = _bytes_max("ENCODE_MEMO_BYTES_MAX")
    return BYTES_MAX if given is None else given


def image_urls() -> bool:
    """Read ``KVITTO_IMAGE_URLS``: ``fetch``, or ``refuse``, so that bodies have to hold their images.

    Raises:
        SettingsInvalid: it is something else.
    """
    written = os.environ.get(PREFIX + "IMAGE_URLS") or "fetch"
    if written not in ("fetch", "refuse"):
        raise SettingsInvalid(f"{PREFIX}IMAGE_URLS is {written!r}: write fetch or refuse")
    return written == "fetch"


def _networks(name: str) -> tuple[str, ...]:
    written = os.environ.get(PREFIX + name, "")
    blocks = tuple(block.strip() for block in written.split(",") if block.strip())
    for block in blocks:
        try:
            ip_network(block)
        except ValueError as error:
            raise SettingsInvalid(f"{PREFIX}{name}: {error}") from None
    return blocks


def stripe_settings() -> StripeSettings:
    """Read ``KVITTO_STRIPE_SECRET_KEY``, ``KVITTO_STRIPE_WEBHOOK_SECRET`` and ``KVITTO_STRIPE_API_URL``.

    Raises:
        SettingsInvalid: one of them is something else, such as a publishable key. It is not quoted.
    """
    secret_key = os.environ.get(STRIPE_SECRET_KEY) or None
    webhook_secret = os.environ.get(PREFIX + "STRIPE_WEBHOOK_SECRET") or None
    api_url = os.environ.get(PREFIX + "STRIPE_API_URL") or None
    if secret_key is not None and not secret_key.startswith(("sk_", "rk_")):
        raise SettingsInvalid(f"{STRIPE_SECRET_KEY} is no secret key: those begin with sk_ or rk_")
    if webhook_secret is not None and not webhook_secret.startswith("whsec_"):
        raise SettingsInvalid(
            f"{PREFIX}STRIPE_WEBHOOK_SECRET is no secret of an endpoint: those begin with whsec_"
        )
    if api_url is not None and not api_url.startswith(("https://", "http://127.0.0.1", "http://localhost")):
        raise SettingsInvalid(
            f"{PREFIX}STRIPE_API_URL is {api_url!r}: write https://… or an address of this machine"
        )
    return StripeSettings(secret_key, webhook_secret, api_url)


def _bytes_max(name: str) -> int | None:
    written = os.environ.get(PREFIX + name) or None
    if written is not None and not (written.isascii() and written.isdecimal()):
        raise SettingsInvalid(f"{PREFIX}{name} is {written!r}: write a whole number of bytes")
    return None if written is None else int(written)


def data_dir_from_environment() -> Path | None:
    """``KVITTO_DATA_DIR``, or None."""
    chosen = os.environ.get(PREFIX + "DATA_DIR")
    return Path(chosen) if chosen else None


def from_environment() -> Settings:
    """Settings of the stack that started this process.

    Raises:
        SettingsMissing: ``KVITTO_SETTINGS_FILE`` is unset or unreadable.
    """
    path = os.environ.get(SETTINGS_FILE)
    if not path:
        raise SettingsMissing(f"{SETTINGS_FILE} is not set: `kvitto up` starts this process")
    return Settings.read(Path(path))


def listener_fds() -> tuple[int, ...]:
    """Descriptors of the listening sockets that the supervisor handed on: the API's, the process's own."""
    return tuple(int(number) for number in os.environ.get(LISTENER_FDS, "").split(",") if number)


def child_environment(extra: Mapping[str, str]) -> dict[str, str]:
    """Environment of a child: what programs need from ours, and ``extra``; no secrets of ours."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if name in KEPT_BY_CHILDREN or name.startswith(KEPT_PREFIXES)
    }
    return {**kept, "PYTHONUNBUFFERED": "1", **extra}


def write_private(path: Path, content: bytes) -> None:
    """Put a file of mode 0600 in place in one step."""
    made = path.with_name(f".{path.name}.{os.getpid()}")
    made.unlink(missing_ok=True)
    with os.fdopen(os.open(made, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(content)
    made.replace(path)


def _encoded(value: Any) -> Any:
    if isinstance(value, Path):
        return str(value)
    raise TypeError(type(value).__name__)


def _decoded(kind: type, value: Any) -> Any:
    if kind is Path:
        return Path(value)
    raise TypeError(kind.__name__)
