"""A model's chat template, run in a sandbox, with user text that cannot become a control token.

Templates write control tokens and user text into one string. To tell them apart afterwards, each spelling
of a control token in user text is broken by a mark: a character that occurs in none of the texts. Only
spellings the template wrote itself are whole; the marks are taken out again before encoding. A text's ends
are marked too where a neighbour in the template could complete a spelling.

What was encoded before is remembered by scope (`recipe.memo`): message by message where the template writes
them so and control tokens keep them apart, else text by text between control tokens. Where there are images
it is text by text: the ids of a text depend on no image.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Final, Literal

import regex  # type: ignore[import-untyped]  # the package ships no types
from jinja2 import TemplateError, meta
from jinja2.sandbox import ImmutableSandboxedEnvironment

from recipe.errors import ModelUnreadable, ParameterInvalid
from recipe.families import hermes
from recipe.families.additive import writes_by_message
from recipe.memo import EncodeMemo
from recipe.tokenizer import Tokenizer

_ROLES_KEPT: Final = 16
_PRIVATE_USE: Final = range(0xE000, 0xF900)

# Names that templates look for; no client chooses them, so they are left whole.
_FIELDS: Final = frozenset(
    {
        *("role", "content", "reasoning_content", "tool_calls", "tool_call_id", "id", "type", "function"),
        *("name", "arguments", "description", "parameters"),
    }
)

ChatMessage = Mapping[str, Any]
# Whether a template takes a message's content as a text, as parts of it, or either.
Form = Literal["texts", "parts", "both"]


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
        image: a character that stands for an image in the messages' texts, and for nothing else on the page;
            empty where there is none.
    """

    messages: Sequence[ChatMessage]
    tools: Sequence[Mapping[str, Any]] = ()
    variables: Mapping[str, Any] = field(default_factory=dict)
    continued: Sequence[str] = ()
    image: str = ""


class _Entangled(Exception):
    """No control token keeps a message apart from its neighbours."""


class ChatTemplate:
    """Renders messages to token ids; safe to share between threads.

    Args:
        image_token: what a prompt has where an image is to stand; empty where the model reads none.

    Attributes:
        wants: names of the variables that the template takes, such as ``tools``.
    """

    __slots__ = (
        "_beginnings",
        "_by_message",
        "_endings",
        "_form",
        "_image_token",
        "_memo",
        "_names",
        "_source",
        "_spellings",
        "_starts",
        "_template",
        "_tokenizer",
        "_variables",
        "_written_before",
        "wants",
    )

    def __init__(
        self,
        source: str,
        tokenizer: Tokenizer,
        variables: Mapping[str, str],
        memo: EncodeMemo,
        image_token: str = "",
    ) -> None:
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
        )
        environment.globals["raise_exception"] = _raise_exception
        environment.filters["tojson"] = _tojson
        try:
            self._template = environment.from_string(source)
            self._template.globals = dict(self._template.globals)  # a ChainMap, copied for every rendering
            tree = environment.parse(source)
            self.wants = frozenset(meta.find_undeclared_variables(tree))
            self._by_message = memo.bytes_max > 0 and writes_by_message(tree, variables)
        except TemplateError as error:
            raise ModelUnreadable(f"the chat template cannot be read: {error}") from None
        self._source = source
        self._tokenizer = tokenizer
        self._variables = dict(variables)
        self._memo = memo
        self._names = sorted((name for name in tokenizer.added.ids if len(name) > 1), key=len, reverse=True)
        self._starts = {name[0] for name in self._names}
        self._beginnings = tuple({name[:at] for name in self._names for at in range(1, len(name))})
        endings = {name[at:] for name in self._names for at in range(1, len(name))}
        self._endings = {
            start: tuple(e for e in endings if e[0] == start) for start in {e[0] for e in endings}
        }
        self._spellings = regex.compile("|".join(map(regex.escape, self._names)) or r"(?!)")
        self._written_before = lru_cache(_ROLES_KEPT)(self._rendered_first)
        self._image_token = image_token
        self._form: Final[Form] = self._form_taken() if image_token else "texts"

    def encode(self, page: Page, scope: str = "") -> list[int]:
        """Token ids of the conversation, up to where the assistant's answer begins or goes on.

        Args:
            scope: whose it is; nothing that others have left in the memo is found.

        Raises:
            ParameterInvalid: the template does not accept such a conversation.
        """
        if self._by_message and _is_of_texts(page):
            try:
                return self._encode_by_message(page.messages, "", scope)
            except _Entangled:
                pass
        mark = self._mark(page)
        messages: Sequence[ChatMessage] = [
            self._marked(message, mark, page.image) for message in page.messages
        ]
        tools = _each_text(page.tools, lambda text: self._broken(text, mark)) if page.tools else []
        if "tools" not in self.wants and (tools or not all(map(_is_plain, messages))):
            messages, tools = hermes.spelled(messages, tools), []
        if self._by_message and messages and not (tools or page.variables or page.continued or page.image):
            try:
                return self._encode_by_message(messages, mark, scope)
            except _Entangled:
                pass
        if page.image:
            messages = self._with_images(messages, page.image)
        rendered = self._rendered(messages, tools=tools or None, **page.variables)
        for part in page.continued:
            rendered += part if isinstance(part, Written) else self._broken(part, mark)
        return self._encode_rendered(rendered, mark, scope)

    def _with_images(self, messages: Sequence[ChatMessage], image: str) -> list[ChatMessage]:
        """Messages with their images as the template takes them."""
        if self._form == "texts":
            token = self._image_token
            return [{**message, "content": message["content"].replace(image, token)} for message in messages]
        return [
            {**message, "content": _parts(message["content"], image)}
            if image in message["content"]
            else message
            for message in messages
        ]

    def _form_taken(self) -> Form:
        """How the template takes messages, by what it makes of one; ModelUnreadable if no images."""
        probe, other = map(chr, _PRIVATE_USE[-2:])

        def written(content: Any) -> str:
            try:
                return self._template.render(
                    messages=[{"role": "user", "content": content}], **self._variables
                )
            except (TemplateError, TypeError, ValueError):
                return ""

        texts = probe in written(probe)
        whole = written(_parts(probe + other, probe))
        if whole.count(self._image_token) == 1 and other in whole:
            return "both" if texts else "parts"
        if not texts:
            raise ModelUnreadable("the chat template takes no images")
        return "texts"

    def _encode_by_message(self, messages: Sequence[ChatMessage], mark: str, scope: str) -> list[int]:
        """Ids of the messages, of each by itself; raises _Entangled when they are not to be had so.

        Those without a mark are marked when they are encoded, each with one of its own: few are new.

        A message's segment is all that its text depends on, with the role of the first message before its own
        where it is not the first itself. That role alone stands for the prompt's end.
        """
        role = messages[0]["role"]
        segments = [(role, mark, message["role"], message["content"]) for message in messages]
        before = [{"role": role, "content": ""}]

        def encode(place: int) -> list[int]:
            return self._encode_written(before if place else [], messages[place : place + 1], mark)

        token_ids: list[int] = []
        for ids in self._memo.ids(scope, [segments[0][1:], *segments[1:], (mark, role)], encode):
            token_ids += ids
        return token_ids

    def _encode_written(
        self, before: Sequence[ChatMessage], messages: Sequence[ChatMessage], mark: str
    ) -> list[int]:
        """Ids of what is written for ``messages``, or at the prompt's end, behind one message or none."""
        if not mark:
            mark = self._mark_beside([self._source, *(message["content"] for message in messages)])
            messages = [{**each, "content": self._broken(each["content"], mark)} for each in messages]
        known = self._written_before(before[0]["role"]) if before else ""
        rendered = self._rendered([*before, *messages], ends=not messages)
        assert rendered.startswith(known), "what is written by message is written in order"
        text = rendered[len(known) :]
        if (before and text and not self._spellings.match(text)) or text.endswith(self._beginnings):
            raise _Entangled
        return self._encode_rendered(text, mark)

    def _encode_rendered(self, text: str, mark: str, scope: str | None = None) -> list[int]:
        """Ids of a text with marks in it, the plain pieces from the memo where there is a scope."""
        pieces = list(self._pieces(text, mark))
        plain = [piece for piece, is_control in pieces if not is_control]
        encode = self._tokenizer.encode_plain
        if scope is None:
            made: Iterator[Sequence[int]] = map(encode, plain)
        else:
            made = iter(self._memo.ids(scope, plain, lambda place: encode(plain[place])))
        token_ids: list[int] = []
        for piece, is_control in pieces:
            token_ids += [self._tokenizer.special(piece)] if is_control else next(made)
        return token_ids

    def _rendered_first(self, role: str) -> str:
        """What is written for an empty first message of this role."""
        return self._rendered([{"role": role, "content": ""}], ends=False)

    def _rendered(self, marked: Sequence[ChatMessage], *, ends: bool = True, **variables: Any) -> str:
        """The template's text, marks and all. ``ends``: the assistant's answer begins there."""
        known = {**self._variables, **variables}
        if self._form == "parts":
            marked = [
                {**each, "content": _parts(each["content"])} if isinstance(each["content"], str) else each
                for each in marked
            ]
        try:
            return self._template.render(messages=marked, add_generation_prompt=ends, **known)
        except (TemplateError, TypeError, ValueError) as error:
            raise ParameterInvalid("messages", f"The model's chat template refuses them: {error}") from None

    def _pieces(self, rendered: str, mark: str) -> Iterator[tuple[str, bool]]:
        """Control tokens and the plain text between them, in order."""
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
        if any(start in text for start in self._starts):
            while self._spellings.search(text):
                text = self._spellings.sub(lambda found: found[0][0] + mark + found[0][1:], text)
            if text.endswith(self._beginnings):
                text += mark
        if text.startswith(self._endings.get(text[:1], ())):
            text = mark + text
        return text

    def _marked(self, message: ChatMessage, mark: str, image: str = "") -> ChatMessage:
        """The message with every text of the client's in it broken, those between images each by itself."""
        if image and image in message["content"]:
            apart = [self._broken(text, mark) for text in _between(message["content"], image)]
            message = {**message, "content": ""}
            return {**self._marked(message, mark), "content": image.join(apart)}
        if _is_plain(message):
            return {**message, "content": self._broken(message["content"], mark)}
        marked: ChatMessage = _each_text(message, lambda text: self._broken(text, mark))
        return marked

    def _mark(self, page: Page) -> str:
        """A character that neither the page nor the template contains."""
        texts = [self._source, *page.continued, *(message["content"] for message in page.messages)]
        for part in (*page.tools, *(message for message in page.messages if not _is_plain(message))):
            _each_text(part, texts.append)
        return self._mark_beside(texts)

    def _mark_beside(self, texts: Sequence[str]) -> str:
        """A character in none of the texts."""
        first = chr(_PRIVATE_USE[0])
        if not any(first in text for text in texts):
            return first
        used = set().union(*texts)
        for code in _PRIVATE_USE:
            if chr(code) not in used:
                return chr(code)
        raise ParameterInvalid("messages", "The messages use every private-use character of Unicode")


def _is_plain(message: ChatMessage) -> bool:
    """Whether it has a role and content alone."""
    return len(message) == 2


def _is_of_texts(page: Page) -> bool:
    """Whether there is nothing but texts by role, and at least one."""
    more = page.tools or page.variables or page.continued or page.image or not page.messages
    return not more and all(map(_is_plain, page.messages))


def _between(content: str, image: str) -> list[str]:
    """The texts around images, without what deepseek-recipe puts between two parts of a message."""
    texts = content.split(image)
    last = len(texts) - 1
    for place, text in enumerate(texts):
        after = text.removeprefix("\n\n") if place else text
        texts[place] = after.removesuffix("\n\n") if place < last else after
    return texts


def _parts(content: str, image: str = "") -> list[dict[str, str]]:
    """A text, with images in it, as transformers' templates take it."""
    first, *others = content.split(image) if image else [content]
    parts = [{"type": "text", "text": first}] if first else []
    for text in others:
        parts.append({"type": "image"})
        parts += [{"type": "text", "text": text}] if text else []
    return parts or [{"type": "text", "text": ""}]


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
