"""The receipt log as anyone may ask for it, without a key: few readings of the database, and an even pace."""

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

import msgspec

from billing.errors import HeadMissing
from billing.receipts.log.head import StoredHead
from billing.receipts.log.service import ReceiptLog
from engine.proof import signed
from gateway.refusal import LogBusy

HEADS_MAX: Final = 100  # of a page
PROOFS_MAX: Final = 1_000
HEAD_AGE_MAX_S: Final = 5.0
CERTIFICATES_AGE_MAX_S: Final = 60.0
RATE_S: Final = 50.0
BURST: Final = 200.0

Read = TypeVar("Read")


@dataclass(slots=True)
class Pace:
    """Lets so many pass a second on average, and a few more at once."""

    now_s: Callable[[], float]
    left: float = BURST
    asked_s: float = 0.0

    def take(self) -> None:
        """Pass; raises LogBusy where too many have."""
        now_s = self.now_s()
        self.left = min(BURST, self.left + RATE_S * max(0.0, now_s - self.asked_s))
        self.asked_s = now_s
        if self.left < 1.0:
            raise LogBusy
        self.left -= 1.0


class _Recent(Generic[Read]):
    """What was read a moment ago; those who ask meanwhile wait for one reading."""

    def __init__(self, read: Callable[[], Awaitable[Read]], age_max_s: float) -> None:
        self._read = read
        self._age_max_s = age_max_s
        self._last: tuple[float, Read] | None = None
        self._reading = asyncio.Lock()

    async def get(self) -> Read:
        async with self._reading:
            if self._last is None or _now_s() - self._last[0] > self._age_max_s:
                self._last = _now_s(), await self._read()
            return self._last[1]

    def forget(self) -> None:
        self._last = None


class PublicLog:
    """Heads, proofs between them, and certificates; what never changes is kept.

    Args:
        log: read without a signer.
        keys: text of the deployment's ring.
    """

    def __init__(self, log: ReceiptLog, keys: str) -> None:
        self.log = log
        self.keys = keys
        self.pace = Pace(_now_s)
        self._newest = _Recent(log.newest, HEAD_AGE_MAX_S)
        self._certificates = _Recent(self._read_certificates, CERTIFICATES_AGE_MAX_S)
        self._proofs: OrderedDict[tuple[int, int], tuple[bytes, ...]] = OrderedDict()

    async def newest(self) -> StoredHead | None:
        """The newest head, a few seconds late at most; None: nothing was ever sealed."""
        return await self._newest.get()

    async def heads(self, after: int, heads_max: int) -> list[StoredHead]:
        """Heads of more than ``after`` leaves, the smallest first."""
        return await self.log.heads(after, heads_max)

    async def consistency(self, first: int, second: int) -> tuple[bytes, ...]:
        """That the log of ``second`` leaves begins with that of ``first``.

        Raises:
            HeadMissing: there is no head of one of these sizes.
        """
        if not 0 <= first <= second:
            raise HeadMissing(first)
        known = self._proofs.get((first, second))
        if known is None:
            known = self._proofs[first, second] = await self.log.consistency(first, second)
            if len(self._proofs) > PROOFS_MAX:
                self._proofs.popitem(last=False)
        return known

    async def certificates(self) -> dict[str, str]:
        """Of all workers' keys, by the key's id; a minute late at most."""
        return await self._certificates.get()

    async def certificates_of(self, key_ids: set[str]) -> list[str]:
        """Those of some keys, as far as there are any."""
        known = await self.certificates()
        if not key_ids <= known.keys():
            self._certificates.forget()
            known = await self.certificates()
        return [known[key_id] for key_id in sorted(key_ids & known.keys())]

    async def _read_certificates(self) -> dict[str, str]:
        return {_certified(text): text for text in await self.log.certificates()}


class _Payload(msgspec.Struct):
    public_key: bytes  # msgspec reads base64


class _Certificate(msgspec.Struct):
    payload: _Payload


def _certified(text: str) -> str:
    """Id of the key that a certificate is of."""
    raw = msgspec.json.decode(text, type=_Certificate).payload.public_key
    return signed.key_id_of(signed.public_key(raw))


def _now_s() -> float:
    return asyncio.get_running_loop().time()
