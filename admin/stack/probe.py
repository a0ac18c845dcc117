"""Readiness over HTTP: one GET, answered with 200 or not."""

import asyncio
from pathlib import Path
from typing import Final

ANSWER_TIMEOUT_S: Final = 2.0


async def over_socket(socket: Path, path: str) -> bool:
    """Ask a server on a Unix socket."""
    try:
        async with asyncio.timeout(ANSWER_TIMEOUT_S):
            return await _asked(*await asyncio.open_unix_connection(str(socket)), path)
    except (OSError, TimeoutError):
        return False


async def _asked(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, path: str) -> bool:
    try:
        writer.write(f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode())
        return b" 200 " in await reader.readline()
    finally:
        writer.close()
