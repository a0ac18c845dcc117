"""What the scheduler's half of the connector knows of one request."""

from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, Final

from engine.proof.attestation import Ended
from engine.store.directory import Match
from engine.wire import AnswerParams, RequestParams
from engine.worker.attest import DecodeFacts, PrefillFacts

# A found prefix is asked for again after this long: other requests publish meanwhile.
_LOOKUP_KEPT_S: Final = 1.0
# vLLM's reasons; one that is stopped for repeating itself has stopped, one without a reason is cut off.
_ENDED: Final[dict[str, Ended]] = {
    "stop": "stop",
    "repetition": "stop",
    "length": "length",
    "error": "error",
}


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
    pointer. ``prefill_due``: its prefill is still to be attested; ``answer`` holds it then.
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
    answer: AnswerParams | None = None
    prefill_due: bool = field(init=False)

    def __post_init__(self) -> None:
        self.prefill_due = self.params.stage in ("prefill", "both")

    @property
    def decodes(self) -> bool:
        """Whether its decode is to be attested."""
        return self.params.stage in ("decode", "both")

    @property
    def computed(self) -> bool:
        """Whether its prompt is computed to the end: a token was drawn."""
        return bool(self.request.num_output_tokens > 0)

    @property
    def first_admission(self) -> bool:
        """Whether it has never been preempted."""
        return bool(self.request.num_preemptions == 0)

    @property
    def ended(self) -> Ended:
        """How it ended; what has not ended when the worker does is aborted."""
        return _ENDED.get(str(self.request.get_finished_reason()), "abort")

    @property
    def prompt_ids(self) -> Sequence[int]:
        """The client's prompt: what was sent without the output of attempts before."""
        ids: Sequence[int] = self.request.prompt_token_ids
        return ids[: len(ids) - self.params.output_from]

    def prefill_facts(self, block_tokens: int, owed_tokens: int, promised_until: int | None) -> PrefillFacts:
        """What there is to attest of its prefill; carried output is no part of it."""
        prompt_ids = self.prompt_ids
        left = (len(prompt_ids) - 1) // block_tokens * block_tokens
        device_tokens = min(self.hit_device_tokens, left)
        store_tokens = min(self.hit_store_tokens, left - device_tokens)
        drew = self.params.first_token and self.params.stage == "prefill" and self.computed
        return PrefillFacts(
            prompt_ids=prompt_ids,
            hit_device_tokens=device_tokens,
            hit_store_tokens=store_tokens,
            promised_until=promised_until,
            owed_tokens=min(owed_tokens, left - device_tokens - store_tokens),
            computed=self.computed,
            output_to=int(drew and self.ended in ("stop", "length")),
        )

    def decode_facts(self) -> DecodeFacts:
        """What there is to attest of its decode; hits of a worker that does both are its prefill's."""
        handed_off = self.params.stage == "decode"
        return DecodeFacts(
            prompt_tokens=len(self.prompt_ids),
            handoff_tokens=self.hit_device_tokens + self.hit_store_tokens if handed_off else 0,
            generated_tokens=self.request.num_output_tokens,
            ended=self.ended,
        )

    def wanted(self, device_tokens: int, block_tokens: int) -> list[bytes]:
        """Hashes of the blocks a load may bring: one token at least is always left to compute."""
        first, last = device_tokens // block_tokens, (self.request.num_tokens - 1) // block_tokens
        return list(self.request.block_hashes[first:last])

    def full_blocks(self, scheduled_tokens: int, block_tokens: int) -> int:
        """Blocks that are whole after this step; never beyond known tokens (drafts may be rejected)."""
        computed = min(self.request.num_computed_tokens + scheduled_tokens, self.request.num_tokens)
        return int(min(computed // block_tokens, len(self.request.block_hashes)))
