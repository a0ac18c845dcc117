"""Posting notices to endpoints of tenants, by aiohttp."""

import asyncio
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Final

import aiohttp

from billing.notify.delivery import Reply
from gateway.destinations import Network, guarded_connector, url_fault

TIMEOUT_S: Final = 15.0
SAID_BYTES_MAX: Final = 512
USER_AGENT: Final = "Kvitto-Webhooks"


class HttpSender:
    """A `billing.notify.delivery.Sender`. No cookies are kept, no redirects followed, no proxy asked.

    Args:
        allowed: networks of the operator's that tenants' endpoints may be in, beside the internet.
        timeout_s: of an attempt as a whole.
    """

    def __init__(self, allowed: Sequence[Network] = (), timeout_s: float = TIMEOUT_S) -> None:
        self._allowed = tuple(allowed)
        self._session = aiohttp.ClientSession(
            connector=guarded_connector(self._allowed, limit=0, force_close=True),
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=False,  # what it says may be a bomb
            timeout=aiohttp.ClientTimeout(total=timeout_s),
        )

    async def close(self) -> None:
        """Send no more."""
        await self._session.close()

    async def post(self, url: str, body: bytes, headers: Mapping[str, str]) -> Reply:
        """One attempt. Of the answer little is read: what it says is for whoever repairs the endpoint."""
        begun_s = asyncio.get_running_loop().time()
        status, said = await self._answer(url, body, headers)
        return Reply(status, said, timedelta(seconds=asyncio.get_running_loop().time() - begun_s))

    async def _answer(self, url: str, body: bytes, headers: Mapping[str, str]) -> tuple[int | None, str]:
        fault = url_fault(url, self._allowed)  # the operator may allow less than when it was added
        if fault is not None:
            return None, fault
        sent = {"content-type": "application/json", "user-agent": USER_AGENT, **headers}
        status = None
        try:
            async with self._session.post(url, data=body, headers=sent, allow_redirects=False) as answer:
                status = answer.status
                return status, (await answer.content.read(SAID_BYTES_MAX)).decode(errors="replace")
        except TimeoutError:
            return status, "no whole answer in time"
        except aiohttp.ClientConnectorError as error:
            return status, f"cannot connect: {error.os_error.strerror or error.os_error}"
        except (aiohttp.ClientError, ValueError) as error:
            return status, str(error) or type(error).__name__
