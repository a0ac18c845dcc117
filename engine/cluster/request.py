"""What is asked of the engine and what comes back: token ids in, token chunks out."""

import math
import re
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, Literal

from engine.wire import IMAGES_BYTES_MAX, LOGPROBS_MAX

NONCE_BYTES: Final = 32
_DIGEST: Final = re.compile(r"[0-9a-f]{64}")

FinishReason = Literal["stop", "length"]
ConstraintKind = Literal["json_object", "json", "regex", "structural_tag"]


@dataclass(frozen=True, slots=True)
class Constraint:
    """What the tokens of an answer must form.

    ``text`` is empty for ``json_object``, a JSON Schema for ``json``, a regular expression for ``regex``, and
    xgrammar's structural tag, as JSON, for ``structural_tag``.
    """

    kind: ConstraintKind
    text: str = ""


@dataclass(frozen=True, slots=True)
class Sampling:
    """How tokens are drawn.

    `stop_token_ids` must name every token that ends the answer (end of text, end of turn): workers run
    without a tokenizer and ignore the model's own end tokens otherwise. `temperature` 0 is greedy.
    `logprobs` asks for log probabilities, and for that many of the likeliest tokens (0 to `LOGPROBS_MAX`)
    beside each that was drawn: the model's own, before temperature and constraint. `top_k` 0 is no limit.
    """

    max_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    seed: int | None = None
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    stop_token_ids: tuple[int, ...] = ()
    constraint: Constraint | None = None
    logprobs: int | None = None
    top_k: int = 0
    repetition_penalty: float = 1.0

    def __post_init__(self) -> None:
        if self.max_tokens < 1:
            raise ValueError(f"max_tokens must be at least 1, got {self.max_tokens}")
        if self.logprobs is not None and not 0 <= self.logprobs <= LOGPROBS_MAX:
            raise ValueError(f"logprobs must be between 0 and {LOGPROBS_MAX}, got {self.logprobs}")

    @property
    def needs_decoder_state(self) -> bool:
        """Whether a token depends on more than the tokens before it, so that no other worker can go on."""
        return (
            self.seed is not None
            or self.presence_penalty != 0
            or self.frequency_penalty != 0
            or self.repetition_penalty != 1
            or self.constraint is not None
        )


@dataclass(frozen=True, slots=True)
class ImageInput:
    """One image of a prompt.

    Args:
        offset: where in the prompt the tokens begin that stand for it, markers included.
        tokens: how many they are: exactly those that the model's own processor makes of it.
        data: the file, PNG, JPEG, WebP or GIF.
        digest: SHA-256 of it in hexadecimal.
    """

    offset: int
    tokens: int
    data: bytes
    digest: str

    def __post_init__(self) -> None:
        if self.offset < 0 or self.tokens < 1:
            raise ValueError(f"an image cannot have {self.tokens} tokens at {self.offset}")
        if not self.data or not _DIGEST.fullmatch(self.digest):
            raise ValueError("an image has no bytes, or no digest")


@dataclass(frozen=True, slots=True)
class GenerateRequest:
    """One request.

    Args:
        request_id: canonical UUIDv7 string; what the attestation must name.
        tenant: random opaque id; isolates the prefix store and owns its directory there.
        scope: splits the tenant's store further (the client's user_id), `""` for none.
        prompt_ids: shape `[prompt_tokens]`, at least one.
        retention_class: `"agent"` or `"chat"`.
        nonce: 32 secret random bytes, hides the prompt in the attestation's commitments.
        memo: opaque to the engine, repeated in every attestation.
        weight: the tenant's share of a busy worker, above 0.
        images: in the order of their tokens, which do not overlap; `IMAGES_BYTES_MAX` bytes in all.
    """

    request_id: str
    tenant: str
    scope: str
    prompt_ids: tuple[int, ...]
    sampling: Sampling
    retention_class: str
    nonce: bytes
    memo: str
    weight: float = 1.0
    images: tuple[ImageInput, ...] = ()

    def __post_init__(self) -> None:
        if not self.request_id or not self.tenant:
            raise ValueError("request_id and tenant must not be empty")
        if not self.prompt_ids:
            raise ValueError("prompt_ids must not be empty")
        if len(self.nonce) != NONCE_BYTES:
            raise ValueError(f"nonce must have {NONCE_BYTES} bytes, got {len(self.nonce)}")
        if not 0 < self.weight < math.inf:
            raise ValueError(f"weight must be above 0, got {self.weight}")
        if any(after.offset < before.offset + before.tokens for before, after in pairwise(self.images)):
            raise ValueError("images must come in the order of their tokens, and not overlap")
        if self.images and self.images[-1].offset + self.images[-1].tokens > len(self.prompt_ids):
            raise ValueError("the last image's tokens go beyond the prompt")
        if sum(len(image.data) for image in self.images) > IMAGES_BYTES_MAX:
            raise ValueError(f"the images have more than {IMAGES_BYTES_MAX} bytes")


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """A drawn token's natural log probability, and the likeliest tokens with theirs, the likeliest first.

    ``top`` has as many as were asked for, whether or not the drawn token is among them. Minus infinity is
    -9999.0.
    """

    token_id: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True)
class TokenChunk:
    """Tokens in the order they were generated; `finish` is set on the last chunk only.

    A stop token that ended the answer is among `token_ids`. The last chunk may carry no token. `logprobs` has
    one for each token where they were asked for, and is empty elsewhere.
    """

    token_ids: tuple[int, ...]
    finish: FinishReason | None = None
    logprobs: tuple[TokenLogprobs, ...] = ()
