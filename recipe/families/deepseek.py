"""DeepSeek V4 and V4.1: rendered, encoded and parsed by deepseek-recipe."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, Self

import deepseek_recipe
import msgspec

from recipe import constraint
from recipe.conversation import Conversation, continued
from recipe.detokenizer import Detokenizer
from recipe.errors import ParameterInvalid
from recipe.events import Event, Finish, FinishReason, Text, Thinking, ToolArguments, ToolCall
from recipe.families.deepseek_vision import IMAGE, DeepSeekVision
from recipe.families.limits import (
    calls_of,
    completion_tokens,
    refuse_hopeless,
    refuse_overlong,
    refuse_unserved,
)
from recipe.families.model_files import ModelFiles, read_model_files
from recipe.families.raw import encode_raw
from recipe.families.vision import has_images, image_mark, placed, with_mark
from recipe.images import NO_IMAGES, Images
from recipe.memo import EncodeMemo
from recipe.parser import OutputParser, PlainParser
from recipe.prompt import Constraint, Prompt, Sampling
from recipe.protocols.conversion import MODEL
from recipe.request import Request
from recipe.tokenizer import Tokenizer

VERSIONS: Final[Mapping[str, Any]] = {
    "deepseek-v4": deepseek_recipe.ModelVersion.DeepseekV4Pro,
    "deepseek-v4.1": deepseek_recipe.ModelVersion.DeepseekV41Flash,
}
_ENCODINGS: Final[Mapping[str, Any]] = {
    "deepseek-v4": deepseek_recipe.DeepseekV4Encoding,
    "deepseek-v4.1": deepseek_recipe.DeepseekV41Encoding,
}
HOLE_TOKENS_MAX: Final = 4096  # DeepSeek's, of completions in the middle
_BOS: Final = deepseek_recipe.SpecialToken.Bos.default_str()
_EOS: Final = deepseek_recipe.SpecialToken.Eos.default_str()
_THINKING_END: Final = deepseek_recipe.SpecialToken.ThinkingEnd.default_str()
_FORCED: Final = ("temperature", "top_p")
_THINKING: Final = frozenset({"thinking", "reasoning_effort", "reasoning", "enable_thinking"})
_Stage: Final = deepseek_recipe.ThinkingInitialStage


class DeepSeek:
    """The recipe of a DeepSeek model. Thinks unless the body says otherwise."""

    __slots__ = (
        "_bos",
        "_encoding",
        "_options",
        "_stop_token_ids",
        "_version",
        "_vision",
        "context_tokens",
        "memo",
        "served_name",
        "tokenizer",
    )

    def __init__(
        self, model_dir: Path, files: ModelFiles, served_name: str, family: str, memo: EncodeMemo
    ) -> None:
        self.memo = memo
        self.served_name = served_name
        self.context_tokens = files.context_tokens
        self.tokenizer = Tokenizer.from_model_dir(model_dir)
        self._version = VERSIONS[family]
        self._options = deepseek_recipe.ConversionOptions().with_model_alias(MODEL, self._version)
        self._encoding = _ENCODINGS[family]()
        self._bos = self.tokenizer.special(_BOS)
        self._vision = DeepSeekVision.of(files, self.tokenizer) if family == "deepseek-v4.1" else None
        ends = {*files.eos_token_ids(self.tokenizer), self.tokenizer.special(_EOS)}
        self._stop_token_ids = tuple(sorted(ends))

    @classmethod
    def from_model_dir(
        cls, model_dir: Path, served_name: str, family: str, context_tokens: int | None, memo: EncodeMemo
    ) -> Self:
        """Read a model directory; ModelUnreadable when it cannot be served."""
        made = cls(model_dir, read_model_files(model_dir), served_name, family, memo)
        made.context_tokens = context_tokens or made.context_tokens
        return made

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
        converted = request.convert(with_mark(self._options, mark) if mark else self._options)
        conversation = converted.conversation
        contents = [message.content for message in conversation.messages]
        refuse_hopeless(contents, self.tokenizer, self.context_tokens)
        encoded, sources = self._encoded(conversation, scope, mark)
        token_ids, placed_images = placed(encoded, sources, images, self._vision)
        refuse_overlong(len(token_ids), self.context_tokens)
        sampling = self._sampling(request.sampling, thinks=conversation.thinking_mode)
        ignored: set[str] = set()
        if request.conversation.thinking_mode and not conversation.thinking_mode:
            # The prompt opens the call that is forced, and reasoning would come before it.
            ignored |= request.sent & _THINKING
        if any(tool.strict for tool in conversation.tools):
            ignored.add("strict")  # no grammar for calls in DSML
        reading = converted.parsing_options
        stage = reading.thinking_initial_stage
        starts_thinking = stage is not None and stage.starts_in_reasoning()
        return Prompt(
            token_ids=token_ids,
            stop_token_ids=self._stop_token_ids,
            stop=request.stop,
            starts_thinking=starts_thinking,
            sampling=sampling,
            ignored_params=tuple(sorted({*self._ignored(request, sampling), *ignored})),
            max_tokens_default=converted.resolve_max_tokens(len(token_ids), self.context_tokens),
            constraint=self._constraint(conversation, starts_thinking=starts_thinking),
            calls=calls_of(request),
            opens_calls=reading.starts_in_tool_calls,
            continues=continued(conversation) is not None,
            images=placed_images,
        )

    def _raw(self, request: Request) -> Prompt:
        """A text begins as conversations do; like DeepSeek's, this house does not think about it."""
        token_ids = encode_raw(request, self.tokenizer, (self._bos,), self.context_tokens)
        refuse_overlong(len(token_ids), self.context_tokens)
        sampling = self._sampling(request.sampling, thinks=False)
        return Prompt(
            token_ids=token_ids,
            stop_token_ids=self._stop_token_ids,
            stop=request.stop,
            starts_thinking=False,
            sampling=sampling,
            ignored_params=self._ignored(request, sampling),
            max_tokens_default=HOLE_TOKENS_MAX,
            raw=True,
        )

    def _ignored(self, request: Request, sampling: Sampling) -> tuple[str, ...]:
        forced = {name for name in _FORCED if getattr(sampling, name) != getattr(request.sampling, name)}
        return tuple(sorted({*request.ignored_params, *forced}))

    def max_tokens(self, request: Request, prompt: Prompt) -> int:
        """See `recipe.registry.Recipe`."""
        if request.suffix is not None and (request.max_tokens or 0) > HOLE_TOKENS_MAX:
            param = request.max_tokens_param
            raise ParameterInvalid(param, f"'{param}' must be at most {HOLE_TOKENS_MAX} with a 'suffix'")
        return completion_tokens(request, prompt, self.context_tokens)

    def parser(self, prompt: Prompt) -> OutputParser:
        """See `recipe.registry.Recipe`."""
        if prompt.raw:
            return PlainParser(self.tokenizer, prompt.stop_token_ids, prompt.stop)
        return DeepSeekParser(self.tokenizer, prompt)

    def _constraint(self, conversation: Conversation, *, starts_thinking: bool) -> Constraint | None:
        """What the engine must enforce; a forced call needs none, as the prompt opens it."""
        if conversation.tool_choice == "required":
            return None
        return constraint.of_response_format(conversation, after=_THINKING_END if starts_thinking else None)

    def _encoded(
        self, conversation: Conversation, scope: str, mark: str
    ) -> tuple[list[int], Sequence[deepseek_recipe.ImageSource]]:
        """Ids of what deepseek-recipe renders: its special tokens, and the plain text between them.

        Its image token, here a mark, is one of them. The sources of images come in the order of these.
        """
        encoding = self._encoding
        if mark:
            encoding = encoding.with_special_tokens(deepseek_recipe.SpecialTokens(image=mark))
        page = encoding.render_conversation(conversation)
        text, ranges, encode = page.prompt, page.special_ranges, self.tokenizer.encode_plain
        ends = [0, *(stop for _, stop in ranges)]
        plain = [text[end:start] for end, (start, _) in zip(ends, [*ranges, (len(text), 0)], strict=True)]
        first, *others = self.memo.ids(scope, plain, lambda place: encode(plain[place]))
        token_ids = [*first]
        for (start, stop), ids in zip(ranges, others, strict=True):
            name = text[start:stop]
            token_ids.append(self.tokenizer.special(IMAGE if name == mark else name))
            token_ids += ids
        return token_ids, page.image_sources

    def _sampling(self, asked: Sampling, *, thinks: bool) -> Sampling:
        """What the models are made for: temperature 1 while thinking, V4.1 with the whole distribution."""
        if thinks:
            asked = replace(asked, temperature=1.0)
        if self._version == deepseek_recipe.ModelVersion.DeepseekV41Flash:
            asked = replace(asked, top_p=1.0)
        return asked


class DeepSeekParser:
    """deepseek-recipe's state machine over whole characters: reasoning, answer, calls, stop strings."""

    __slots__ = (
        "_call_count",
        "_detokenizer",
        "_ended",
        "_one_call",
        "_processor",
        "_stop_sequence",
        "_stop_token_ids",
        "_thinking_end",
        "_thinks",
        "reasoning_tokens",
        "stopped",
    )

    def __init__(self, tokenizer: Tokenizer, prompt: Prompt) -> None:
        self.reasoning_tokens = 0
        self.stopped = False
        self._detokenizer = Detokenizer(tokenizer)
        self._stop_token_ids = frozenset(prompt.stop_token_ids)
        self._thinking_end = tokenizer.added.ids.get(_THINKING_END)
        self._thinks = prompt.starts_thinking
        self._ended = False
        self._one_call = prompt.calls == "one"
        self._call_count = 0
        self._stop_sequence: str | None = None
        options = deepseek_recipe.ParsingOptions(
            parse_tool_calls=prompt.calls != "none",
            starts_in_tool_calls=prompt.opens_calls,
            thinking_initial_stage=_stage(prompt),
            stop_sequences=list(prompt.stop),
        )
        # Of its three protocols, Messages alone names the stop string that matched.
        generator = deepseek_recipe.MessagesChunkGenerator("", "", prompt.starts_thinking)
        self._processor = deepseek_recipe.StreamProcessor(generator, options)

    def push(self, token_ids: Sequence[int]) -> list[Event]:
        """See `OutputParser`."""
        if self._ended or self.stopped:
            return []
        visible: list[int] = []
        for token_id in token_ids:
            if token_id in self._stop_token_ids:
                self._ended = True
                break
            visible.append(token_id)
            self.reasoning_tokens += self._thinks
            self._thinks = self._thinks and token_id != self._thinking_end
        return self._parsed(self._detokenizer.push(visible))

    def finish(self, reason: FinishReason) -> list[Event]:
        """See `OutputParser`."""
        events = self._parsed(self._detokenizer.flush())
        if self.stopped:
            reason = "stop"
        else:
            reasons = deepseek_recipe.InferenceFinishReason
            ending = reasons.Stop if reason == "stop" else reasons.Length
            events += self._events(self._processor.push(deepseek_recipe.InferenceChunk.finish(ending)))
        called = self._call_count > 0 and reason == "stop"
        return [*events, Finish("tool_calls" if called else reason, self._stop_sequence)]

    def _parsed(self, text: str) -> list[Event]:
        if not text or self.stopped:
            return []
        events = self._events(self._processor.push(deepseek_recipe.InferenceChunk.text(text)))
        self.stopped = self.stopped or bool(self._processor.finished)
        return events

    def _events(self, chunks: Sequence[Any]) -> list[Event]:
        """What is in deepseek-recipe's chunks; ids, roles and usage are the surface's to write."""
        events: list[Event] = []
        for chunk in chunks:
            if self.stopped:
                break
            said = msgspec.json.decode(chunk.to_json())
            match said["type"]:
                case "content_block_delta":
                    events += self._delta(said["delta"])
                case "content_block_start" if said["content_block"]["type"] == "tool_use":
                    if self._one_call and self._call_count:
                        self.stopped = True
                    else:
                        events.append(ToolCall(self._call_count, said["content_block"]["name"]))
                        self._call_count += 1
                case "message_delta":
                    self._stop_sequence = said["delta"]["stop_sequence"]
        return events

    def _delta(self, delta: Any) -> list[Event]:
        match delta["type"]:
            case "text_delta":
                return [Text(delta["text"])] if delta["text"] else []
            case "thinking_delta":
                return [Thinking(delta["thinking"])] if delta["thinking"] else []
            case "input_json_delta" if delta["partial_json"]:
                return [ToolArguments(self._call_count - 1, delta["partial_json"])]
        return []


def _stage(prompt: Prompt) -> Any:
    """Where parsing begins, in deepseek-recipe's words; None for an answer without reasoning."""
    if prompt.starts_thinking:
        return _Stage.ReasoningContinuation if prompt.continues else _Stage.ReasoningStart
    return _Stage.ContentContinuation if prompt.continues else None
