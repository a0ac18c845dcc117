"""A request in the form an engine takes: token ids, stop rules and how to sample."""

from dataclasses import dataclass
from typing import Literal

from recipe.images import PlacedImage


@dataclass(frozen=True, slots=True)
class Sampling:
    """How to draw the next token; None leaves the choice to the engine's default.

    Ranges: ``temperature`` [0, 2], ``top_p`` (0, 1], penalties [-2, 2], ``seed`` [0, 2^63). ``top_k`` 0 is no
    limit.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    seed: int | None = None
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    top_k: int = 0


ConstraintKind = Literal["json_object", "json", "regex", "structural_tag"]


@dataclass(frozen=True, slots=True)
class Constraint:
    """What the answer's tokens must form; the engine enforces it.

    ``text`` is empty for ``json_object``, a JSON Schema for ``json``, a regular expression for ``regex`` and
    XGrammar's structural tag, as JSON, for ``structural_tag``.
    """

    kind: ConstraintKind
    text: str = ""


Calls = Literal["none", "one", "many"]


@dataclass(frozen=True, slots=True)
class Prompt:
    """A rendered and encoded request.

    Attributes:
        token_ids: the whole prompt, at least one token, shorter than the model's context.
        stop_token_ids: generation ends with any of these; the engine must be told them.
        stop: stop strings, matched by the output parser; the engine never sees them.
        starts_thinking: the model's first token belongs to its reasoning.
        sampling: the request's, as far as the model allows; what goes to the engine.
        ignored_params: parameters of the body that have no effect on this model, for ``x-ignored-params``.
        max_tokens_default: completion length when the request sets none, before the context limits it.
        constraint: None leaves the model free.
        raw: a text and no conversation: the answer has no markup.
        calls: how many tool calls the answer may hold; with ``none``, their markup is text.
        opens_calls: the prompt ends with the markup that begins calls; the first token belongs to one.
        continues: the prompt ends inside a message that the client began; its text goes on as it is.
        images: in the order of their places, which do not overlap; their tokens are prompt tokens.
    """

    token_ids: tuple[int, ...]
    stop_token_ids: tuple[int, ...]
    stop: tuple[str, ...]
    starts_thinking: bool
    sampling: Sampling
    ignored_params: tuple[str, ...]
    max_tokens_default: int
    constraint: Constraint | None = None
    raw: bool = False
    calls: Calls = "none"
    opens_calls: bool = False
    continues: bool = False
    images: tuple[PlacedImage, ...] = ()
