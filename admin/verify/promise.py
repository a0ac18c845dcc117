"""Which promises of the cache were broken, by the receipts and the prompts of a customer.

A *promise* is what a prefill attests with ``promised_until``: every full block (``block_tokens`` tokens) of
its prompt stays until that second, for prompts of the same scope: tenant, ``user_id`` and model. It counts
whether or not its attempt was accepted, not where its prompt was not computed, and by its own end alone: how
long a retention class promises is for the worker to say, a later use renews it by saying so itself, and what
computes the blocks (``namespace``) may change meanwhile, since promises outlive engines.

A request *could have hit* the longest prefix, in whole blocks of the promise, that its prompt shares with one
of a promise which was made before the request was admitted and had not ended then. It is counted in whole
blocks of its own prefill, and one token at least is always computed: at most ``prompt - 1`` tokens.

A promise is *broken* where the accepted prefill of the request attests less: ``hit + owed`` tokens. Owed ones
were promised and removed early, and cost what hits cost: that promise was kept. A request whose accepted
prefill is not attested says nothing of what it was served, and is not judged. Instants are of several clocks:
what was made or ends within `CLOCKS_APART_S` of the admission is not held against anybody.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from struct import pack
from typing import Final
from uuid import UUID

from engine.proof.attestation import PrefillAttestation

CLOCKS_APART_S: Final = 5

_APART_NS: Final = CLOCKS_APART_S * 10**9
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)

Scope = tuple[str, str, str]  # tenant, user_id, model


@dataclass(frozen=True, slots=True)
class Exchange:
    """A request whose prompt is the attested one. ``accepted`` is one of ``prefills``, or None."""

    request_id: UUID
    scope: Scope
    admitted_at: datetime
    token_ids: Sequence[int]
    prefills: tuple[PrefillAttestation, ...]
    accepted: PrefillAttestation | None

    @property
    def admitted_at_ns(self) -> int:
        """Unix nanoseconds."""
        return (self.admitted_at - _EPOCH) // _MICROSECOND * 1000


@dataclass(frozen=True, slots=True)
class Broken:
    """``missed_tokens`` were computed, and charged as misses, though the promise of ``by`` covered them."""

    request_id: UUID
    by: UUID
    until_s: int
    promised_tokens: int
    hit_tokens: int
    owed_tokens: int

    @property
    def missed_tokens(self) -> int:
        """What the promise covered and was neither hit nor owed."""
        return self.promised_tokens - self.hit_tokens - self.owed_tokens


@dataclass(frozen=True, slots=True)
class _Promise:
    made_at_ns: int
    until_s: int
    by: UUID


class _Promises:
    """All that was promised so far, by prefix: of each, the one that ends last."""

    def __init__(self) -> None:
        self._latest: dict[tuple[Scope, bytes], _Promise] = {}
        self._block_sizes: dict[Scope, set[int]] = {}

    def add(self, exchange: Exchange, prefill: PrefillAttestation, promise: _Promise) -> None:
        """Remember a promise of each prefix of its prompt."""
        self._block_sizes.setdefault(exchange.scope, set()).add(prefill.block_tokens)
        for name in _prefixes(exchange.token_ids, prefill.block_tokens):
            known = self._latest.get((exchange.scope, name))
            if known is None or known.until_s < promise.until_s:
                self._latest[exchange.scope, name] = promise

    def longest(self, exchange: Exchange) -> tuple[int, _Promise] | None:
        """The longest prefix that is promised at its admission, in tokens, and by which promise."""
        longest: tuple[int, _Promise] | None = None
        for block_tokens in sorted(self._block_sizes.get(exchange.scope, ())):
            for blocks, name in enumerate(_prefixes(exchange.token_ids, block_tokens), 1):
                promise = self._latest.get((exchange.scope, name))
                if promise is None or promise.until_s * 10**9 < exchange.admitted_at_ns + _APART_NS:
                    break
                if longest is None or blocks * block_tokens > longest[0]:
                    longest = blocks * block_tokens, promise
        return longest


def broken_promises(exchanges: Iterable[Exchange]) -> list[Broken]:
    """All that were, in the order of admissions."""
    ordered = sorted(exchanges, key=lambda each: (each.admitted_at, each.request_id))
    made = sorted(_made(ordered), key=lambda each: each[0].made_at_ns)
    promises, found, next_made = _Promises(), list[Broken](), 0
    for exchange in ordered:
        while next_made < len(made) and made[next_made][0].made_at_ns + _APART_NS <= exchange.admitted_at_ns:
            promise, by, prefill = made[next_made]
            promises.add(by, prefill, promise)
            next_made += 1
        broken = _judged(exchange, promises)
        if broken is not None:
            found.append(broken)
    return found


def _made(exchanges: Iterable[Exchange]) -> Iterator[tuple[_Promise, Exchange, PrefillAttestation]]:
    for exchange in exchanges:
        for prefill in exchange.prefills:
            if prefill.promised_until is not None and prefill.computed and prefill.block_tokens:
                promise = _Promise(prefill.attested_at_ns, prefill.promised_until, exchange.request_id)
                yield promise, exchange, prefill


def _judged(exchange: Exchange, promises: _Promises) -> Broken | None:
    prefill = exchange.accepted
    if prefill is None or not prefill.block_tokens:
        return None
    longest = promises.longest(exchange)
    if longest is None:
        return None
    could = min(longest[0], prefill.prompt_tokens - 1) // prefill.block_tokens * prefill.block_tokens
    if could <= prefill.hit_tokens + prefill.owed_tokens:
        return None
    return Broken(
        request_id=exchange.request_id,
        by=longest[1].by,
        until_s=longest[1].until_s,
        promised_tokens=could,
        hit_tokens=prefill.hit_tokens,
        owed_tokens=prefill.owed_tokens,
    )


def _prefixes(token_ids: Sequence[int], block_tokens: int) -> Iterator[bytes]:
    """A name of each prefix in whole blocks, the shortest first; it binds tokens and the size of blocks."""
    name = b"%d" % block_tokens
    for start in range(0, len(token_ids) - block_tokens + 1, block_tokens):
        block = token_ids[start : start + block_tokens]
        name = sha256(name + pack(f">{block_tokens}I", *block)).digest()
        yield name
