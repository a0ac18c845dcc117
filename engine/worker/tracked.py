"""What the scheduler's half of the connector knows of one request."""

from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Final

from engine.store.directory import Match
from engine.wire import RequestParams

# A found prefix is asked for again after this long: other requests publish meanwhile.
_LOOKUP_KEPT_S: Final = 1.0


@dataclass(slots=True)
class Lookup:
    """A question to the store: which blocks follow the ``device_tokens`` that vLLM still holds itself."""

    device_tokens: int
    asked_at_s: float
    future: "Future[Match] | None"
    match: Match | None = None

    def fits(self, device_tokens: int, at_s: float) -> bool:
        """Whether its answer is still the one to use."""
        waiting = self.match is None
        return self.device_tokens == device_tokens and (waiting or at_s - self.asked_at_s < _LOOKUP_KEPT_S)


@dataclass(slots=True)
class Tracked:
    """One request between `on_new_request` and `request_finished`.

    ``hit_device_tokens``, ``hit_store_tokens`` and ``owed_tokens`` are of its first admission: what is found
    again after a preemption was computed by the request itself. ``pinned`` holds what is being loaded;
    ``owed_late`` asks what is owed of the blocks that a load did not bring. ``published_blocks`` is the save
    pointer.
    """

    request: Any
    params: RequestParams
    lookup: Lookup | None = None
    hit_device_tokens: int = 0
    hit_store_tokens: int = 0
    owed_tokens: int = 0
    admitted_blocks: int = 0
    pinned: Match | None = None
    owed_late: "Future[int] | None" = None
    published_blocks: int = 0
    load_failed: bool = False

    @property
    def attests(self) -> bool:
        """Whether the answer carries an attestation."""
        return self.params.stage in ("prefill", "both")

    @property
    def first_admission(self) -> bool:
        """Whether it has never been preempted."""
        return bool(self.request.num_preemptions == 0)

    def wanted(self, device_tokens: int, block_tokens: int) -> list[bytes]:
        """Hashes of the blocks a load may bring: one token at least is always left to compute."""
        first, last = device_tokens // block_tokens, (self.request.num_tokens - 1) // block_tokens
        return list(self.request.block_hashes[first:last])

    def full_blocks(self, scheduled_tokens: int, block_tokens: int) -> int:
        """Blocks that are whole after this step; never beyond known tokens (drafts may be rejected)."""
        computed = min(self.request.num_computed_tokens + scheduled_tokens, self.request.num_tokens)
        return int(min(computed // block_tokens, len(self.request.block_hashes)))
