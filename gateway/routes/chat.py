"""Chat completions, streamed and not, in DeepSeek's and OpenAI's shape."""

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
from recipe.protocols import chat
from recipe.protocols.chat import ChatRequest
from recipe.protocols.chat_answer import AnswerHead, AnswerStyle, ChatStream, answer


class ChatSurface:
    """See `gateway.surface.Surface`."""

    heartbeat = sse.COMMENT

    def read(self, body: bytes) -> ChatRequest:
        """See `Surface`."""
        return chat.read(body)

    def writer(self, asked: Asked[ChatRequest], hold: Hold) -> Writer:
        """See `Surface`."""
        head = AnswerHead(
            id=f"chatcmpl-{hold.request_id}",
            model=asked.served.name,
            created=int(hold.admitted_at.timestamp()),
            service_tier=asked.request.service_tier,
        )
        style = AnswerStyle.of(asked.request, thinking=asked.prompt.starts_thinking)
        if not asked.request.stream:
            return WholeWriter(partial(answer, head, style), self.broken)
        return StreamWriter(ChatStream(head, style), self.broken, sse.DONE)

    def broken(self, error: Exception) -> bytes:
        """See `Surface`: no `[DONE]` follows it."""
        return sse.frame(answer_of(error).body)


SURFACE: Final = ChatSurface()


@post(list(paths.CHAT), status_code=200)
async def complete(request: AnyRequest) -> ASGIResponse:
    """Answer a conversation; see `gateway.routes.inference.answer`."""
    return await inference.answer(request, SURFACE)
