"""The chained hash that names a block of tokens, exactly as vLLM's ``sha256_cbor`` computes it.

Hash of block i = SHA-256 of the canonical CBOR of ``(hash of block i-1, token ids, extra keys)``. The salt is
the extra key of the first block only; the chain carries it into all others. An image is an extra key of each
block that its tokens touch: they say how large it is, its name says which.
"""

import hashlib
import hmac
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import cbor2

BLOCK_TOKENS: Final = 64


def _sha256_cbor(value: object) -> bytes:
    return hashlib.sha256(cbor2.dumps(value, canonical=True)).digest()


# vLLM's default seed when PYTHONHASHSEED is not set; `engine.worker.launch` unsets it.
ROOT_HASH: Final = _sha256_cbor("vllm-none-hash")


@dataclass(frozen=True, slots=True)
class ImageRun:
    """The tokens ``[offset, offset + tokens)`` that stand for an image in a prompt, and its `image_name`."""

    offset: int
    tokens: int
    name: str


def image_name(salt: str, digest: str) -> str:
    """What an image is called in blocks and in a worker's caches, 64 hexadecimal digits.

    The salt is in it, so that no tenant finds what another's image has left in any cache.

    Args:
        salt: as in `block_hashes`.
        digest: SHA-256 of the image's bytes, in hexadecimal.
    """
    return hmac.new(salt.encode(), b"kvitto image 1 " + bytes.fromhex(digest), hashlib.sha256).hexdigest()


def block_hashes(
    token_ids: Sequence[int],
    salt: str,
    block_tokens: int = BLOCK_TOKENS,
    images: Sequence[ImageRun] = (),
) -> list[bytes]:
    """Names of the full blocks of a prompt.

    Args:
        token_ids: the prompt, or any sequence of tokens.
        salt: the ``cache_salt`` sent to the worker; "" means none.
        block_tokens: tokens a block.
        images: the prompt's images, in the order of their tokens, which do not overlap.

    Returns:
        32-byte hashes, shape ``[len(token_ids) // block_tokens]``; an unfinished last block has no name.
    """
    hashes: list[bytes] = []
    parent = ROOT_HASH
    for start in range(0, len(token_ids) - block_tokens + 1, block_tokens):
        extra = (
            *_touching(images, start, block_tokens),
            *((("cache_salt", salt),) if salt and not start else ()),
        )
        parent = _sha256_cbor((parent, tuple(token_ids[start : start + block_tokens]), extra or None))
        hashes.append(parent)
    return hashes


def _touching(images: Sequence[ImageRun], start: int, tokens: int) -> Iterator[tuple[str, str, int]]:
    for image in images:
        if image.offset < start + tokens and start < image.offset + image.tokens:
            yield "mm", image.name, image.offset - start
