"""A wire to Postgres that breaks when it is told to: before a message gets there, or its answer back."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

SOCKET = ".s.PGSQL.5432"
# What a client sends last, before it waits for an answer: Query and Sync.
ASKING = b"QS"
READY = b"Z"
EXPECTED = (asyncio.CancelledError, asyncio.IncompleteReadError, ConnectionError)


@dataclass
class Wire:
    """A Unix socket in ``folder`` that leads to the one in ``server``.

    The ``breaks_at``-th question is the last: it is ``asked`` no more, or its answer is not ``told``.
    """

    folder: Path
    server: Path
    breaks_at: int = 0
    where: Literal["asked", "told"] = "asked"
    questions: int = 0

    @property
    def broken(self) -> bool:
        return 0 < self.breaks_at <= self.questions

    @asynccontextmanager
    async def laid(self) -> AsyncIterator["Wire"]:
        listening = await asyncio.start_unix_server(self._connect, self.folder / SOCKET)
        try:
            yield self
        finally:
            listening.close()

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        answers, questions = await asyncio.open_unix_connection(str(self.server / SOCKET))
        questions.write(await _message(reader, b""))
        both = [
            asyncio.create_task(way) for way in (self._ask(reader, questions), self._tell(answers, writer))
        ]
        await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        for each in both:
            each.cancel()
        ends = await asyncio.gather(*both, return_exceptions=True)
        for each in (writer, questions):
            each.close()
        if foreign := [end for end in ends if not isinstance(end, EXPECTED)]:
            raise foreign[0]

    async def _ask(self, reader: asyncio.StreamReader, questions: asyncio.StreamWriter) -> None:
        while True:
            kind = await reader.readexactly(1)
            message = await _message(reader, kind)
            if kind in ASKING:
                self.questions += 1
                if self.broken and self.where == "asked":
                    raise ConnectionResetError
            questions.write(message)

    async def _tell(self, answers: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            kind = await answers.readexactly(1)
            message = await _message(answers, kind)
            if self.broken:
                if kind == READY:  # it is done, and nobody is told
                    raise ConnectionResetError
                continue
            writer.write(message)


async def _message(reader: asyncio.StreamReader, kind: bytes) -> bytes:
    length = await reader.readexactly(4)
    return kind + length + await reader.readexactly(int.from_bytes(length, "big") - 4)
