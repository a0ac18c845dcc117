"""Models behind their own chat template; ChatML where they bring none, Hermes's tools where it knows none."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, Self

import msgspec
from deepseek_recipe import ConversionOptions

from recipe import constraint
from recipe.conversation import Conversation, Message, continued, offers_tools
from recipe.errors import ModelUnreadable, ParameterInvalid
from recipe.families.limits import (
    calls_of,
    completion_tokens,
    refuse_hopeless,
    refuse_overlong,
    refuse_unserved,
)
from recipe.families.model_files import ModelFiles, read_model_files
from recipe.families.raw import encode_raw
from recipe.families.template import ChatTemplate, Page, Written
from recipe.families.vision import has_images, image_mark, placed, vision_of, with_mark, without_detail
from recipe.images import NO_IMAGES, Images, sources_of
from recipe.marks import THINK, THINK_END, Marks
from recipe.markup import MarkupParser
from recipe.memo import EncodeMemo
from recipe.parser import OutputParser, PlainParser
from recipe.prompt import Constraint, Prompt, Sampling
from recipe.request import Request
from recipe.tokenizer import Tokenizer

CHATML: Final = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
    "{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
_ROLES: Final = frozenset({"system", "user", "assistant", "tool"})
_MAX_TOKENS_DEFAULT: Final = 4096
_RAW_TOKENS_DEFAULT: Final = 16  # OpenAI's, of legacy completions
# ``<think>`` and white space behind it, however a vocabulary cuts them.
_THINK_TOKENS_MAX: Final = 12
# Ends of a turn that instruction-tuned models emit whether or not their configuration lists them.
_TURN_ENDS: Final = ("<|im_end|>", "<|endoftext|>")
_THINKS: Final = ConversionOptions().with_default_thinking_mode(True)
_PLAIN: Final = ConversionOptions().with_default_thinking_mode(False)
# How bodies say whether to think, and how hard.
_THINKING: Final = frozenset(
    {
        "thinking",
        "reasoning_effort",
        "reasoning",
        "enable_thinking",
        "chat_template_kwargs",
        "output_config.effort",
    }
)


class ChatMl:
    """The recipe of a model with a chat template. It thinks as it was made to, unless told."""

    __slots__ = (
        "_marks",
        "_may_think",
        "_opening",
        "_sampling_defaults",
        "_stop_token_ids",
        "_template",
        "_vision",
        "context_tokens",
        "memo",
        "served_name",
        "tokenizer",
    )

    def __init__(
        self,
        files: ModelFiles,
        tokenizer: Tokenizer,
        served_name: str,
        context_tokens: int,
        memo: EncodeMemo,
    ) -> None:
        self.memo = memo
        self.served_name = served_name
        self.context_tokens = context_tokens
        self.tokenizer = tokenizer
        source = files.chat_template
        if source is None:
            if "<|im_start|>" not in tokenizer.added.ids:
                raise ModelUnreadable("there is no chat template, and the vocabulary has no <|im_start|>")
            source = CHATML
        names = {role: files.special_name(role) or "" for role in ("bos_token", "eos_token")}
        self._vision = vision_of(files, tokenizer)
        image_token = "" if self._vision is None else self._vision.placeholder
        self._template = ChatTemplate(source, tokenizer, names, memo, image_token)
        ends = [tokenizer.special(name) for name in _TURN_ENDS if name in tokenizer.added.ids]
        self._stop_token_ids = tuple(sorted({*files.eos_token_ids(tokenizer), *ends}))
        self._opening = files.opening(tokenizer)
        self._sampling_defaults = files.sampling_defaults()
        self._marks = Marks.of_vocabulary(tokenizer.added)
        self._may_think = THINK in source or THINK in tokenizer.added.ids

    @classmethod
    def from_model_dir(
        cls, model_dir: Path, served_name: str, context_tokens: int | None, memo: EncodeMemo
    ) -> Self:
        """Read a model directory; ModelUnreadable when it cannot be served."""
        files = read_model_files(model_dir)
        tokenizer = Tokenizer.from_model_dir(model_dir)
        return cls(files, tokenizer, served_name, context_tokens or files.context_tokens, memo)

    @property
    def reads_images(self) -> bool:
        """See `recipe.registry.Recipe`."""
        return self._vision is not None

    def render(self, request: Request, scope: str = "", images: Images = NO_IMAGES) -> Prompt:
        """See `recipe.registry.Recipe`."""
        if request.text is not None:
            return self._raw(request)
        refuse_unserved(request)
        mark = image_mark(request.conversation) if has_images(request, self._vision) else ""
        conversation = self._conversation(request, mark)
        sources = sources_of(conversation) if mark else []
        page = self._page(request, conversation, mark)
        texts = [message["content"] for message in page.messages]
        refuse_hopeless(texts, self.tokenizer, self.context_tokens)
        token_ids = self._template.encode(page, scope)
        starts_thinking = self._opens_thinking(token_ids)
        begun = continued(conversation)
        if begun is not None:
            page, starts_thinking = self._continued(page, begun, starts_thinking)
            token_ids = self._template.encode(page, scope)
        whole, placed_images = placed(token_ids, sources, images, self._vision)
        refuse_overlong(len(whole), self.context_tokens)
        without_effect = frozenset() if "enable_thinking" in self._template.wants else _THINKING
        ignored = {*request.ignored_params, *(request.sent & without_effect), *without_detail(sources)}
        return Prompt(
            token_ids=whole,
            stop_token_ids=self._stop_token_ids,
            stop=request.stop,
            starts_thinking=starts_thinking,
            sampling=self._sampling(request),
            ignored_params=tuple(sorted(ignored)),
            max_tokens_default=_MAX_TOKENS_DEFAULT,
            constraint=self._constraint(request, starts_thinking=starts_thinking),
            calls=calls_of(request),
            continues=begun is not None,
            images=placed_images,
        )

    def _conversation(self, request: Request, mark: str) -> Conversation:
        """What is to be rendered, the mark where its images stand."""
        # Earlier reasoning is left out of a conversation that does not think.
        options = _THINKS if self._may_think else _PLAIN
        if mark:
            options = with_mark(options, mark)
        return request.convert(options).conversation if mark or self._may_think else request.conversation

    def _raw(self, request: Request) -> Prompt:
        """The prompt of a text."""
        token_ids = encode_raw(request, self.tokenizer, self._opening, self.context_tokens)
        refuse_overlong(len(token_ids), self.context_tokens)
        return Prompt(
            token_ids=token_ids,
            stop_token_ids=self._stop_token_ids,
            stop=request.stop,
            starts_thinking=False,
            sampling=self._sampling(request),
            ignored_params=request.ignored_params,
            max_tokens_default=_RAW_TOKENS_DEFAULT,
            raw=True,
        )

    def _constraint(self, request: Request, *, starts_thinking: bool) -> Constraint | None:
        """What the engine must enforce, behind the reasoning where there is one."""
        conversation = request.conversation
        # One that can be turned off is on unless it was turned off.
        turned_off = bool(request.sent & _THINKING) and not conversation.thinking_mode
        thinks = starts_thinking or ("enable_thinking" in self._template.wants and not turned_off)
        after = THINK_END if self._may_think and thinks else None
        single = not request.parallel_calls
        if conversation.tool_choice == "required":
            tools = conversation.tools
            return constraint.forced_call(tools, name=request.forced_tool, single=single, after=after)
        if offers_tools(conversation) and any(tool.strict for tool in conversation.tools):
            return constraint.offered_call(conversation.tools, single=single, after=after)
        return constraint.of_response_format(conversation, after=after)

    def _opens_thinking(self, token_ids: list[int]) -> bool:
        """Whether a prompt ends where the model is to think."""
        end = self.tokenizer.decode_bytes(token_ids[-_THINK_TOKENS_MAX:])
        return self._may_think and end.rstrip().endswith(THINK.encode())

    def _page(self, request: Request, conversation: Conversation, image: str) -> Page:
        """What the template is given; a message to be continued is left out."""
        messages = conversation.messages
        if continued(conversation) is not None:
            messages = messages[:-1]
        said = "enable_thinking" in self._template.wants and request.sent & _THINKING
        return Page(
            messages=list(self._messages(messages)),
            tools=_tools(conversation),
            variables={"enable_thinking": request.conversation.thinking_mode} if said else {},
            image=image,
        )

    def _messages(self, messages: list[Message]) -> Iterator[dict[str, Any]]:
        names: dict[str, str] = {}
        for message in messages:
            if message.role not in _ROLES:
                raise ParameterInvalid("messages", f"This model knows no role '{message.role}'")
            shown: dict[str, Any] = {"role": str(message.role), "content": str(message.content)}
            if message.reasoning_content:
                shown["reasoning_content"] = str(message.reasoning_content)
            if message.tool_calls:
                names.update({call.id: call.name for call in message.tool_calls})
                shown["tool_calls"] = [self._call(call) for call in message.tool_calls]
            if message.role == "tool":
                shown["tool_call_id"] = message.tool_call_id or ""
                shown["name"] = names.get(message.tool_call_id or "", "")
            yield shown

    def _call(self, call: Any) -> dict[str, Any]:
        """Templates that know tools write the arguments themselves; else they stay the model's own text."""
        arguments: Any = call.arguments or "{}"
        if "tools" in self._template.wants:
            arguments = _object(arguments)
        return {
            "id": call.id,
            "type": "function",
            "function": {"name": call.name, "arguments": arguments},
        }

    def _continued(self, page: Page, message: Message, starts_thinking: bool) -> tuple[Page, bool]:
        """The page with the beginning of the answer, and whether that ends inside the reasoning."""
        thought, content = str(message.reasoning_content or ""), str(message.content)
        if not self._may_think or not (thought or starts_thinking):
            return replace(page, continued=[content]), False
        begun = [Written("" if starts_thinking else f"{THINK}\n"), thought]
        if not content:
            return replace(page, continued=begun), True
        return replace(page, continued=[*begun, Written(f"\n{THINK_END}\n\n"), content]), False

    def max_tokens(self, request: Request, prompt: Prompt) -> int:
        """See `recipe.registry.Recipe`."""
        return completion_tokens(request, prompt, self.context_tokens)

    def parser(self, prompt: Prompt) -> OutputParser:
        """See `recipe.registry.Recipe`."""
        if prompt.raw or (prompt.calls == "none" and not self._may_think):
            return PlainParser(self.tokenizer, prompt.stop_token_ids, prompt.stop)
        # A grammar knows characters, not tokens: what it makes a model write is a mark however spelled.
        marks = self._marks if prompt.constraint is None else Marks()
        return MarkupParser(self.tokenizer, marks, prompt, may_think=self._may_think)

    def _sampling(self, request: Request) -> Sampling:
        """What the request says; where it says nothing, what the model's makers do."""
        asked, defaults = request.sampling, self._sampling_defaults
        unsaid = defaults.keys() - request.sent
        return replace(
            asked,
            temperature=defaults["temperature"] if "temperature" in unsaid else asked.temperature,
            top_p=defaults["top_p"] if "top_p" in unsaid else asked.top_p,
        )


def _tools(conversation: Conversation) -> list[dict[str, Any]]:
    """The tools on offer, as a chat body has them."""
    if not offers_tools(conversation):
        return []
    shown = []
    for tool in conversation.tools:
        described = {"name": tool.name, "description": tool.description, "parameters": tool.parameters}
        function = {key: value for key, value in described.items() if value is not None}
        shown.append({"type": "function", "function": function})
    return shown


def _object(text: str) -> Any:
    """The JSON object that a text is; the text itself when it is none."""
    try:
        return msgspec.json.decode(text, type=dict[str, Any])
    except (msgspec.DecodeError, RecursionError):
        return text
