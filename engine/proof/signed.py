"""Signed documents: canonical JSON (RFC 8785) under an Ed25519 signature.

A document travels as JSON text ``{"key_id", "payload", "signature"}``. The signature covers the canonical
bytes of ``{"key_id", "payload"}``, so a document cannot be re-attributed to another key.

ProofInvalid
├── SignatureInvalid      not a document, unknown key, or the signature does not match
└── PayloadInvalid        signed, but not what its kind says it is
"""

import base64
import hashlib
import json
from collections.abc import Mapping
from typing import Any, Final

import msgspec
import rfc8785
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
)

from engine.proof import ed25519

_INTEGER_MAX: Final = 2**53 - 1
_SIGNED_END: Final = b',"signature":"'
# Alike are what numbers consist of, what stands before one in a list, and bytes that begin a letter beyond
# U+FFFF, which sorts otherwise in UTF-16.
_ALIKE: Final = bytes.maketrans(b"-123456789[\xf1\xf2\xf3\xf4", b"0000000000,\xf0\xf0\xf0\xf0")
# A number in a list, and one that a double may not hold; some text only looks so.
_ODD: Final = (b"\xf0", b",0", b'":' + 16 * b"0")


class _Fraction(Exception):
    """A number is no integer."""

    @classmethod
    def found(cls, _: str) -> Any:
        raise cls


_WHOLE: Final = msgspec.json.Decoder(float_hook=_Fraction.found)


class ProofInvalid(Exception):
    """Root of what can be wrong with a proof."""


class SignatureInvalid(ProofInvalid):
    """The text is no document signed by a key we trust."""


class PayloadInvalid(ProofInvalid):
    """The payload is signed but does not state what its kind must state."""


def canonical(value: Any) -> bytes:
    """Encode a JSON value as RFC 8785 does. Integers beyond 2^53 must be written as strings by the caller.

    Raises:
        PayloadInvalid: the value has no canonical form (too large an integer, NaN, a non-JSON type).
    """
    try:
        # Forty times faster, and the same for what our documents consist of.
        return msgspec.json.encode(value, order="sorted") if _plain(value) else rfc8785.dumps(value)
    except (rfc8785.CanonicalizationError, UnicodeEncodeError) as error:
        raise PayloadInvalid(str(error)) from error


def canonical_value(text: bytes) -> Any:
    """What canonical JSON says: no byte of it can be changed that changes nothing.

    Raises:
        PayloadInvalid: the text is no JSON, or not canonical.
    """
    try:
        value, written = _simply(text) or _canonically(text)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise PayloadInvalid(str(error)) from error
    if written != text:
        raise PayloadInvalid("not canonical JSON")
    return value


def _canonically(text: bytes) -> tuple[Any, bytes]:
    value = msgspec.json.decode(text)
    return value, canonical(value)


def _simply(text: bytes) -> tuple[Any, bytes] | None:
    """Likewise, where the text alone shows that msgspec writes its value as RFC 8785 does; else None."""
    alike = text.translate(_ALIKE)
    if text[:1] not in (b"{", b"[") or any(odd in alike for odd in _ODD):
        return None
    try:
        value = _WHOLE.decode(text)
    except _Fraction:
        return None
    return value, msgspec.json.encode(value, order="sorted")


def _plain(value: Any) -> bool:
    """Whether it has ASCII names alone, and no numbers but integers: only others are written specially."""
    kind = type(value)
    if kind is str or kind is bool or value is None:
        return True
    if kind is dict:
        return all(type(name) is str and name.isascii() and _plain(each) for name, each in value.items())
    if kind is int:
        return bool(-_INTEGER_MAX <= value <= _INTEGER_MAX)
    return kind is list and all(map(_plain, value))


def public_bytes(key: Ed25519PublicKey) -> bytes:
    """The raw 32 bytes of a public key."""
    return key.public_bytes(Encoding.Raw, PublicFormat.Raw)


def public_key(raw: bytes) -> Ed25519PublicKey:
    """A public key from its raw 32 bytes; raises PayloadInvalid for anything else."""
    try:
        return Ed25519PublicKey.from_public_bytes(raw)
    except ValueError as error:
        raise PayloadInvalid(str(error)) from error


def key_id_of(key: Ed25519PublicKey) -> str:
    """Name of a key: ``ed25519_`` and 32 hex digits of the SHA-256 of its raw bytes."""
    return "ed25519_" + hashlib.sha256(public_bytes(key)).hexdigest()[:32]


def private_pem(key: Ed25519PrivateKey) -> bytes:
    """PKCS#8 PEM without a passphrase; whoever writes it restricts the file to mode 0600."""
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def private_key(pem: bytes) -> Ed25519PrivateKey:
    """Read a private key back; raises PayloadInvalid when it is no Ed25519 key."""
    try:
        key = load_pem_private_key(pem, password=None)
    except (ValueError, TypeError) as error:
        raise PayloadInvalid(str(error)) from error
    if not isinstance(key, Ed25519PrivateKey):
        raise PayloadInvalid("not an Ed25519 private key")
    return key


def sign(key: Ed25519PrivateKey, payload: Mapping[str, Any]) -> str:
    """Sign a payload; returns the document as canonical JSON text."""
    body = {"key_id": key_id_of(key.public_key()), "payload": dict(payload)}
    signature = base64.b64encode(key.sign(canonical(body))).decode()
    return canonical({**body, "signature": signature}).decode()


def verify(text: str, public_keys: Mapping[str, Ed25519PublicKey]) -> dict[str, Any]:
    """Return the payload of a document signed by one of ``public_keys`` (key id -> key).

    Raises:
        SignatureInvalid: malformed text, a key that is not among them, or a wrong signature.
    """
    try:
        document = json.loads(text)
        signed = canonical({"key_id": document["key_id"], "payload": document["payload"]})
    except (ValueError, KeyError, TypeError, RecursionError, PayloadInvalid) as error:
        raise SignatureInvalid("not a signed document") from error
    return _verified(document, signed, public_keys)


def verify_canonical(
    raw: bytes, document: Any, public_keys: Mapping[str, Ed25519PublicKey]
) -> dict[str, Any]:
    """Likewise, where the caller has seen ``canonical(document) == raw``, of it or of what it is part of.

    Nothing is written again: what was signed is all that stands before the signature.
    """
    signed, _, _ = raw.rpartition(_SIGNED_END)
    return _verified(document, signed + b"}", public_keys)


def _verified(document: Any, signed: bytes, public_keys: Mapping[str, Ed25519PublicKey]) -> dict[str, Any]:
    if not isinstance(document, dict) or document.keys() != {"key_id", "payload", "signature"}:
        raise SignatureInvalid("not a signed document")
    key_id, payload, text = document["key_id"], document["payload"], document["signature"]
    key = public_keys.get(key_id) if isinstance(key_id, str) else None
    if key is None or not isinstance(payload, dict):
        raise SignatureInvalid(f"no trusted key {key_id!r}")
    try:
        signature = base64.b64decode(text, validate=True)
    except (ValueError, TypeError) as error:
        raise SignatureInvalid("not a signed document") from error
    if base64.b64encode(signature).decode() != text:
        raise SignatureInvalid("not a signed document")  # its last letter has bits to spare
    if not ed25519.matches(key, signature, signed):
        raise SignatureInvalid(f"the signature of {key_id} does not match")
    return payload


def key_id_in(text: str) -> str:
    """Key id that a verified document names."""
    return str(json.loads(text)["key_id"])
