"""The chained hash that names a block of tokens, exactly as vLLM's ``sha256_cbor`` computes it.

Hash of block i = SHA-256 of the canonical CBOR of ``(hash of block i-1, token ids, extra keys)``. The salt is
the extra key of the first block only; the chain carries it into all others.
"""

import hashlib
from collections.abc import Sequence
from typing import Final

import cbor2

BLOCK_TOKENS: Final = 64


def _sha256_cbor(value: object) -> bytes:
    return hashlib.sha256(cbor2.dumps(value, canonical=True)).digest()


# vLLM's default seed when PYTHONHASHSEED is not set; `engine.worker.launch` unsets it.
ROOT_HASH: Final = _sha256_cbor("vllm-none-hash")


def block_hashes(token_ids: Sequence[int], salt: str, block_tokens: int = BLOCK_TOKENS) -> list[bytes]:
    """Names of the full blocks of a prompt.

    Args:
        token_ids: the prompt, or any sequence of tokens.
        salt: the ``cache_salt`` sent to the worker; "" means none.
        block_tokens: tokens a block.

    Returns:
        32-byte hashes, shape ``[len(token_ids) // block_tokens]``; an unfinished last block has no name.
    """
    hashes: list[bytes] = []
    parent = ROOT_HASH
    for start in range(0, len(token_ids) - block_tokens + 1, block_tokens):
        extra = (("cache_salt", salt),) if salt and start == 0 else None
        parent = _sha256_cbor((parent, tuple(token_ids[start : start + block_tokens]), extra))
        hashes.append(parent)
    return hashes
