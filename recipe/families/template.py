"""A model's chat template, run in a sandbox, with user text that cannot become a control token.

Templates write control tokens and user text into one string. To tell them apart afterwards, each spelling
of a control token in user text is broken by a mark: a character that occurs in none of the texts. Only
spellings the template wrote itself are whole; the marks are taken out again before encoding. A text's ends
are marked too where a neighbour in the template could complete a spelling.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import regex  # type: ignore[import-untyped]  # the package ships no types
from jinja2 import TemplateError
from jinja2.sandbox import ImmutableSandboxedEnvironment

from recipe.errors import ModelUnreadable, ParameterInvalid
from recipe.tokenizer import Tokenizer

_PRIVATE_USE: Final = range(0xE000, 0xF900)

ChatMessage = Mapping[str, str]


class ChatTemplate:
    """Renders messages to token ids; safe to share between threads."""

    __slots__ = (
        "_beginnings",
        "_endings",
        "_names",
        "_source",
        "_spellings",
        "_template",
        "_tokenizer",
        "_variables",
    )

    def __init__(self, source: str, tokenizer: Tokenizer, variables: Mapping[str, str]) -> None:
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
        )
        environment.globals["raise_exception"] = _raise_exception
        try:
            self._template = environment.from_string(source)
        except TemplateError as error:
            raise ModelUnreadable(f"the chat template cannot be read: {error}") from None
        self._source = source
        self._tokenizer = tokenizer
        self._variables = dict(variables)
        self._names = sorted((name for name in tokenizer.added.ids if len(name) > 1), key=len, reverse=True)
        self._beginnings = tuple({name[:at] for name in self._names for at in range(1, len(name))})
        self._endings = tuple({name[at:] for name in self._names for at in range(1, len(name))})
        self._spellings = regex.compile("|".join(map(regex.escape, self._names)) or r"(?!)")

    def encode(self, messages: Sequence[ChatMessage]) -> list[int]:
        """Token ids of the conversation, up to where the assistant's answer begins.

        Raises:
            ParameterInvalid: the template does not accept such a conversation.
        """
        token_ids: list[int] = []
        for piece, is_control in self._pieces(messages):
            if is_control:
                token_ids.append(self._tokenizer.special(piece))
            else:
                token_ids.extend(self._tokenizer.encode_plain(piece))
        return token_ids

    def _pieces(self, messages: Sequence[ChatMessage]) -> Iterator[tuple[str, bool]]:
        """Control tokens and the plain text between them, in order."""
        mark = self._mark(messages)
        marked = [{**message, "content": self._broken(message["content"], mark)} for message in messages]
        try:
            rendered = self._template.render(messages=marked, add_generation_prompt=True, **self._variables)
        except TemplateError as error:
            raise ParameterInvalid("messages", f"The model's chat template refuses them: {error}") from None
        end = 0
        for match in self._spellings.finditer(rendered):
            if plain := rendered[end : match.start()].replace(mark, ""):
                yield plain, False
            yield match.group(), True
            end = match.end()
        if plain := rendered[end:].replace(mark, ""):
            yield plain, False

    def _broken(self, text: str, mark: str) -> str:
        """``text`` with a mark inside each spelling, and at an end that a neighbour could complete to one."""
        while self._spellings.search(text):
            text = self._spellings.sub(lambda found: found[0][0] + mark + found[0][1:], text)
        if text.startswith(self._endings):
            text = mark + text
        if text.endswith(self._beginnings):
            text += mark
        return text

    def _mark(self, messages: Sequence[ChatMessage]) -> str:
        """A character that neither the messages nor the template contain."""
        first = chr(_PRIVATE_USE[0])
        if not any(first in text for text in (self._source, *(message["content"] for message in messages))):
            return first
        used = set(self._source).union(*(message["content"] for message in messages))
        for code in _PRIVATE_USE:
            if chr(code) not in used:
                return chr(code)
        raise ParameterInvalid("messages", "The messages use every private-use character of Unicode")


def _raise_exception(message: str) -> Any:
    raise TemplateError(message)
