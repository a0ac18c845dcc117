"""Token ids to text, incrementally: bytes are held back until they are whole characters."""

import codecs
from collections.abc import Sequence
from typing import Protocol


class ByteDecoder(Protocol):
    """What a detokenizer needs of a tokenizer."""

    def decode_bytes(self, token_ids: Sequence[int]) -> bytes:
        """The bytes these tokens stand for, in order."""


class Detokenizer:
    """Decodes one output; the pieces it returns concatenate to the whole output decoded at once.

    A token may end inside a character; the bytes of that character wait for the next token. Bytes that can
    never become a character are U+FFFD, as soon as that is known.
    """

    __slots__ = ("_decoder", "_tokens")

    def __init__(self, tokens: ByteDecoder) -> None:
        self._tokens = tokens
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def push(self, token_ids: Sequence[int]) -> str:
        """Text that became whole with these tokens; may be empty."""
        return self._decoder.decode(self._tokens.decode_bytes(token_ids))

    def flush(self) -> str:
        """What is left at the end: empty, or U+FFFD for a character that was never finished."""
        return self._decoder.decode(b"", final=True)
