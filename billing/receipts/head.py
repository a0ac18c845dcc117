"""Signed heads of the receipt log: how many leaves it had at a second, and the root over them."""

from dataclasses import dataclass
from typing import Final, Self

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from billing.receipts.merkle import HASH_BYTES
from engine.proof import signed
from engine.proof.ring import DeploymentRing
from engine.proof.signed import PayloadInvalid

KIND: Final = "kvitto.tree-head.v1"


@dataclass(frozen=True, slots=True)
class TreeHead:
    """The log at ``at_s``, a Unix second."""

    size: int
    root: bytes
    at_s: int

    def sign(self, key: Ed25519PrivateKey) -> str:
        """The signed document, as text."""
        payload = {"kind": KIND, "size": self.size, "root": self.root.hex(), "at_s": self.at_s}
        return signed.sign(key, payload)

    @classmethod
    def verify(cls, text: str, ring: DeploymentRing) -> Self:
        """Read a head that the deployment signed with the key it had then.

        Raises:
            SignatureInvalid: not signed by a key of the ring, or with one that was not in use.
            PayloadInvalid: signed, but no head of a log.
        """
        payload, key = ring.verify(text)
        match payload:
            case {"kind": kind, "size": int(size), "root": str(root), "at_s": int(at_s)} if kind == KIND:
                head = cls(size, _hash(root), at_s)
            case _:
                raise PayloadInvalid("not a tree head")
        key.check(at_s)
        return head


def _hash(text: str) -> bytes:
    try:
        raw = bytes.fromhex(text)
    except ValueError:
        raw = b""
    if len(raw) != HASH_BYTES:
        raise PayloadInvalid("the root of a tree head is no hash")
    return raw
