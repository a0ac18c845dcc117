"""Anthropic's Messages, streamed and not, and how many tokens a body has."""

from functools import partial
from typing import Final

from litestar import post
from litestar.response.base import ASGIResponse

from gateway import paths, sse
from gateway.admission.hold import Hold
from gateway.desk import AnyRequest
from gateway.errors import answer_of
from gateway.routes import inference
from gateway.surface import Asked
from gateway.writer import StreamWriter, WholeWriter, Writer
from recipe.errors import PromptTooLong
from recipe.protocols import messages, messages_answer
from recipe.protocols.messages_answer import AnswerHead, MessagesStream
from recipe.request import Request


class MessagesSurface:
    """See `gateway.surface.Surface`."""

    heartbeat = sse.PING

    def read(self, body: bytes) -> Request:
        """See `Surface`."""
        return messages.read(body)

    def writer(self, asked: Asked[Request], hold: Hold) -> Writer:
        """See `Surface`."""
        head = AnswerHead(request_id=str(hold.request_id), model=asked.served.name)
        broken = partial(_broken, head.request_id)
        if not asked.request.stream:
            return WholeWriter(partial(messages_answer.answer, head), broken)
        return StreamWriter(MessagesStream(head), broken)

    def broken(self, error: Exception) -> bytes:
        """See `Surface`: the request has no id yet."""
        return _broken("", error)


class CountedSurface(MessagesSurface):
    """Bodies that are only counted."""

    def read(self, body: bytes) -> Request:
        """See `Surface`."""
        return messages.read_counted(body)


def _broken(request_id: str, error: Exception) -> bytes:
    """An error event; no `message_stop` follows it."""
    return b"event: error\n" + sse.frame(answer_of(error).anthropic(request_id))


SURFACE: Final = MessagesSurface()
COUNTED: Final = CountedSurface()


@post(list(paths.MESSAGES), status_code=200)
async def converse(request: AnyRequest) -> ASGIResponse:
    """Answer a conversation; see `gateway.routes.inference.answer`."""
    return await inference.answer(request, SURFACE)


@post(list(paths.COUNT_TOKENS), status_code=200)
async def count_tokens(request: AnyRequest) -> dict[str, int]:
    """Say how many tokens a body's prompt has; nothing is held or charged for it.

    Of one that does not fit the model, too, since agents ask in order to know that. Where its text is too
    long to be worth encoding, it has at least so many.
    """
    try:
        return {"input_tokens": await inference.count(request, COUNTED)}
    except PromptTooLong as error:
        return {"input_tokens": error.prompt_tokens}
