"""What passes between the cluster and a worker inside vLLM's ``kv_transfer_params``, in both directions.

The request carries who asks and for what; the answer of a prefill (``stage`` prefill or both, not streamed)
carries the signed attestation and the certificate of the key that signed it.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, Self

Stage = Literal["prefill", "decode", "both"]

REQUEST_ID: Final = "request_id"
ATTEMPT: Final = "attempt"
STAGE: Final = "stage"
RETENTION_CLASS: Final = "retention_class"
NONCE: Final = "nonce"
MEMO: Final = "memo"
TENANT: Final = "tenant"
SCOPE_DIGEST: Final = "scope_digest"

ATTESTATION: Final = "attestation"
CERTIFICATE: Final = "certificate"

GENERATE_PATH: Final = "/inference/v1/generate"
ABORT_PATH: Final = "/inference/v1/abort_requests"
HEALTH_PATH: Final = "/health"
# vLLM prefixes the request id it is given; aborts must name the prefixed id.
ENGINE_ID_PREFIX: Final = "generate-tokens-"

_TENANT: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")


class WireInvalid(ValueError):
    """Parameters of a request that no cluster of ours has written."""


@dataclass(frozen=True, slots=True)
class RequestParams:
    """One attempt of one request, as the cluster describes it to a worker.

    ``tenant`` becomes a folder of the store, so it is restricted to ``[A-Za-z0-9_-]{1,64}``. ``nonce`` has 32
    bytes; ``memo`` is the gateway's and opaque here; ``scope_digest`` says which salt was chosen, for logs.

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

    def __post_init__(self) -> None:
        if self.stage not in ("prefill", "decode", "both"):
            raise WireInvalid(f"stage is {self.stage!r}")
        if not _TENANT.fullmatch(self.tenant):
            raise WireInvalid("tenant is not a plain name")
        if len(self.nonce) != 32:
            raise WireInvalid("nonce has not 32 bytes")
        if self.attempt < 0 or not self.request_id:
            raise WireInvalid("request id or attempt is missing")

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
            }:
                try:
                    raw_nonce = bytes.fromhex(nonce)
                except ValueError as error:
                    raise WireInvalid("nonce is not hexadecimal") from error
                scope = str(params.get(SCOPE_DIGEST, ""))
                return cls(request_id, attempt, stage, retention_class, raw_nonce, memo, tenant, scope)
            case _:
                raise WireInvalid("parameters are missing or of the wrong type")


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
