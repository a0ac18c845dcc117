"""Both libraries say the same of signatures that are made to tell them apart."""

import os
from hashlib import sha512

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from engine.proof import ed25519

P = 2**255 - 19
ORDER = 2**252 + 27742317777372353535851937790883648493
D = -121665 * pow(121666, -1, P) % P
Point = tuple[int, int]
NEUTRAL: Point = (0, 1)
OF_ORDER_TWO: Point = (0, P - 1)


def add(one: Point, two: Point) -> Point:
    (x1, y1), (x2, y2) = one, two
    k = D * x1 * x2 * y1 * y2 % P
    return (x1 * y2 + x2 * y1) * pow(1 + k, -1, P) % P, (y1 * y2 + x1 * x2) * pow(1 - k, -1, P) % P


def times(count: int, point: Point) -> Point:
    result = NEUTRAL
    while count:
        if count & 1:
            result = add(result, point)
        point, count = add(point, point), count >> 1
    return result


def base() -> Point:
    y = 4 * pow(5, -1, P) % P
    square = (y * y - 1) * pow(D * y * y + 1, -1, P) % P
    x = pow(square, (P + 3) // 8, P)
    x = x if x * x % P == square else x * pow(2, (P - 1) // 4, P) % P
    return (x if x % 2 == 0 else P - x), y


def encoded(point: Point) -> bytes:
    return (point[1] | (point[0] & 1) << 255).to_bytes(32, "little")


def number(raw: bytes) -> int:
    return int.from_bytes(raw, "little") % ORDER


def forged(message: bytes, of_key: Point, of_nonce: Point) -> tuple[Ed25519PublicKey, bytes]:
    """A key and a signature that are ours, each with a point of small order added."""
    secret, nonce = number(os.urandom(32)), number(os.urandom(32))
    public = encoded(add(times(secret, base()), of_key))
    commitment = encoded(add(times(nonce, base()), of_nonce))
    challenge = number(sha512(commitment + public + message).digest())
    response = (nonce + challenge * secret) % ORDER
    key = Ed25519PublicKey.from_public_bytes(public)
    return key, commitment + response.to_bytes(32, "little")


@pytest.mark.parametrize("of_key", [NEUTRAL, OF_ORDER_TWO])
@pytest.mark.parametrize("of_nonce", [NEUTRAL, OF_ORDER_TWO])
def test_points_of_small_order_tell_no_library_from_the_other(of_key: Point, of_nonce: Point) -> None:
    verdicts = set()
    for turn in range(8):
        message = bytes([turn])
        key, signature = forged(message, of_key, of_nonce)
        verdict = ed25519.matches(key, signature, message)
        assert verdict == ed25519._matches(key, signature, message)
        verdicts.add(verdict)
    if (of_key, of_nonce) == (NEUTRAL, NEUTRAL):
        assert verdicts == {True}
    if (of_key, of_nonce) == (NEUTRAL, OF_ORDER_TWO):
        assert verdicts == {False}


def test_a_key_of_small_order_is_judged_by_openssl() -> None:
    key = Ed25519PublicKey.from_public_bytes(encoded(NEUTRAL))
    signature = encoded(NEUTRAL) + bytes(32)
    assert ed25519._matches(key, signature, b"anything")
    assert ed25519.matches(key, signature, b"anything")


def test_only_the_signature_of_the_message_matches() -> None:
    key = Ed25519PrivateKey.generate()
    signature = key.sign(b"said")
    assert ed25519.matches(key.public_key(), signature, b"said")
    other = (int.from_bytes(signature[32:], "little") + ORDER).to_bytes(33, "little")[:32]
    for wrong in (b"", signature[:-1], signature + b"\x00", bytes(64), signature[:32] + other):
        assert not ed25519.matches(key.public_key(), wrong, b"said")
    assert not ed25519.matches(key.public_key(), signature, b"said not")
    assert not ed25519.matches(Ed25519PrivateKey.generate().public_key(), signature, b"said")
