"""API keys: a prefix by kind, 30 random characters, 6 of checksum, base 62. Only an HMAC of one is stored."""

import hashlib
import hmac
import re
import string
import zlib
from typing import Final

# By what a key can do, so that a leaked one shows how bad it is. All of one length.
PREFIX: Final = "kv_live_"  # inference
MANAGEMENT_PREFIX: Final = "kv_mgmt_"
READING_PREFIX: Final = "kv_read_"  # neither
PREFIXES: Final = (PREFIX, MANAGEMENT_PREFIX, READING_PREFIX)
ENTROPY_BYTES: Final = 32

_ALPHABET: Final = string.digits + string.ascii_uppercase + string.ascii_lowercase
_RANDOM_CHARACTERS: Final = 30
_CHECKSUM_CHARACTERS: Final = 6  # 62**6 > 2**32
_SHOWN_CHARACTERS: Final = len(PREFIX) + 4
# Truncated and overlong ones too: a mistyped key is nearly a key.
_WRITTEN: Final = re.compile(rf"((?:{'|'.join(PREFIXES)})[0-9A-Za-z]{{4}})[0-9A-Za-z]{{4,}}")


def secret_of(entropy: bytes, prefix: str = PREFIX) -> str:
    """The key made from 32 random bytes."""
    assert len(entropy) == ENTROPY_BYTES, f"a key takes {ENTROPY_BYTES} random bytes, not {len(entropy)}"
    assert prefix in PREFIXES, f"no prefix of ours: {prefix}"
    body = prefix + _base62(int.from_bytes(entropy, "big"), _RANDOM_CHARACTERS)
    return body + _checksum(body)


def checksum_ok(secret: str) -> bool:
    """Whether a text can be a key of ours: tells a truncated or mistyped one apart without asking anybody."""
    body, checksum = secret[:-_CHECKSUM_CHARACTERS], secret[-_CHECKSUM_CHARACTERS:]
    shaped = body.startswith(PREFIXES) and len(body) == len(PREFIX) + _RANDOM_CHARACTERS and secret.isascii()
    return shaped and _checksum(body) == checksum


def digest(secret: str, pepper: bytes) -> bytes:
    """HMAC-SHA256 of the key under the deployment's pepper: what is stored and looked up."""
    return hmac.digest(pepper, secret.encode(), hashlib.sha256)


def shown_prefix(secret: str) -> str:
    """The beginning of the key, by which its owner tells it from others."""
    return secret[:_SHOWN_CHARACTERS]


def masked(text: str) -> str:
    """The text with whatever looks like a key of ours cut to its beginning: for logs and error messages."""
    return _WRITTEN.sub(r"\1…", text)


def _checksum(body: str) -> str:
    return _base62(zlib.crc32(body.encode()), _CHECKSUM_CHARACTERS)


def _base62(number: int, characters: int) -> str:
    """The last ``characters`` digits of a number in base 62."""
    digits = []
    for _ in range(characters):
        number, digit = divmod(number, len(_ALPHABET))
        digits.append(_ALPHABET[digit])
    return "".join(reversed(digits))
