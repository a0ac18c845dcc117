"""Log probabilities as OpenAI's bodies tell them: token by token; of legacy completions, in columns."""

import codecs
from collections.abc import Sequence
from typing import Any

from recipe.events import Drawn, Likely


def token(drawn: Drawn) -> dict[str, Any]:
    """A drawn token, and the likeliest at its place."""
    return {**_likely(drawn.drawn), "top_logprobs": [_likely(likely) for likely in drawn.top]}


def _likely(likely: Likely) -> dict[str, Any]:
    """A token may be a part of a character: then its bytes alone say what it is."""
    text = likely.token.decode(errors="replace")
    return {"token": text, "logprob": likely.logprob, "bytes": list(likely.token)}


class Columns:
    """Legacy completions' lists, place by place; offsets count the characters of all tokens told before."""

    __slots__ = ("_characters", "_offset")

    def __init__(self) -> None:
        self._characters = codecs.getincrementaldecoder("utf-8")("replace")
        self._offset = 0

    def of(self, drawn: Sequence[Drawn]) -> dict[str, Any]:
        """The next tokens. The drawn one is among the likeliest of its place, if any are told."""
        offsets = []
        for one in drawn:
            offsets.append(self._offset)
            self._offset += len(self._characters.decode(one.drawn.token))
        return {
            "tokens": [_spelled(one.drawn.token) for one in drawn],
            "token_logprobs": [one.drawn.logprob for one in drawn],
            "top_logprobs": [_column(one) for one in drawn] if any(one.top for one in drawn) else None,
            "text_offset": offsets,
        }


def _column(drawn: Drawn) -> dict[str, float]:
    return {_spelled(likely.token): likely.logprob for likely in (*drawn.top, drawn.drawn)}


def _spelled(token: bytes) -> str:
    """A token as text; a part of a character by its bytes, so that no two are spelled the same."""
    try:
        return token.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in token)
