"""A model's chat template, run in a sandbox, with user text that cannot become a control token.

Templates write control tokens and user text into one string. To tell them apart afterwards, each spelling
of a control token in user text is broken by a mark: a character that occurs in none of the texts. Only
spellings the template wrote itself are whole; the marks are taken out again before encoding. A text's ends
are marked too where a neighbour in the template could complete a spelling.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import regex  # type: ignore[import-untyped]  # the package ships no types
from jinja2 import TemplateError, meta
from jinja2.sandbox import ImmutableSandboxedEnvironment

from recipe.errors import ModelUnreadable, ParameterInvalid
from recipe.families import hermes
from recipe.tokenizer import Tokenizer

_PRIVATE_USE: Final = range(0xE000, 0xF900)
# Names that templates look for; no client chooses them, so they are left whole.
_FIELDS: Final = frozenset(
    {
        *("role", "content", "reasoning_content", "tool_calls", "tool_call_id", "id", "type", "function"),
        *("name", "arguments", "description", "parameters"),
    }
)

ChatMessage = Mapping[str, Any]


class Written(str):
    """Text of ours among a client's: control tokens in it are meant."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Page:
    """What a template renders.

    Attributes:
        messages: each with ``role`` and ``content``, and what else transformers' templates know.
        tools: as in a chat body.
        variables: what else the template is to know.
        continued: the beginning of the answer, to be gone on with, in parts.
    """

    messages: Sequence[ChatMessage]
    tools: Sequence[Mapping[str, Any]] = ()
    variables: Mapping[str, Any] = field(default_factory=dict)
    continued: Sequence[str] = ()


class ChatTemplate:
    """Renders messages to token ids; safe to share between threads.

    Attributes:
        wants: names of the variables that the template takes, such as ``tools``.
    """

    __slots__ = (
        "_beginnings",
        "_endings",
        "_names",
        "_source",
        "_spellings",
        "_template",
        "_tokenizer",
        "_variables",
        "wants",
    )

    def __init__(self, source: str, tokenizer: Tokenizer, variables: Mapping[str, str]) -> None:
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
        )
        environment.globals["raise_exception"] = _raise_exception
        environment.filters["tojson"] = _tojson
        try:
            self._template = environment.from_string(source)
            self.wants = frozenset(meta.find_undeclared_variables(environment.parse(source)))
        except TemplateError as error:
            raise ModelUnreadable(f"the chat template cannot be read: {error}") from None
        self._source = source
        self._tokenizer = tokenizer
        self._variables = dict(variables)
        self._names = sorted((name for name in tokenizer.added.ids if len(name) > 1), key=len, reverse=True)
        self._beginnings = tuple({name[:at] for name in self._names for at in range(1, len(name))})
        self._endings = tuple({name[at:] for name in self._names for at in range(1, len(name))})
        self._spellings = regex.compile("|".join(map(regex.escape, self._names)) or r"(?!)")

    def encode(self, page: Page) -> list[int]:
        """Token ids of the conversation, up to where the assistant's answer begins or goes on.

        Raises:
            ParameterInvalid: the template does not accept such a conversation.
        """
        token_ids: list[int] = []
        for piece, is_control in self._pieces(page):
            if is_control:
                token_ids.append(self._tokenizer.special(piece))
            else:
                token_ids.extend(self._tokenizer.encode_plain(piece))
        return token_ids

    def _pieces(self, page: Page) -> Iterator[tuple[str, bool]]:
        """Control tokens and the plain text between them, in order."""
        mark = self._mark(page)
        messages, tools = (
            _each_text(part, lambda text: self._broken(text, mark)) for part in (page.messages, page.tools)
        )
        if "tools" not in self.wants:
            messages, tools = hermes.spelled(messages, tools), []
        variables = {**self._variables, **page.variables, "tools": tools or None}
        try:
            rendered = self._template.render(messages=messages, add_generation_prompt=True, **variables)
        except (TemplateError, TypeError, ValueError) as error:
            raise ParameterInvalid("messages", f"The model's chat template refuses them: {error}") from None
        parts = (part if isinstance(part, Written) else self._broken(part, mark) for part in page.continued)
        rendered += "".join(parts)
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

    def _mark(self, page: Page) -> str:
        """A character that neither the page nor the template contains."""
        texts = [self._source, *page.continued]
        for part in (page.messages, page.tools):
            _each_text(part, texts.append)
        first = chr(_PRIVATE_USE[0])
        if not any(first in text for text in texts):
            return first
        used = set().union(*texts)
        for code in _PRIVATE_USE:
            if chr(code) not in used:
                return chr(code)
        raise ParameterInvalid("messages", "The messages use every private-use character of Unicode")


def _each_text(value: Any, change: Callable[[str], Any]) -> Any:
    """``value`` with every text of a client in it, keys too, replaced by what ``change`` makes of it."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, Mapping):
        return {
            key if key in _FIELDS else change(key): inner if key == "role" else _each_text(inner, change)
            for key, inner in value.items()
        }
    if isinstance(value, Sequence):
        return [_each_text(inner, change) for inner in value]
    return value


def _tojson(value: Any, indent: int | None = None) -> str:
    """As transformers has it: characters as they are, where Jinja's own would escape for HTML."""
    return json.dumps(value, ensure_ascii=False, indent=indent)


def _raise_exception(message: str) -> Any:
    raise TemplateError(message)
