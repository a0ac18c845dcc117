"""What a recipe takes out of ``tokenizer.json``: the BPE's ranks, the added tokens, the pre-tokenizer."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import chain, pairwise, takewhile
from pathlib import Path
from typing import Any

import msgspec

from recipe.errors import ModelUnreadable


def _byte_of_character() -> dict[str, int]:
    """GPT-2's spelling of bytes as printable characters: itself where printable, else from U+0100 on."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = [value for value in range(256) if value not in printable]
    return {chr(value): value for value in printable} | {
        chr(256 + n): value for n, value in enumerate(others)
    }


_BYTE_OF_CHARACTER = _byte_of_character()


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """The mergeable tokens of a model.

    Attributes:
        ranks: bytes of a token to its id, which is also its merge rank.
        size: all ids are below it, added tokens' too.
    """

    ranks: Mapping[bytes, int]
    size: int


class AddedToken(msgspec.Struct):
    """An entry of ``added_tokens``."""

    id: int
    content: str
    special: bool = False


class BpeModel(msgspec.Struct):
    """The ``model`` of a byte-level BPE."""

    type: str
    vocab: dict[str, int]
    merges: list[str | list[str]]
    byte_fallback: bool = False


class TokenizerDocument(msgspec.Struct):
    """A ``tokenizer.json``, as far as a recipe reads it."""

    model: BpeModel
    added_tokens: list[AddedToken]
    pre_tokenizer: dict[str, Any] | None = None
    normalizer: dict[str, Any] | None = None
    post_processor: dict[str, Any] | None = None

    def opening(self) -> tuple[int, ...]:
        """Ids that the model's own tokenizer puts before a text; ModelUnreadable where that is not clear."""
        step = self.post_processor or {}
        try:
            for template in step.get("processors", [step]):
                if template.get("type") == "TemplateProcessing":
                    leading = takewhile(lambda piece: "SpecialToken" in piece, template["single"])
                    names = [piece["SpecialToken"]["id"] for piece in leading]
                    return tuple(
                        chain.from_iterable(template["special_tokens"][name]["ids"] for name in names)
                    )
        except (KeyError, TypeError, AttributeError) as error:
            raise ModelUnreadable(f"tokenizer.json: the post-processor lacks {error}") from None
        return ()

    def normalizer_types(self) -> Iterator[str]:
        """Types of the normalizers applied before anything else, those of a sequence one by one."""
        normalizer = self.normalizer or {}
        inner = normalizer.get("normalizers", ()) if normalizer.get("type") == "Sequence" else [normalizer]
        return (str(step["type"]) for step in inner if step)

    def vocabulary(self) -> Vocabulary:
        """Ranks of the mergeable tokens.

        Raises:
            ModelUnreadable: a token is no byte string, or ids do not rise with merge rank (tiktoken merges in
                the order of ids, so it could not give this model's tokens).
        """
        added = {token.content for token in self.added_tokens}
        try:
            ranks = {
                bytes(_BYTE_OF_CHARACTER[character] for character in token): token_id
                for token, token_id in self.model.vocab.items()
                if token not in added
            }
        except KeyError as error:
            raise ModelUnreadable(f"tokenizer.json: {error} is no byte of a byte-level BPE") from None
        merged = [self._merged_id(merge) for merge in self.model.merges]
        if any(earlier > later for earlier, later in pairwise(merged)):
            raise ModelUnreadable("tokenizer.json: ids do not rise with merge rank")
        ids = [*self.model.vocab.values(), *(token.id for token in self.added_tokens)]
        return Vocabulary(ranks, max(ids, default=-1) + 1)

    def _merged_id(self, merge: str | list[str]) -> int:
        left, right = merge.split(" ", 1) if isinstance(merge, str) else merge
        try:
            return self.model.vocab[left + right]
        except KeyError:
            raise ModelUnreadable(f"tokenizer.json: merge {left!r} + {right!r} is no token") from None


def read_vocabulary(path: Path) -> TokenizerDocument:
    """Read a ``tokenizer.json``; ModelUnreadable unless it is byte-level BPE."""
    try:
        document = msgspec.json.decode(path.read_bytes(), type=TokenizerDocument)
    except OSError as error:
        raise ModelUnreadable(f"{path.name} cannot be read: {error.strerror}") from None
    except msgspec.DecodeError as error:
        raise ModelUnreadable(f"{path.name} is no byte-level BPE tokenizer: {error}") from None
    if document.model.type != "BPE" or document.model.byte_fallback:
        raise ModelUnreadable(f"{path.name} is no byte-level BPE tokenizer: {document.model.type}")
    return document
