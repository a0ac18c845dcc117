"""What a gateway process is told at its start. It reads no environment (conventions C14)."""

from dataclasses import dataclass, field
from typing import Literal

from billing.pricing.publication import REQUEST_MAX
from billing.tenancy.api_key import Network
from recipe.images import ImageBounds


@dataclass(frozen=True, slots=True)
class FetchOptions:
    """How images are had from where a client says they lie.

    Args:
        urls: whether they are at all; if not, bodies have to hold their images.
        ports: that a URL may name.
        fetch_s: for one image, waiting and redirects included.
        at_once_max: fetches of this process at a time.
        at_once_tenant_max: those of one tenant among them.
    """

    urls: bool = True
    ports: frozenset[int] = frozenset({80, 443})
    fetch_s: float = 10.0
    at_once_max: int = 64
    at_once_tenant_max: int = 8


@dataclass(frozen=True, slots=True)
class GatewayOptions:
    """Limits and intervals of one gateway process.

    Args:
        body_bytes_max: larger request bodies are refused with 413; beside images, where the model reads any.
        request_deadline_s: from admission to the last chunk; the hold covers the dearest window until then.
            At most `billing.pricing.publication.REQUEST_MAX`, which new prices wait for.
        first_event_wait_s: how long a stream's status waits for the engine; then 200 and heartbeats.
        heartbeat_interval_s: pause between two heartbeats of a silent stream.
        channel_frames_max: frames a slow client may leave unread before the pump waits for it.
        lease_s: how long a hold outlives the last renewal by its process.
        lease_renew_interval_s: pause between two renewals; a third of the lease leaves room for two failures.
        key_age_max_s: longest time a key's grant is used without asking again (the bound on revocation).
        keys_max: grants kept in process.
        price_refresh_interval_s: pause between two readings of the price book, and of the models' aliases.
        drain_s: how long a stopping process lets running requests finish.
        valkey_lost: while Valkey is away, refuse with 503, or admit this replica's share of the limits,
            without any hold (`gateway.admission.share` says what that risks).
        replicas: how many gateway processes share the limits then.
        answer_bytes_max: longer answers are not kept for a client that asks again.
        trusted_proxies: networks of proxies whose ``X-Forwarded-For`` names the client; no others' is read.
        private_destinations: networks, beside the internet, that others may have us send requests to.
        retry_after_s: what a 503 or a held balance tells the client to wait, at most 60.
        images: how many a request may hold, and how large.
        fetching: of images that lie elsewhere.
    """

    body_bytes_max: int = 4 * 2**20
    request_deadline_s: float = 600.0
    first_event_wait_s: float = 5.0
    heartbeat_interval_s: float = 10.0
    channel_frames_max: int = 256
    lease_s: float = 30.0
    lease_renew_interval_s: float = 10.0
    key_age_max_s: float = 2.0
    keys_max: int = 10_000
    price_refresh_interval_s: float = 2.0
    drain_s: float = 20.0
    valkey_lost: Literal["refuse", "share"] = "refuse"
    replicas: int = 1
    answer_bytes_max: int = 2**20
    retry_after_s: int = 5
    trusted_proxies: tuple[Network, ...] = ()
    images: ImageBounds = field(default_factory=ImageBounds)
    fetching: FetchOptions = FetchOptions()
    private_destinations: tuple[Network, ...] = ()

    def __post_init__(self) -> None:
        assert self.lease_renew_interval_s < self.lease_s
        assert self.replicas > 0
        assert 0 < self.request_deadline_s <= REQUEST_MAX.total_seconds()
        assert 0 < self.retry_after_s <= 60
