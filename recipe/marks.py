"""How a model marks its reasoning and its tool calls in the text of an answer."""

from dataclasses import dataclass
from typing import Final, Self

from recipe.tokenizer import AddedTokens

THINK: Final = "<think>"
THINK_END: Final = "</think>"
CALL: Final = "<tool_call>"
CALL_END: Final = "</tool_call>"
_NAMES: Final = (THINK, THINK_END, CALL, CALL_END)


@dataclass(frozen=True, slots=True)
class Marks:
    """The marks as they stand in the text that is read."""

    think: str = THINK
    think_end: str = THINK_END
    call: str = CALL
    call_end: str = CALL_END

    @classmethod
    def of_vocabulary(cls, added: AddedTokens) -> Self:
        """Marks that no spelled-out text can forge, where the vocabulary has tokens of their own for them.

        Such a token is read as a lone surrogate, which is in no text of a model: the same characters spelled
        out, copied from a user perhaps, are no mark.
        """
        return cls(*(chr(0xDC00 + place) if name in added.ids else name for place, name in enumerate(_NAMES)))

    def tokens(self, added: AddedTokens) -> dict[int, str]:
        """Ids of the marks that are tokens, and what each is read as."""
        read_as = zip(_NAMES, (self.think, self.think_end, self.call, self.call_end), strict=True)
        return {added.ids[name]: mark for name, mark in read_as if name in added.ids}

    def spelled(self, text: str) -> str:
        """``text`` as a client is to see it."""
        if not text.isprintable():  # a surrogate is not
            for place, name in enumerate(_NAMES):
                text = text.replace(chr(0xDC00 + place), name)
        return text
