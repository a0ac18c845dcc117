"""Token counts of one request, split once into buckets that never overlap."""

from dataclasses import dataclass
from typing import Final, Literal, Self, get_args

from billing.errors import UsageInvalid
from engine.proof.attestation import PrefillAttestation

Bucket = Literal["cache_hit", "cache_owed", "cache_write", "cache_miss", "output"]
Tier = Literal["standard", "flex", "batch"]  # how urgent a request is: a tier has its prices


BUCKETS: Final[tuple[Bucket, ...]] = get_args(Bucket)


@dataclass(frozen=True, slots=True)
class TokenUsage:
    """Tokens of one request. Buckets never overlap; the four input buckets sum to the prompt.

    Raises:
        UsageInvalid: a negative count, a prompt served from cache to its last token (one is always
            computed, for the logits of the last position), or output without a prompt.
    """

    cache_hit: int
    cache_owed: int  # promised by retention, evicted early: billed as a hit
    cache_write: int  # 0 unless the price book prices it
    cache_miss: int
    output: int  # includes reasoning

    def __post_init__(self) -> None:
        if min(self.cache_hit, self.cache_owed, self.cache_write, self.cache_miss, self.output) < 0:
            raise UsageInvalid(f"a count below zero: {self}")
        cached = self.cache_hit + self.cache_owed
        if cached and cached > self.prompt - 1:
            raise UsageInvalid(f"{cached} tokens from cache in a prompt of {self.prompt}")
        if self.output and not self.prompt:
            raise UsageInvalid(f"{self.output} output tokens without a prompt")

    @property
    def prompt(self) -> int:
        """All input tokens."""
        return self.cache_hit + self.cache_owed + self.cache_write + self.cache_miss

    @classmethod
    def of(cls, prefill: PrefillAttestation, output: int) -> Self:
        """The one split: what prefill attested, and the output tokens that the gateway had received."""
        return cls(
            cache_hit=prefill.hit_tokens,
            cache_owed=prefill.owed_tokens,
            cache_write=0,
            cache_miss=prefill.prompt_tokens - prefill.hit_tokens - prefill.owed_tokens,
            output=output,
        )

    @classmethod
    def none(cls) -> Self:
        """Usage of a request that reached no worker."""
        return cls(cache_hit=0, cache_owed=0, cache_write=0, cache_miss=0, output=0)
