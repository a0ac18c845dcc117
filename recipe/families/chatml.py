"""Models that answer in plain text behind their own chat template; ChatML where they bring none."""

from dataclasses import replace
from pathlib import Path
from typing import Final, Self

from recipe.errors import ModelUnreadable, ParameterInvalid
from recipe.families.limits import completion_tokens, refuse_hopeless, refuse_overlong, refuse_unserved
from recipe.families.model_files import ModelFiles, read_model_files
from recipe.families.raw import encode_raw
from recipe.families.template import ChatTemplate
from recipe.memo import EncodeMemo
from recipe.parser import OutputParser, PlainParser
from recipe.prompt import Prompt, Sampling
from recipe.request import Request
from recipe.tokenizer import Tokenizer

CHATML: Final = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
    "{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
_ROLES: Final = frozenset({"system", "user", "assistant"})
_MAX_TOKENS_DEFAULT: Final = 4096
_RAW_TOKENS_DEFAULT: Final = 16  # OpenAI's, of legacy completions
# Ends of a turn that instruction-tuned models emit whether or not their configuration lists them.
_TURN_ENDS: Final = ("<|im_end|>", "<|endoftext|>")
_WITHOUT_EFFECT: Final = frozenset({"thinking", "reasoning_effort", "reasoning", "output_config.effort"})


class ChatMl:
    """The recipe of a model with a chat template."""

    __slots__ = (
        "_opening",
        "_sampling_defaults",
        "_stop_token_ids",
        "_template",
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
        self._template = ChatTemplate(source, tokenizer, names, memo)
        ends = [tokenizer.special(name) for name in _TURN_ENDS if name in tokenizer.added.ids]
        self._stop_token_ids = tuple(sorted({*files.eos_token_ids(tokenizer), *ends}))
        self._opening = files.opening(tokenizer)
        self._sampling_defaults = files.sampling_defaults()

    @classmethod
    def from_model_dir(
        cls, model_dir: Path, served_name: str, context_tokens: int | None, memo: EncodeMemo
    ) -> Self:
        """Read a model directory; ModelUnreadable when it cannot be served."""
        files = read_model_files(model_dir)
        tokenizer = Tokenizer.from_model_dir(model_dir)
        return cls(files, tokenizer, served_name, context_tokens or files.context_tokens, memo)

    def render(self, request: Request, scope: str = "") -> Prompt:
        """See `recipe.registry.Recipe`."""
        raw = request.text is not None
        token_ids = self._text(request) if raw else self._conversation(request, scope)
        refuse_overlong(len(token_ids), self.context_tokens)
        return Prompt(
            token_ids=token_ids,
            stop_token_ids=self._stop_token_ids,
            stop=request.stop,
            starts_thinking=False,
            sampling=self._sampling(request),
            ignored_params=tuple(sorted({*request.ignored_params, *(request.sent & _WITHOUT_EFFECT)})),
            max_tokens_default=_RAW_TOKENS_DEFAULT if raw else _MAX_TOKENS_DEFAULT,
            raw=raw,
        )

    def _text(self, request: Request) -> tuple[int, ...]:
        return encode_raw(request, self.tokenizer, self._opening, self.context_tokens)

    def _conversation(self, request: Request, scope: str) -> tuple[int, ...]:
        refuse_unserved(request)
        messages = []
        for message in request.conversation.messages:
            if message.role not in _ROLES:
                raise ParameterInvalid("messages", f"This model knows no role '{message.role}'")
            messages.append({"role": str(message.role), "content": str(message.content)})
        contents = [message["content"] for message in messages]
        refuse_hopeless(contents, self.tokenizer, self.context_tokens)
        return tuple(self._template.encode(messages, scope))

    def max_tokens(self, request: Request, prompt: Prompt) -> int:
        """See `recipe.registry.Recipe`."""
        return completion_tokens(request, prompt, self.context_tokens)

    def parser(self, prompt: Prompt) -> OutputParser:
        """See `recipe.registry.Recipe`."""
        return PlainParser(self.tokenizer, prompt.stop_token_ids, prompt.stop)

    def _sampling(self, request: Request) -> Sampling:
        """What the request says; where it says nothing, what the model's makers do."""
        asked, defaults = request.sampling, self._sampling_defaults
        unsaid = defaults.keys() - request.sent
        return replace(
            asked,
            temperature=defaults["temperature"] if "temperature" in unsaid else asked.temperature,
            top_p=defaults["top_p"] if "top_p" in unsaid else asked.top_p,
        )
