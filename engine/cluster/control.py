"""What an operator asks of one worker: how busy it is, and to take no more."""

import asyncio
from collections.abc import Callable
from http import HTTPStatus
from typing import Any, Final

import aiohttp
import msgspec

from engine.cluster.options import WorkerAddress
from engine.mac import MAC_HEADER, call_mac
from engine.wire import DRAIN_PATH, REPORT_PATH, WireInvalid, WorkerReport

ANSWER_TIMEOUT_S: Final = 2.0


class Control:
    """One worker's side door. A worker that does not answer in time is told apart by the result, not raised.

    Args:
        address: where it listens.
        secret: what its callers must know.
        now_s: the wall clock in Unix seconds; calls are signed with it.
    """

    def __init__(self, address: WorkerAddress, secret: bytes, now_s: Callable[[], int]) -> None:
        self._address = address
        self._secret = secret
        self._now_s = now_s

    async def report(self) -> WorkerReport | None:
        """What it says of itself now; None when it says nothing."""
        answer = await self._call("GET", REPORT_PATH, b"")
        try:
            return None if answer is None else WorkerReport.from_json(msgspec.json.decode(answer))
        except (msgspec.DecodeError, WireInvalid):
            return None

    async def drain(self, draining: bool = True) -> bool:
        """Have gateways send it nothing more, or again; whether it heard. What runs there goes on."""
        body: dict[str, Any] = {"draining": draining}
        return await self._call("POST", DRAIN_PATH, msgspec.json.encode(body)) is not None

    async def _call(self, method: str, path: str, body: bytes) -> bytes | None:
        headers = {
            MAC_HEADER: call_mac(self._secret, method, path, body, self._now_s()),
            "Content-Type": "application/json",
        }
        connector = aiohttp.UnixConnector(path=str(self._address.socket))
        try:
            async with (
                asyncio.timeout(ANSWER_TIMEOUT_S),
                aiohttp.ClientSession("http://worker", connector=connector) as session,
                session.request(method, path, data=body or None, headers=headers) as response,
            ):
                return await response.read() if response.status == HTTPStatus.OK else None
        except (aiohttp.ClientError, OSError, TimeoutError):
            return None
