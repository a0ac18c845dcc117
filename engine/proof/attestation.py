"""What a prefill worker attests: the tokens it had, those it really loaded, and how long it keeps them."""

import hashlib
import struct
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final, Literal, Self

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from engine.proof import signed
from engine.proof.certificate import WorkerCertificate
from engine.proof.signed import PayloadInvalid

KIND: Final = "kvitto.prefill-attestation.v1"
NONCE_BYTES: Final = 32
Stage = Literal["prefill", "both"]

_COUNTS: Final = (
    "attempt",
    "prompt_tokens",
    "hit_tokens",
    "owed_tokens",
    "hit_device_tokens",
    "hit_store_tokens",
    "block_tokens",
    "attested_at_ns",
)
_TEXTS: Final = (
    "request_id",
    "stage",
    "worker",
    "namespace",
    "retention_class",
    "prompt_commitment",
    "cached_prefix_commitment",
    "memo",
)


def commitment(nonce: bytes, token_ids: Sequence[int]) -> str:
    """SHA-256 (hex) over a 32-byte nonce and token ids as big-endian uint32: binds without revealing.

    Raises:
        PayloadInvalid: the nonce is not 32 bytes long, or a token id is outside uint32.
    """
    if len(nonce) != NONCE_BYTES:
        raise PayloadInvalid(f"a nonce has {NONCE_BYTES} bytes, not {len(nonce)}")
    try:
        packed = struct.pack(f">{len(token_ids)}I", *token_ids)
    except struct.error as error:
        raise PayloadInvalid("a token id is outside uint32") from error
    return hashlib.sha256(nonce + packed).hexdigest()


@dataclass(frozen=True, slots=True)
class PrefillAttestation:
    """Tokens of one prefill, as its worker saw them.

    ``hit_tokens`` counts what really came from a cache, in whole blocks from the start of the prompt: blocks
    that vLLM still held (device) and blocks read from the store whose checksum matched. A block that was
    found but could not be loaded is not a hit. ``owed_tokens`` are promised blocks that were removed early.
    ``cached_prefix_commitment`` covers the first ``hit_tokens`` tokens. ``promised_until`` is the Unix second
    until which every full block of the prompt stays in the store; None when the worker promises nothing.

    Raises:
        PayloadInvalid: counts that cannot be.
    """

    request_id: str
    attempt: int
    stage: Stage
    worker: str
    namespace: str
    prompt_tokens: int
    hit_tokens: int
    owed_tokens: int
    hit_device_tokens: int
    hit_store_tokens: int
    block_tokens: int
    retention_class: str
    promised_until: int | None
    prompt_commitment: str
    cached_prefix_commitment: str
    memo: str
    attested_at_ns: int

    def __post_init__(self) -> None:
        for name in _COUNTS:
            count = getattr(self, name)
            if type(count) is not int or count < 0:
                raise PayloadInvalid(f"{name} is {count!r}, not a count")
        for name in _TEXTS:
            if not isinstance(getattr(self, name), str):
                raise PayloadInvalid(f"{name} is not text")
        if self.stage not in ("prefill", "both"):
            raise PayloadInvalid(f"stage is {self.stage!r}")
        if self.promised_until is not None and (
            type(self.promised_until) is not int or self.promised_until < 0
        ):
            raise PayloadInvalid(f"promised_until is {self.promised_until!r}")
        if self.prompt_tokens < 1 or self.hit_tokens + self.owed_tokens > self.prompt_tokens - 1:
            raise PayloadInvalid(
                f"{self.hit_tokens} hit and {self.owed_tokens} owed of {self.prompt_tokens} prompt tokens"
            )
        if self.hit_device_tokens + self.hit_store_tokens != self.hit_tokens:
            raise PayloadInvalid("hit tokens by tier do not sum to the hit tokens")

    def to_payload(self) -> dict[str, Any]:
        """JSON object to sign; nanoseconds as text, because RFC 8785 ends at 2^53."""
        return {"kind": KIND, **asdict(self), "attested_at_ns": str(self.attested_at_ns)}

    @classmethod
    def from_payload(cls, payload: Mapping[str, Any]) -> Self:
        """Read what `to_payload` wrote; raises PayloadInvalid for anything else."""
        fields = dict(payload)
        if fields.pop("kind", None) != KIND:
            raise PayloadInvalid("not a prefill attestation")
        at_ns = fields.get("attested_at_ns")
        if not isinstance(at_ns, str) or not at_ns.isascii() or not at_ns.isdigit():
            raise PayloadInvalid(f"attested_at_ns is {at_ns!r}")
        fields["attested_at_ns"] = int(at_ns)
        try:
            return cls(**fields)
        except TypeError as error:
            raise PayloadInvalid(str(error)) from error

    def sign(self, worker_key: Ed25519PrivateKey) -> str:
        """The signed document, as text."""
        return signed.sign(worker_key, self.to_payload())

    @classmethod
    def verify(cls, text: str, ring: Mapping[str, WorkerCertificate]) -> Self:
        """Read an attestation signed by a certified worker about itself.

        Args:
            text: the signed document.
            ring: key id -> verified certificate, see `engine.proof.certificate.worker_ring`.

        Raises:
            SignatureInvalid: not signed by a key of the ring.
            PayloadInvalid: no attestation, impossible counts, or a worker speaking for another.
        """
        document = signed.verify(text, {key_id: c.public_key for key_id, c in ring.items()})
        attestation = cls.from_payload(document)
        if attestation.worker != ring[signed.key_id_in(text)].worker:
            raise PayloadInvalid(f"signed by another worker than {attestation.worker!r}")
        return attestation
