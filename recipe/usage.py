"""Token counts in each protocol's usage fields, and read back from them.

The buckets are disjoint: ``hit + owed + miss`` is the prompt (with ``write``, where a provider reports it),
and reasoning is a part of output. A client is told ``hit + owed`` as cache hits: both are billed at the hit
rate.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from recipe.errors import UsageMalformed


class Usage(Protocol):
    """Tokens of one request, as whoever metered them counts them."""

    @property
    def hit(self) -> int:
        """Prompt tokens served from cache."""

    @property
    def owed(self) -> int:
        """Prompt tokens computed, but promised from cache and billed as hits."""

    @property
    def miss(self) -> int:
        """Prompt tokens computed, cache writes among them."""

    @property
    def output(self) -> int:
        """Generated tokens, reasoning among them."""

    @property
    def reasoning(self) -> int:
        """Generated tokens of the reasoning."""


@dataclass(frozen=True, slots=True)
class Buckets:
    """Disjoint token counts; raises UsageMalformed when one is negative or reasoning exceeds output."""

    hit: int
    miss: int
    output: int
    owed: int = 0
    write: int = 0
    reasoning: int = 0

    def __post_init__(self) -> None:
        counts = (self.hit, self.owed, self.write, self.miss, self.output, self.reasoning)
        if min(counts) < 0:
            raise UsageMalformed(f"a token count is negative: {counts}")
        if self.reasoning > self.output:
            raise UsageMalformed(f"{self.reasoning} reasoning tokens of {self.output} output tokens")

    @property
    def prompt(self) -> int:
        """All input tokens."""
        return self.hit + self.owed + self.write + self.miss


def chat_usage(usage: Usage) -> dict[str, Any]:
    """The ``usage`` object of a chat completion: OpenAI's fields and DeepSeek's."""
    cached = usage.hit + usage.owed
    prompt = cached + usage.miss
    return {
        "prompt_tokens": prompt,
        "completion_tokens": usage.output,
        "total_tokens": prompt + usage.output,
        "prompt_cache_hit_tokens": cached,
        "prompt_cache_miss_tokens": usage.miss,
        "prompt_tokens_details": {"cached_tokens": cached},
        "completion_tokens_details": {"reasoning_tokens": usage.reasoning},
    }


def messages_usage(usage: Usage) -> dict[str, Any]:
    """The ``usage`` object of Messages: its input counts stand beside each other, none includes another.

    What is written to the cache is no bucket of its own here, it is in ``input_tokens``.
    """
    return {
        "input_tokens": usage.miss,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": usage.hit + usage.owed,
        "output_tokens": usage.output,
    }


def responses_usage(usage: Usage) -> dict[str, Any]:
    """The ``usage`` object of a response. Tokens written to the cache are misses like others."""
    cached = usage.hit + usage.owed
    prompt = cached + usage.miss
    return {
        "input_tokens": prompt,
        "input_tokens_details": {"cached_tokens": cached, "cache_write_tokens": 0},
        "output_tokens": usage.output,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning},
        "total_tokens": prompt + usage.output,
    }


def read_usage(document: Mapping[str, Any]) -> Buckets:
    """Buckets of a usage object in OpenAI's (chat or Responses), DeepSeek's or Anthropic's fields.

    ``owed`` cannot be told apart on the wire and comes back as ``hit``.

    Raises:
        UsageMalformed: a count is missing, no whole number, negative, or contradicts another one. Two
            spellings of the same count must agree; they are never added.
    """
    if "prompt_tokens" in document:
        return _inclusive(document, "prompt", "completion")
    if "input_tokens" not in document:
        raise UsageMalformed("neither prompt_tokens nor input_tokens is there")
    responses = document.keys() & {"input_tokens_details", "output_tokens_details", "total_tokens"}
    if not responses:
        return _disjoint(document)
    if any(name.startswith("cache_") for name in document):
        raise UsageMalformed(f"{min(responses)} beside Anthropic's counts of the cache")
    return _inclusive(document, "input", "output")


def _inclusive(document: Mapping[str, Any], given: str, made: str) -> Buckets:
    """OpenAI and DeepSeek: cached and written tokens are a part of the prompt's."""
    prompt, output = _count(document, f"{given}_tokens"), _count(document, f"{made}_tokens")
    if "total_tokens" in document and _count(document, "total_tokens") != prompt + output:
        raise UsageMalformed("total_tokens is not the sum of prompt and completion")
    details = document.get(f"{given}_tokens_details")
    hit = _agreed(
        "cached tokens",
        (*_optional(document, "prompt_cache_hit_tokens"), *_optional(details, "cached_tokens")),
    )
    write = sum(_optional(details, "cache_write_tokens"))
    if hit + write > prompt:
        raise UsageMalformed(f"{hit} cached and {write} written tokens of {prompt} prompt tokens")
    for miss in _optional(document, "prompt_cache_miss_tokens"):
        if hit + miss != prompt:
            raise UsageMalformed(f"hit {hit} and miss {miss} are not the prompt's {prompt}")
    reasoning = sum(_optional(document.get(f"{made}_tokens_details"), "reasoning_tokens"))
    return Buckets(hit=hit, miss=prompt - hit - write, output=output, write=write, reasoning=reasoning)


def _disjoint(document: Mapping[str, Any]) -> Buckets:
    """Anthropic: input, cache reads and cache writes stand beside each other."""
    by_age = document.get("cache_creation")
    lasting = [
        tokens
        for age in ("ephemeral_5m_input_tokens", "ephemeral_1h_input_tokens")
        for tokens in _optional(by_age, age)
    ]
    sums = (sum(lasting),) if lasting else ()
    return Buckets(
        hit=sum(_optional(document, "cache_read_input_tokens")),
        write=_agreed("written tokens", (*_optional(document, "cache_creation_input_tokens"), *sums)),
        miss=_count(document, "input_tokens"),
        output=_count(document, "output_tokens"),
    )


def _agreed(what: str, spellings: tuple[int, ...]) -> int:
    """The one count that is spelt in several ways; 0 where it is in none."""
    if len(set(spellings)) > 1:
        raise UsageMalformed(f"two counts of {what}: {sorted(spellings)}")
    return spellings[0] if spellings else 0


def _count(document: Mapping[str, Any], name: str) -> int:
    counts = _optional(document, name)
    if not counts:
        raise UsageMalformed(f"{name} is missing")
    return counts[0]


def _optional(document: Any, name: str) -> tuple[int, ...]:
    """The count of that name as a tuple of one, or of none when it is absent or null."""
    count = document.get(name) if isinstance(document, Mapping) else None
    if count is None:
        return ()
    if isinstance(count, bool) or not isinstance(count, int):
        raise UsageMalformed(f"{name} is no whole number")
    if count < 0:
        raise UsageMalformed(f"{name} is negative")
    return (count,)
