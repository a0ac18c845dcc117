"""How a model cuts text into the pieces that BPE merges inside: a tokenizer.json's pre-tokenizer as patterns.

One pattern that tiktoken can run alone is the fast way, and the default model has one. Pre-tokenizers that
cut in several stages, or leave text between their matches, are run here stage by stage.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import regex  # type: ignore[import-untyped]  # the package ships no types

from recipe.errors import ModelUnreadable

# The pattern of `ByteLevel(use_regex=true)`, from GPT-2.
GPT2: Final = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"

# `Digits(individual_digits=true)` before it, in one pattern: a digit stands alone, and white space before a
# digit ends a piece as it does at the end of the text. `Digits` knows the digits of Unicode 17, tiktoken
# does not yet.
_DIGIT: Final = "\\p{N}\U00011de0-\U00011de9\U00016ff4-\U00016ff6"
GPT2_SINGLE_DIGITS: Final = (
    rf"[{_DIGIT}]|'s|'t|'re|'ve|'m|'ll|'d| ?\p{{L}}+| ?[^\s\p{{L}}{_DIGIT}]+|\s+(?![^\s{_DIGIT}])|\s+"
)


@dataclass(frozen=True, slots=True)
class Split:
    """A pre-tokenizer.

    Attributes:
        pattern: of the last stage; its matches are pieces.
        earlier: patterns of the stages before it; their matches, and what is between, are cut further.
        total: the pattern matches every character, so nothing lies between its matches.
    """

    pattern: str
    earlier: tuple[str, ...] = ()
    total: bool = True

    def pieces(self, text: str) -> Iterator[str]:
        """The pieces, in order; they concatenate to ``text``."""
        parts: Iterator[str] = iter((text,))
        for pattern in (*self.earlier, self.pattern):
            parts = _isolated(regex.compile(pattern), parts)
        return parts


def _isolated(pattern: Any, parts: Iterator[str]) -> Iterator[str]:
    """Cut each part into matches and what lies between them."""
    for part in parts:
        end = 0
        for match in pattern.finditer(part):
            if match.start() > end:
                yield part[end : match.start()]
            if match.end() > match.start():
                yield match.group()
            end = match.end()
        if end < len(part):
            yield part[end:]


def read_split(pre_tokenizer: Mapping[str, Any] | None) -> Split:
    """The pre-tokenizer of a tokenizer.json; ModelUnreadable when it is of a kind not known here."""
    steps = list(_steps(pre_tokenizer or {}))
    if not steps or not _is_byte_level(steps[-1]):
        raise ModelUnreadable("tokenizer.json: the pre-tokenizer is not byte-level")
    before, last = steps[:-1], steps[-1]
    if last.get("use_regex", True):
        if len(before) == 1 and _is_single_digits(before[0]):
            return Split(GPT2_SINGLE_DIGITS)
        patterns = [*map(_pattern, before), GPT2]
    else:
        patterns = [_pattern(step) for step in before] or [r"[\s\S]+"]
    return Split(patterns[-1], tuple(patterns[:-1]), total=patterns[-1] == GPT2)


def _steps(pre_tokenizer: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    if pre_tokenizer.get("type") == "Sequence":
        for inner in pre_tokenizer.get("pretokenizers", ()):
            yield from _steps(inner)
    elif pre_tokenizer:
        yield pre_tokenizer


def _is_byte_level(step: Mapping[str, Any]) -> bool:
    return step.get("type") == "ByteLevel" and not step.get("add_prefix_space", False)


def _is_single_digits(step: Mapping[str, Any]) -> bool:
    return step.get("type") == "Digits" and bool(step.get("individual_digits"))


def _pattern(step: Mapping[str, Any]) -> str:
    if step.get("type") == "Digits":
        return rf"[{_DIGIT}]" if step.get("individual_digits") else rf"[{_DIGIT}]+"
    wanted = step.get("pattern", {})
    isolated = step.get("type") == "Split" and step.get("behavior") == "Isolated" and not step.get("invert")
    if not isolated or not ("Regex" in wanted or "String" in wanted):
        raise ModelUnreadable(f"tokenizer.json: pre-tokenizer {step.get('type')} is not supported")
    return str(wanted["Regex"]) if "Regex" in wanted else str(regex.escape(wanted["String"]))
