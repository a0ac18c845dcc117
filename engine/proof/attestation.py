"""What workers attest: prefill the tokens it had and those it really loaded, decode the tokens it generated.

A worker that does both for one request attests twice, with stage ``both``: the prefill when the prompt is
computed, the decode when it has ended. One attempt has at most one attestation of each kind.
"""

import hashlib
import hmac
import struct
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, Final, Literal, Self
from uuid import UUID

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from engine.proof import signed
from engine.proof.certificate import WorkerCertificate
from engine.proof.signed import PayloadInvalid

PREFILL_KIND: Final = "kvitto.prefill-attestation.v2"
DECODE_KIND: Final = "kvitto.decode-attestation.v1"
NONCE_BYTES: Final = 32
Ended = Literal["stop", "length", "abort", "error"]


def commitment(nonce: bytes, token_ids: Sequence[int], images: Sequence[tuple[int, str]] = ()) -> str:
    """SHA-256 (hex) over a 32-byte nonce and token ids as big-endian uint32: binds without revealing.

    Tokens do not say which image they stand for. Where there are any among them, what is said above is hashed
    once more, behind ``kvitto images 1`` and before each image's place (big-endian uint64) and digest.

    Args:
        nonce: 32 secret bytes.
        token_ids: a prompt, or its beginning.
        images: where the tokens of each begin, and SHA-256 (hex) of its file; those behind the tokens do not
            count.

    Raises:
        PayloadInvalid: the nonce is not 32 bytes long, or a token id is outside uint32.
    """
    if len(nonce) != NONCE_BYTES:
        raise PayloadInvalid(f"a nonce has {NONCE_BYTES} bytes, not {len(nonce)}")
    try:
        packed = struct.pack(f">{len(token_ids)}I", *token_ids)
    except struct.error as error:
        raise PayloadInvalid("a token id is outside uint32") from error
    bound = hashlib.sha256(nonce + packed)
    begun = [(offset, digest) for offset, digest in images if offset < len(token_ids)]
    if not begun:
        return bound.hexdigest()
    places = (offset.to_bytes(8, "big") + bytes.fromhex(digest) for offset, digest in begun)
    return hashlib.sha256(b"kvitto images 1" + bound.digest() + b"".join(places)).hexdigest()


def prompt_nonce(secret: bytes, request_id: UUID) -> bytes:
    """The nonce of a request's commitments: it can be told again to who has the tenant's secret."""
    return hmac.digest(secret, request_id.bytes, "sha256")


class _Attestation:
    """What all kinds share: a payload that is signed, and read again from what was signed."""

    __slots__ = ()
    KIND: ClassVar[str]
    COUNTS: ClassVar[tuple[str, ...]]
    TEXTS: ClassVar[tuple[str, ...]]
    STAGES: ClassVar[tuple[str, str]]
    worker: str
    stage: str

    def _check_fields(self) -> None:
        for name in self.COUNTS:
            count = getattr(self, name)
            if type(count) is not int or count < 0:
                raise PayloadInvalid(f"{name} is {count!r}, not a count")
        for name in self.TEXTS:
            if not isinstance(getattr(self, name), str):
                raise PayloadInvalid(f"{name} is not text")
        if self.stage not in self.STAGES:
            raise PayloadInvalid(f"stage is {self.stage!r}")

    def to_payload(self) -> dict[str, Any]:
        """JSON object to sign; nanoseconds as text, because RFC 8785 ends at 2^53."""
        fields: dict[str, Any] = asdict(self)  # type: ignore[call-overload]  # all kinds are dataclasses
        return {"kind": self.KIND, **fields, "attested_at_ns": str(fields["attested_at_ns"])}

    @classmethod
    def from_payload(cls, payload: Mapping[str, Any]) -> Self:
        """Read what `to_payload` wrote; raises PayloadInvalid for anything else."""
        fields = dict(payload)
        if fields.pop("kind", None) != cls.KIND:
            raise PayloadInvalid(f"not a document of kind {cls.KIND}")
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
        """Read an attestation of this kind, signed by a certified worker about itself.

        Args:
            text: the signed document.
            ring: key id -> verified certificate, see `engine.proof.certificate.worker_ring`.

        Raises:
            SignatureInvalid: not signed by a key of the ring.
            PayloadInvalid: no such attestation, impossible counts, or a worker speaking for another.
        """
        payload = signed.verify(text, {key_id: c.public_key for key_id, c in ring.items()})
        return cls.said_by(ring[signed.key_id_in(text)], payload)

    @classmethod
    def said_by(cls, signer: WorkerCertificate, payload: Mapping[str, Any]) -> Self:
        """Read a payload that this worker signed; raises PayloadInvalid as `verify` does."""
        attestation = cls.from_payload(payload)
        if attestation.worker != signer.worker:
            raise PayloadInvalid(f"signed by another worker than {attestation.worker!r}")
        return attestation


@dataclass(frozen=True, slots=True)
class PrefillAttestation(_Attestation):
    """Tokens of one prefill, as its worker saw them.

    ``hit_tokens`` counts what really came from a cache, in whole blocks from the start of the prompt: blocks
    that vLLM still held (device) and blocks read from the store whose checksum matched. A block that was
    found but could not be loaded is not a hit. ``owed_tokens`` are promised blocks that were removed early.
    ``cached_prefix_commitment`` covers the first ``hit_tokens`` tokens. ``promised_until`` is the Unix second
    until which every full block of the prompt stays in the store; None when the worker promises nothing.
    ``computed`` is False when the request ended before its prompt was computed; nothing of it is billable.
    ``output_to`` is 1 when the first output token was drawn here and is the client's, else 0.

    Raises:
        PayloadInvalid: counts that cannot be.
    """

    KIND: ClassVar = PREFILL_KIND
    COUNTS: ClassVar = (
        *("attempt", "prompt_tokens", "hit_tokens", "owed_tokens", "hit_device_tokens", "hit_store_tokens"),
        *("block_tokens", "attested_at_ns", "output_to"),
    )
    TEXTS: ClassVar = (
        *("request_id", "stage", "worker", "namespace", "retention_class"),
        *("prompt_commitment", "cached_prefix_commitment", "memo"),
    )
    STAGES: ClassVar = ("prefill", "both")

    request_id: str
    attempt: int
    stage: Literal["prefill", "both"]
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
    computed: bool = True
    output_to: int = 0

    def __post_init__(self) -> None:
        self._check_fields()
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
        if type(self.computed) is not bool or self.output_to > int(self.computed):
            raise PayloadInvalid(f"computed is {self.computed!r} with {self.output_to} output tokens")


@dataclass(frozen=True, slots=True)
class DecodeAttestation(_Attestation):
    """Output tokens ``[output_from, output_to)`` of one request, as the worker that generated them saw it.

    ``output_from`` tokens came with the prompt, from the attempts before. ``handoff_tokens`` of the prompt
    came from a cache: what prefill, or an attempt before, had published for it; they are never the request's
    hits. ``ended`` is how it ended: an end token (stop), the length asked for, an abort, or an error.

    Raises:
        PayloadInvalid: counts that cannot be.
    """

    KIND: ClassVar = DECODE_KIND
    COUNTS: ClassVar = (
        "attempt",
        "prompt_tokens",
        "handoff_tokens",
        "output_from",
        "output_to",
        "attested_at_ns",
    )
    TEXTS: ClassVar = ("request_id", "stage", "worker", "namespace", "memo")
    STAGES: ClassVar = ("decode", "both")

    request_id: str
    attempt: int
    stage: Literal["decode", "both"]
    worker: str
    namespace: str
    prompt_tokens: int
    handoff_tokens: int
    output_from: int
    output_to: int
    ended: Ended
    memo: str
    attested_at_ns: int

    def __post_init__(self) -> None:
        self._check_fields()
        if self.ended not in ("stop", "length", "abort", "error"):
            raise PayloadInvalid(f"ended is {self.ended!r}")
        if self.output_to < self.output_from:
            raise PayloadInvalid(f"output from {self.output_from} to {self.output_to}")
        if self.prompt_tokens < 1 or self.handoff_tokens > self.prompt_tokens + self.output_from - 1:
            raise PayloadInvalid(f"{self.handoff_tokens} tokens handed over of {self.prompt_tokens}")


Attestation = PrefillAttestation | DecodeAttestation


class AttestationReader:
    """Reads attestations of either kind, signed by workers of a ring: see `PrefillAttestation.verify`."""

    def __init__(self, ring: Mapping[str, WorkerCertificate]) -> None:
        self._ring = ring
        self._keys = {key_id: certificate.public_key for key_id, certificate in ring.items()}

    def read(self, text: str) -> Attestation:
        """Read a signed document; raises as `PrefillAttestation.verify` does."""
        payload = signed.verify(text, self._keys)
        return _said_by(self._ring[signed.key_id_in(text)], payload)

    def read_canonical(self, raw: bytes, document: Any) -> Attestation:
        """Likewise, of canonical bytes and what they say; see `engine.proof.signed.verify_canonical`."""
        payload = signed.verify_canonical(raw, document, self._keys)
        return _said_by(self._ring[document["key_id"]], payload)


def read_attestation(text: str, ring: Mapping[str, WorkerCertificate]) -> Attestation:
    """Read a signed attestation of either kind; raises as `PrefillAttestation.verify` does."""
    return AttestationReader(ring).read(text)


def _said_by(signer: WorkerCertificate, payload: Mapping[str, Any]) -> Attestation:
    kind = payload.get("kind")
    if kind == PREFILL_KIND:
        return PrefillAttestation.said_by(signer, payload)
    if kind == DECODE_KIND:
        return DecodeAttestation.said_by(signer, payload)
    raise PayloadInvalid(f"no attestation: a document of kind {kind!r}")
