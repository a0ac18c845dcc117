"""Everything that can go wrong between a protocol body and its token ids, as a tree.

RecipeError
├── BodyMalformed          the body is no JSON object
├── ParameterInvalid       a parameter is missing, of the wrong type or out of range
├── ParameterUnsupported   a parameter asks for what this model or this house does not serve
├── PromptTooLong          prompt and completion do not fit the model's context
├── ModelUnreadable        a model directory lacks, or has in an unknown form, what a recipe needs
└── UsageMalformed         a usage document counts tokens that cannot be
"""


class RecipeError(Exception):
    """Root of the tree; ``str()`` is a sentence for the client and quotes no prompt text."""


class BodyMalformed(RecipeError):
    """The body is not a JSON object."""


class ParameterInvalid(RecipeError):
    """A parameter cannot be accepted.

    Attributes:
        param: its path in the body, such as ``"temperature"`` or ``"messages[2]"``.
        malformed: True when it is missing or of the wrong type, False when its value is out of range.
    """

    def __init__(self, param: str, message: str, *, malformed: bool = False) -> None:
        super().__init__(message)
        self.param = param
        self.message = message
        self.malformed = malformed


class ParameterUnsupported(RecipeError):
    """A parameter asks for something that is not served; answering without it would mislead the client."""

    def __init__(self, param: str, message: str) -> None:
        super().__init__(message)
        self.param = param
        self.message = message


class PromptTooLong(RecipeError):
    """Prompt and requested completion exceed the context.

    Attributes:
        context_tokens: what the model's context holds.
        prompt_tokens: length of the prompt; a lower bound when the text was too long to be worth encoding.
        max_tokens: the completion asked for; None when the prompt alone fills the context.
        param: what holds the prompt in a body of chat.
    """

    def __init__(self, context_tokens: int, prompt_tokens: int, max_tokens: int | None = None) -> None:
        self.param = "messages"
        self.context_tokens = context_tokens
        self.prompt_tokens = prompt_tokens
        self.max_tokens = max_tokens
        limit = f"This model's maximum context length is {context_tokens} tokens."
        if max_tokens is None:
            asked = f" However, your messages have at least {prompt_tokens} tokens."
        else:
            asked = (
                f" However, you requested {prompt_tokens + max_tokens} tokens"
                f" ({prompt_tokens} in the messages, {max_tokens} in the completion)."
            )
        super().__init__(f"{limit}{asked} Please reduce the length of the messages or completion.")


class ModelUnreadable(RecipeError):
    """A model directory cannot be served; the message names the file and what is wrong with it."""


class UsageMalformed(RecipeError):
    """Token counts contradict each other; such usage is quarantined, never billed."""
