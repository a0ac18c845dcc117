"""What any surface asks of a model: read, and checked against everything but that model."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal, Protocol

from deepseek_recipe import ConversionOptions, ParsingOptions

from recipe.conversation import Conversation
from recipe.prompt import Sampling

ServiceTier = Literal["default", "flex"]  # as answers name it


class Converted(Protocol):
    """A body as families take it; deepseek-recipe's `ConversationRequest` is one."""

    @property
    def conversation(self) -> Conversation:
        """What is to be rendered."""

    @property
    def parsing_options(self) -> ParsingOptions:
        """How the answer begins, and whether it may hold calls. Stop strings are not in it."""

    def resolve_max_tokens(self, prompt_tokens: int, context_limit: int) -> int:
        """How long the answer may be where the body does not say."""


Convert = Callable[[ConversionOptions], Converted]


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A body of any surface. Surfaces add what their answers depend on.

    Attributes:
        model: the name the client asked for, not resolved.
        conversation: neutral; thinks only if the body says so.
        text: a raw prompt, to be continued as it is; the conversation is empty then. None: render the
            conversation.
        suffix: what is to follow the answer to ``text``; None: nothing is.
        convert: converts the body again, for families with options of their own. It raises ParameterInvalid,
            naming the parameter, when deepseek-recipe refuses it.
        max_tokens: at least 1; None when the body does not say.
        max_tokens_param: what the surface calls it.
        max_tokens_lowered: more than fits is lowered to what does, not refused.
        names: what it calls other parameters, by chat's names, which families refuse them by.
        forced_tool: where the conversation's tool choice is ``required``, the one tool that must be called;
            None leaves the model the choice among them.
        parallel_calls: the answer may hold more than one tool call.
        stop: no empty strings.
        stream: the answer is to come as events.
        logprobs: how many of the likeliest tokens are to be told beside each drawn one; None: of neither.
        user_id: DeepSeek's end-user id, which splits the tenant's cache; empty when absent.
        service_tier: how it is to be served, ``auto`` being ``default``; None when the body does not say.
        sent: names of the parameters that the body sets to anything but null.
        ignored_params: those without effect on any model of this house.
    """

    model: str
    conversation: Conversation
    convert: Convert = field(repr=False)
    sampling: Sampling
    text: str | None = None
    suffix: str | None = None
    max_tokens: int | None = None
    max_tokens_param: str = "max_tokens"
    max_tokens_lowered: bool = False
    names: Mapping[str, str] = field(default_factory=dict)
    forced_tool: str | None = None
    parallel_calls: bool = True
    stop: tuple[str, ...] = ()
    stream: bool = False
    logprobs: int | None = None
    user_id: str = ""
    service_tier: ServiceTier | None = None
    sent: frozenset[str] = frozenset()
    ignored_params: tuple[str, ...] = ()
