"""The keys of a deployment, one after the other. Each signs the next: who trusts the first knows them all.

A rotation states the next key and the second from which on it signs; the key before signs nothing dated
later. The ring travels as JSON ``{"kind", "anchor", "rotations"}``: the first key, signed rotations in order.
"""

import base64
import binascii
import json
from dataclasses import dataclass, field
from typing import Any, Final, Self

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from engine.proof import signed
from engine.proof.signed import PayloadInvalid, SignatureInvalid

RING_KIND: Final = "kvitto.key-ring.v1"
ROTATION_KIND: Final = "kvitto.key-rotation.v1"


@dataclass(frozen=True, slots=True)
class RingKey:
    """A key that signs what is dated ``[since_s, until_s)``, Unix seconds; the present one has no end."""

    public: Ed25519PublicKey
    since_s: int
    until_s: int | None = None

    @property
    def id(self) -> str:
        """Key id that its documents name."""
        return signed.key_id_of(self.public)

    def check(self, dated_s: int) -> None:
        """Raise SignatureInvalid where the key does not sign what is dated so."""
        if dated_s < self.since_s or (self.until_s is not None and dated_s >= self.until_s):
            raise SignatureInvalid(f"{self.id} signs nothing that is dated {dated_s}")


@dataclass(frozen=True, slots=True)
class DeploymentRing:
    """All keys of a deployment, the oldest first, and the signed rotations that join them."""

    keys: tuple[RingKey, ...]
    rotations: tuple[str, ...] = ()

    @classmethod
    def of(cls, anchor: Ed25519PublicKey) -> Self:
        """The ring of a deployment that has had one key."""
        return cls((RingKey(anchor, 0),))

    @classmethod
    def read(cls, text: str) -> Self:
        """Read what `to_text` wrote and verify each step. Whether its anchor is trusted is for the caller.

        Raises:
            PayloadInvalid: no ring, or a rotation that does not follow.
            SignatureInvalid: a rotation that the key before it did not sign.
        """
        try:
            written = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise PayloadInvalid("a key ring is JSON") from error
        match written:
            case {"kind": kind, "anchor": str(anchor), "rotations": [*rotations]} if kind == RING_KIND:
                ring = cls.of(_key(anchor))
            case _:
                raise PayloadInvalid("not a key ring")
        for rotation in rotations:
            ring = ring._extended(signed.canonical(rotation).decode())  # noqa: SLF001 -- of this class
        return ring

    def to_text(self) -> str:
        """Canonical JSON."""
        rotations = [json.loads(rotation) for rotation in self.rotations]
        ring = {"kind": RING_KIND, "anchor": _text(self.anchor), "rotations": rotations}
        return signed.canonical(ring).decode()

    @property
    def anchor(self) -> Ed25519PublicKey:
        """The key that has to be trusted for all the others."""
        return self.keys[0].public

    @property
    def present(self) -> RingKey:
        """The key that signs now."""
        return self.keys[-1]

    def rotated(self, present: Ed25519PrivateKey, following: Ed25519PublicKey, at_s: int) -> Self:
        """The ring in which ``following`` signs from ``at_s`` on.

        Raises:
            SignatureInvalid: ``present`` is not the key that signs now.
            PayloadInvalid: the key was in use before, or ``at_s`` is not behind the last rotation.
        """
        payload = {
            "kind": ROTATION_KIND,
            "position": len(self.keys),
            "public_key": _text(following),
            "rotated_at_s": at_s,
        }
        return self._extended(signed.sign(present, payload))

    def verify(self, text: str) -> tuple[dict[str, Any], RingKey]:
        """Payload of a document and the key of the ring that signed it; the caller checks its date.

        Raises:
            SignatureInvalid: signed by no key of the ring.
        """
        payload = signed.verify(text, {key.id: key.public for key in self.keys})
        key_id = signed.key_id_in(text)
        return payload, next(key for key in self.keys if key.id == key_id)

    def _extended(self, rotation: str) -> Self:
        before = self.present
        match signed.verify(rotation, {before.id: before.public}):
            case {
                "kind": kind,
                "position": int(position),
                "public_key": str(public_key),
                "rotated_at_s": int(at_s),
            } if kind == ROTATION_KIND:
                following = RingKey(_key(public_key), at_s)
            case _:
                raise PayloadInvalid("not a rotation of keys")
        if position != len(self.keys) or at_s <= before.since_s:
            raise PayloadInvalid(f"rotation {position} does not follow on {len(self.keys) - 1}")
        if following.id in {key.id for key in self.keys}:
            raise PayloadInvalid(f"{following.id} was in use before")
        keys = (*self.keys[:-1], RingKey(before.public, before.since_s, at_s), following)
        return type(self)(keys, (*self.rotations, rotation))


@dataclass(frozen=True, slots=True)
class RingSigner:
    """Who signs for a deployment: the private key of its ring's present one.

    Raises:
        PayloadInvalid: it is the private key of another.
    """

    ring: DeploymentRing
    private: Ed25519PrivateKey = field(repr=False)

    def __post_init__(self) -> None:
        own = signed.key_id_of(self.private.public_key())
        if own != self.ring.present.id:
            raise PayloadInvalid(f"{own} is not the key that signs now, {self.ring.present.id}")

    def dated(self, now_s: int) -> int:
        """The Unix second to date a document by: never before the key was in use, whatever a clock says."""
        return max(now_s, self.ring.present.since_s)


def _text(key: Ed25519PublicKey) -> str:
    return base64.b64encode(signed.public_bytes(key)).decode()


def _key(text: str) -> Ed25519PublicKey:
    try:
        return signed.public_key(base64.b64decode(text, validate=True))
    except binascii.Error as error:
        raise PayloadInvalid("public key is not base64") from error
