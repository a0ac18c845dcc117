"""What passes between the cluster and a worker: vLLM's ``kv_transfer_params``, the journal, the report.

The request carries who asks and for what; the answer of a prefill that is not streamed carries the signed
attestation and the certificate of the key that signed it. Streams bring nothing back, so workers keep a
journal of all that they attest, which the control plane drains and acknowledges.
"""

import math
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final, Literal, Self

Stage = Literal["prefill", "decode", "both"]
# A call of no stage: what it computes is no token, and nobody attests or bills it.
Encode = Literal["encode"]

REQUEST_ID: Final = "request_id"
ATTEMPT: Final = "attempt"
STAGE: Final = "stage"
RETENTION_CLASS: Final = "retention_class"
NONCE: Final = "nonce"
MEMO: Final = "memo"
TENANT: Final = "tenant"
SCOPE_DIGEST: Final = "scope_digest"
OUTPUT_FROM: Final = "output_from"
FIRST_TOKEN: Final = "first_token"  # noqa: S105 -- a token of output
WEIGHT: Final = "weight"

ATTESTATION: Final = "attestation"
CERTIFICATE: Final = "certificate"

GENERATE_PATH: Final = "/inference/v1/generate"
ABORT_PATH: Final = "/inference/v1/abort_requests"
HEALTH_PATH: Final = "/health"
# Ours, served by `engine.worker.routes` beside vLLM's own.
JOURNAL_PATH: Final = "/kvitto/journal"
ACKNOWLEDGE_PATH: Final = "/kvitto/journal/acknowledge"
ATTESTATIONS_PATH: Final = "/kvitto/attestations"
REPORT_PATH: Final = "/kvitto/report"
DRAIN_PATH: Final = "/kvitto/drain"
# vLLM prefixes the request id it is given; aborts must name the prefixed id.
ENGINE_ID_PREFIX: Final = "generate-tokens-"

# A request's images, beside vLLM's own fields of a call: `engine.worker.images` takes them out of it.
IMAGES: Final = "images"
IMAGES_BYTES_MAX: Final = 32 * 1024**2
# How a refusal begins that blames an image.
IMAGE_REFUSED: Final = "an image is refused: "

# Likeliest tokens that a request may be told of beside each drawn one.
LOGPROBS_MAX: Final = 20

_TENANT: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")
_DIGEST: Final = re.compile(r"[0-9a-f]{64}")


class WireInvalid(ValueError):
    """Parameters of a request that no cluster of ours has written."""


@dataclass(frozen=True, slots=True)
class RequestParams:
    """One attempt of one request, as the cluster describes it to a worker.

    ``tenant`` becomes a folder of the store, so it is restricted to ``[A-Za-z0-9_-]{1,64}``. ``nonce`` has 32
    bytes; ``memo`` is the gateway's and opaque here; ``scope_digest`` says which salt was chosen, for logs.
    ``attempt`` numbers all calls of the request, whatever their stage. Of the tokens sent, the last
    ``output_from`` are output of attempts before. ``first_token``: the token that a prefill draws is the
    client's, and attested. ``weight`` is the tenant's share of a busy worker, above 0. ``images`` is said by
    the worker itself, of what came: where the tokens of each begin, and SHA-256 (hex) of its file.

    Raises:
        WireInvalid: a field that cannot be.
    """

    request_id: str
    attempt: int
    stage: Stage
    retention_class: str
    nonce: bytes
    memo: str
    tenant: str
    scope_digest: str = ""
    output_from: int = 0
    first_token: bool = False
    weight: float = 1.0
    images: tuple[tuple[int, str], ...] = ()

    def __post_init__(self) -> None:
        if self.stage not in ("prefill", "decode", "both"):
            raise WireInvalid(f"stage is {self.stage!r}")
        if not _TENANT.fullmatch(self.tenant):
            raise WireInvalid("tenant is not a plain name")
        if len(self.nonce) != 32:
            raise WireInvalid("nonce has not 32 bytes")
        if self.attempt < 0 or not self.request_id:
            raise WireInvalid("request id or attempt is missing")
        if self.output_from < 0:
            raise WireInvalid(f"output_from is {self.output_from}")
        if not 0 < self.weight < math.inf:
            raise WireInvalid(f"weight is {self.weight}")

    def to_params(self) -> dict[str, Any]:
        """The ``kv_transfer_params`` of a request (JSON object)."""
        return {
            REQUEST_ID: self.request_id,
            ATTEMPT: self.attempt,
            STAGE: self.stage,
            RETENTION_CLASS: self.retention_class,
            NONCE: self.nonce.hex(),
            MEMO: self.memo,
            TENANT: self.tenant,
            SCOPE_DIGEST: self.scope_digest,
            OUTPUT_FROM: self.output_from,
            FIRST_TOKEN: self.first_token,
            WEIGHT: self.weight,
        }

    @classmethod
    def from_params(cls, params: Mapping[str, Any]) -> Self:
        """Read what `to_params` wrote; raises WireInvalid."""
        match params:
            case {
                "request_id": str(request_id),
                "attempt": int(attempt),
                "stage": "prefill" | "decode" | "both" as stage,
                "retention_class": str(retention_class),
                "nonce": str(nonce),
                "memo": str(memo),
                "tenant": str(tenant),
                "output_from": int(output_from),
                "first_token": bool(first_token),
                "weight": float(weight) | int(weight),
            }:
                try:
                    raw_nonce = bytes.fromhex(nonce)
                except ValueError as error:
                    raise WireInvalid("nonce is not hexadecimal") from error
                return cls(
                    request_id=request_id,
                    attempt=attempt,
                    stage=stage,
                    retention_class=retention_class,
                    nonce=raw_nonce,
                    memo=memo,
                    tenant=tenant,
                    scope_digest=str(params.get(SCOPE_DIGEST, "")),
                    output_from=output_from,
                    first_token=first_token,
                    weight=float(weight),
                    images=_images(params.get(IMAGES, ())),
                )
            case _:
                raise WireInvalid("parameters are missing or of the wrong type")


def _images(said: object) -> tuple[tuple[int, str], ...]:
    images = []
    for image in said if isinstance(said, list | tuple) else [said]:
        match image:
            case [int(offset), str(digest)] if offset >= 0 and _DIGEST.fullmatch(digest):
                images.append((offset, digest))
            case _:
                raise WireInvalid("an image has no place or no digest")
    return tuple(images)


@dataclass(frozen=True, slots=True)
class AnswerParams:
    """What a prefill hands back: its signed attestation, and the certificate of the key that signed it."""

    attestation: str
    certificate: str

    def to_params(self) -> dict[str, Any]:
        """The ``kv_transfer_params`` of an answer (JSON object)."""
        return {ATTESTATION: self.attestation, CERTIFICATE: self.certificate}

    @classmethod
    def from_params(cls, params: object) -> Self:
        """Read what `to_params` wrote; raises WireInvalid (also when the worker attested nothing)."""
        match params:
            case {"attestation": str(attestation), "certificate": str(certificate)}:
                return cls(attestation, certificate)
            case _:
                raise WireInvalid("the worker attested nothing")


@dataclass(frozen=True, slots=True)
class JournalLine:
    """One attestation in a worker's journal.

    ``sequence`` rises by one a line for the life of the journal's folder, restarts included.
    """

    sequence: int
    attestation: str
    certificate: str

    def to_json(self) -> dict[str, Any]:
        """A JSON object."""
        return asdict(self)

    @classmethod
    def from_json(cls, line: object) -> Self:
        """Read what `to_json` wrote; raises WireInvalid."""
        match line:
            case {
                "sequence": int(sequence),
                "attestation": str(attestation),
                "certificate": str(certificate),
            }:
                return cls(sequence, attestation, certificate)
            case _:
                raise WireInvalid("no line of a journal")


@dataclass(frozen=True, slots=True)
class WorkerReport:
    """What a worker says of itself now.

    ``running`` and ``waiting`` count requests, ``kv_tokens`` what the running ones hold in its KV cache,
    ``prefill_tokens`` what is left to compute of all prompts it was given. ``law`` is its cost law (base,
    seconds a token, seconds a pair; `engine.cost.CostLaw`) when it has measured one. ``namespace`` names its
    blocks in the store; empty when it has no store. Of the ``drafted`` tokens since its process began so many
    were ``accepted``: drawn as drafted.
    """

    running: int
    waiting: int
    kv_tokens: int
    prefill_tokens: int
    draining: bool
    namespace: str
    law: tuple[float, float, float] | None = None
    drafted: int = 0
    accepted: int = 0

    def to_json(self) -> dict[str, Any]:
        """A JSON object."""
        return {**asdict(self), "law": None if self.law is None else list(self.law)}

    @classmethod
    def from_json(cls, report: object) -> Self:
        """Read what `to_json` wrote; raises WireInvalid."""
        match report:
            case {
                "running": int(running),
                "waiting": int(waiting),
                "kv_tokens": int(kv_tokens),
                "prefill_tokens": int(prefill_tokens),
                "draining": bool(draining),
                "namespace": str(namespace),
                "law": None | [float() | int(), float() | int(), float() | int()] as law,
                "drafted": int(drafted),
                "accepted": int(accepted),
            } if min(running, waiting, kv_tokens, prefill_tokens, accepted, drafted - accepted) >= 0:
                terms = None if law is None else (float(law[0]), float(law[1]), float(law[2]))
                return cls(
                    running,
                    waiting,
                    kv_tokens,
                    prefill_tokens,
                    draining,
                    namespace,
                    terms,
                    drafted,
                    accepted,
                )
            case _:
                raise WireInvalid("no report of a worker")
