"""Takes over what workers have attested: fetched, verified, kept by whoever wants it, then acknowledged."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Final

from engine.cluster.accept import Rings
from engine.cluster.answer import WorkerDown
from engine.cluster.options import EngineOptions
from engine.cluster.worker_client import WorkerClient
from engine.errors import WorkerAnswerInvalid
from engine.proof.attestation import Attestation, read_attestation
from engine.proof.signed import ProofInvalid
from engine.wire import JournalLine

LINES_MAX: Final = 256
# A worker whose journal never ends may cost a drain this long, in seconds; the next one goes on behind it.
DRAIN_S: Final = 60.0

_log: Final = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Attested:
    """One verified attestation, the signed document it was read from, and its worker's certificate."""

    document: str
    attestation: Attestation
    certificate: str


@dataclass(frozen=True, slots=True)
class Drained:
    """What a drain came to.

    Args:
        lines: attestations that were kept.
        unreachable: names of workers whose journal was not drained to its end.
        refused: lines that no certified worker has signed; they are acknowledged and gone.
    """

    lines: int
    unreachable: tuple[str, ...]
    refused: int = 0


Keep = Callable[[Sequence[Attested]], Awaitable[None]]


class Journals:
    """The journals of all workers. Open, use and close it in one event loop; one drain at a time.

    Raises:
        ProofInvalid: the deployment's key is no Ed25519 public key (`engine.proof.signed`).
    """

    def __init__(self, options: EngineOptions) -> None:
        self._clients = tuple(
            WorkerClient(address, options.deadlines, options.call_headers) for address in options.workers
        )
        self._rings = Rings(options.deployment_public_key)

    async def open(self) -> None:
        """Prepare; connects to nothing yet."""
        for client in self._clients:
            await client.open()

    async def close(self) -> None:
        """Disconnect."""
        for client in self._clients:
            await client.close()

    async def drain(self, keep: Keep) -> Drained:
        """Take over every line that was there when its journal was asked, and acknowledge it.

        Workers are asked side by side, so that a silent one delays nobody else's lines; `keep` is called for
        one batch at a time. A batch that was kept but could not be acknowledged comes again, so `keep` must
        be idempotent. Lines that do not verify are logged, counted and acknowledged: they would block the
        others for ever.

        Args:
            keep: stores a batch durably.

        Raises:
            Exception: whatever `keep` raised first; nothing of its batch is acknowledged.
        """
        one = asyncio.Lock()

        async def keep_one(batch: Sequence[Attested]) -> None:
            async with one:
                await keep(batch)

        ends = await asyncio.gather(
            *(self._drain(client, keep_one) for client in self._clients), return_exceptions=True
        )
        drained: list[Drained] = []
        for end in ends:
            if isinstance(end, BaseException):
                raise end
            drained.append(end)
        return Drained(
            sum(one.lines for one in drained),
            tuple(name for one in drained for name in one.unreachable),
            sum(one.refused for one in drained),
        )

    async def _drain(self, client: WorkerClient, keep: Keep) -> Drained:
        name = client.address.name
        kept = refused = after = 0
        now_s = asyncio.get_running_loop().time
        until_s = now_s() + DRAIN_S
        try:
            while True:
                lines = await client.journal(after, LINES_MAX)
                batch = [attested for line in lines if (attested := self._read(name, line)) is not None]
                if batch:
                    await keep(batch)
                if lines:
                    after = lines[-1].sequence
                    await client.acknowledge(after)
                kept, refused = kept + len(batch), refused + len(lines) - len(batch)
                if len(lines) < LINES_MAX:
                    return Drained(kept, (), refused)
                if now_s() >= until_s:
                    return Drained(kept, (name,), refused)
        except (WorkerDown, WorkerAnswerInvalid) as error:
            _log.warning("the journal of %s could not be drained: %s", name, error)
            return Drained(kept, (name,), refused)

    def _read(self, worker: str, line: JournalLine) -> Attested | None:
        try:
            ring = self._rings.of(worker, line.certificate)
            return Attested(line.attestation, read_attestation(line.attestation, ring), line.certificate)
        except ProofInvalid as error:
            _log.error("line %d of the journal of %s does not hold: %s", line.sequence, worker, error)
            return None
