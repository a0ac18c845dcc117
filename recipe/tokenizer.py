"""A model's own byte-level BPE vocabulary in tiktoken: the ids that `tokenizers` gives, several times faster.

Text is always plain: the spelling of a special token in it is encoded as the characters it consists of. A
special token gets into a prompt by its id alone (`Tokenizer.special`), so nothing a user writes can become
one.
"""

import unicodedata
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Final, Self

import regex  # type: ignore[import-untyped]  # the package ships no types
import tiktoken

from recipe.errors import ModelUnreadable
from recipe.pretokenize import Split, read_split
from recipe.vocabulary import Vocabulary, read_vocabulary

# Unicode promises that no text has more than so many times its characters in NFC.
NFC_GROWTH_MAX: Final = 3
# tiktoken's regular expressions keep a frame per character of a run of white space and panic near a million
# of them; long texts are looked at first. A panic is no Exception: it would take the process's task with
# it.
_UNCHECKED_CHARS: Final = 200_000
_SPACES: Final = regex.compile(r"\s+")


def _same(text: str) -> str:
    return text


def _nfc(text: str) -> str:
    return unicodedata.normalize("NFC", text)


def _has_long_blank(text: str) -> bool:
    if len(text) <= _UNCHECKED_CHARS:
        return False
    return any(match.end() - match.start() > _UNCHECKED_CHARS for match in _SPACES.finditer(text))


@dataclass(frozen=True, slots=True)
class AddedTokens:
    """Tokens outside the BPE: control tokens, and what a fine-tune added.

    Attributes:
        ids: spelling to id, all of them.
        control: ids that stand for no text (``special`` in tokenizer.json).
        opening: ids that the model's own tokenizer puts before a text.
    """

    ids: Mapping[str, int]
    control: frozenset[int]
    opening: tuple[int, ...] = ()


class Tokenizer:
    """Encodes and decodes with one model's vocabulary; immutable, safe to share between threads."""

    __slots__ = (
        "_bytes",
        "_delete",
        "_encoding",
        "_limit",
        "_normalize",
        "_split",
        "_token_bytes_max",
        "added",
    )

    def __init__(
        self, vocabulary: Vocabulary, added: AddedTokens, split: Split, normalize: Callable[[str], str]
    ) -> None:
        self.added = added
        self._split = split
        self._normalize = normalize
        self._limit = vocabulary.size
        present = vocabulary.ranks
        absent = [value for value in range(256) if bytes([value]) not in present]
        # tiktoken wants all 256 bytes. Those the model lacks get ids past its vocabulary and mark a text for
        # `_encode_pieces`, which leaves them out as the model's own tokenizer does.
        stand_ins = {bytes([value]): self._limit + place for place, value in enumerate(absent)}
        self._delete = bytes(absent)
        self._encoding = tiktoken.Encoding(
            "model", pat_str=split.pattern, mergeable_ranks={**present, **stand_ins}, special_tokens={}
        )
        self._bytes = {token_id: token for token, token_id in present.items()}
        self._bytes.update({token_id: name.encode() for name, token_id in added.ids.items()})
        self._token_bytes_max = max(map(len, present))

    @classmethod
    def from_model_dir(cls, model_dir: Path) -> Self:
        """Read ``tokenizer.json``.

        Raises:
            ModelUnreadable: it is missing, or anything but byte-level BPE.
        """
        document = read_vocabulary(model_dir / "tokenizer.json")
        kinds = set(document.normalizer_types())
        if kinds - {"NFC"}:
            raise ModelUnreadable(f"tokenizer.json: normalizer {', '.join(kinds)} is not supported")
        added = AddedTokens(
            ids={token.content: token.id for token in document.added_tokens},
            control=frozenset(token.id for token in document.added_tokens if token.special),
            opening=document.opening(),
        )
        split = read_split(document.pre_tokenizer)
        return cls(document.vocabulary(), added, split, _nfc if kinds else _same)

    @property
    def token_bytes_max(self) -> int:
        """Length of the longest token, in bytes."""
        return self._token_bytes_max

    def tokens_at_least(self, text: str) -> int:
        """A lower bound of the tokens in ``text``, found without encoding it."""
        text = self._normalize(text)
        dropped = sum(text.count(chr(value)) for value in self._delete if value < 0x80)
        return -(-(len(text) - dropped) // self._token_bytes_max)

    def special(self, name: str) -> int:
        """The id of an added token, such as ``"<|im_end|>"``; ModelUnreadable when there is none."""
        try:
            return self.added.ids[name]
        except KeyError:
            raise ModelUnreadable(f"tokenizer.json: there is no token {name}") from None

    def encode_plain(self, text: str) -> list[int]:
        """Ids of ``text``, in which the spelling of a special token is text like any other."""
        text = self._normalize(text)
        if self._split.earlier or _has_long_blank(text):
            return self._encode_pieces(text)
        token_ids = self._encoding.encode_ordinary(text)
        if self._delete and token_ids and max(token_ids) >= self._limit:
            return self._encode_pieces(text)
        if not self._split.total and len(self.decode_bytes(token_ids)) != len(text.encode()):
            return self._encode_pieces(text)
        return token_ids

    def decode_bytes(self, token_ids: Sequence[int]) -> bytes:
        """The bytes of these tokens; an id the model does not know stands for none."""
        known = self._bytes
        return b"".join([known.get(token_id, b"") for token_id in token_ids])

    def _encode_pieces(self, text: str) -> list[int]:
        """The same ids, piece by piece: slower, for any pre-tokenizer, any length and any byte."""
        encode = self._encoding._encode_single_piece  # noqa: SLF001  # it has no public name
        pieces = (piece.encode().translate(None, self._delete) for piece in self._split.pieces(text))
        return list(chain.from_iterable(encode(piece) for piece in pieces if piece))
