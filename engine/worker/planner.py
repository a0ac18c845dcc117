"""The scheduler's half: looks prefixes up, orders loads and publications, attests what was really done.

It runs in vLLM's engine core; an exception there ends the worker, so `engine.worker.connector` guards it.
Requests without our parameters or without a salt touch no store.
"""

import logging
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, Final

from engine.proof.prefix import ROOT_HASH
from engine.store.directory import Match, PrefixStore, TenantBlocks
from engine.wire import AnswerParams, RequestParams, WireInvalid
from engine.worker import clock
from engine.worker.attest import Attestor
from engine.worker.journal import Journal
from engine.worker.messages import BlockJob, StepOrders, StepReport
from engine.worker.patience import Patience, answer
from engine.worker.tracked import Lookup, Tracked

_LOG: Final = logging.getLogger("vllm.kvitto.planner")
_LOOKUP_WAIT_S: Final = 0.003
_LOOKUP_DEADLINE_S: Final = 2.0
_PROMISE_WAIT_S: Final = 0.5
SYNCHRONOUS: Final = "a step loads synchronously, which this connector never asks for; it publishes nothing"


class Planner:
    """Scheduler side of the connector.

    Args:
        store: the prefix store; None: nothing is looked up and nothing published.
        attestor: signs what was done; it knows the namespace and the tokens of a block.
        journal: keeps all that is attested.

    ``unattested`` counts what was neither signed nor kept; `Journal.lost` what no disk would take.
    """

    def __init__(self, store: PrefixStore | None, attestor: Attestor, journal: Journal) -> None:
        self._store = store
        self._attestor = attestor
        self.journal = journal
        self._block_tokens = attestor.block_tokens
        self._tracked: dict[str, Tracked] = {}
        self._loads: list[BlockJob] = []
        self.unattested = 0
        self._patience = Patience("kvitto-lookup", threads=4)

    @property
    def tracked_requests(self) -> int:
        """Requests of ours that have not ended."""
        return len(self._tracked)

    def add(self, request: Any) -> None:
        """Remember a new request, if it is one of ours."""
        if not request.kv_transfer_params or not request.cache_salt or request.prompt_token_ids is None:
            return
        try:
            params = RequestParams.from_params(request.kv_transfer_params)
            if params.output_from >= request.num_prompt_tokens:
                raise WireInvalid(f"{params.output_from} tokens of output leave no prompt")  # noqa: TRY301 -- as the wire would
        except WireInvalid as error:
            _LOG.warning("request %s: %s", request.request_id, error)
            return
        self._tracked[request.request_id] = Tracked(request, params)

    def match(self, request: Any, device_tokens: int) -> int | None:
        """Tokens that the store holds beyond ``device_tokens``; None: ask again in the next step."""
        tracked = self._tracked.get(request.request_id)
        if tracked is None:
            return 0
        now_s = clock.monotonic_s()
        if tracked.lookup is None or not tracked.lookup.fits(device_tokens, now_s):
            tracked.lookup = self._ask(tracked, device_tokens, now_s)
        found = self._answer(tracked.lookup, now_s)
        return None if found is None else found.blocks * self._block_tokens

    def foresee(self, request: Any, device_tokens: int) -> int:
        """Tokens of a waiting request that device and store hold, as far as is known now; never waits.

        The first call asks the store, so that the answer of `match` is there when it is needed.
        """
        tracked = self._tracked.get(request.request_id)
        if tracked is None:
            return device_tokens
        if tracked.lookup is None:
            tracked.lookup = self._ask(tracked, device_tokens, clock.monotonic_s())
        lookup = tracked.lookup
        if lookup.match is None and lookup.future is not None and lookup.future.done():
            lookup.match = answer(lookup.future, 0, Match(0))
        found = 0 if lookup.match is None else lookup.match.blocks
        return max(device_tokens, lookup.device_tokens + found * self._block_tokens)

    def _ask(self, tracked: Tracked, device_tokens: int, now_s: float) -> Lookup:
        self._forget(tracked.lookup)
        wanted, blocks = tracked.wanted(device_tokens, self._block_tokens), self._blocks_of(tracked)
        if blocks is None or not wanted or tracked.load_failed:
            return Lookup(device_tokens, now_s, None, Match(0))
        return Lookup(device_tokens, now_s, self._patience.start(lambda: blocks.hold(wanted)))

    def _answer(self, lookup: Lookup, now_s: float) -> Match | None:
        if lookup.match is None and lookup.future is not None:
            overdue = now_s - lookup.asked_at_s > _LOOKUP_DEADLINE_S
            if overdue or lookup.future.done():
                lookup.match = answer(lookup.future, 0, Match(0))
            else:
                try:
                    lookup.match = lookup.future.result(timeout=_LOOKUP_WAIT_S)
                except TimeoutError:
                    return None
        return lookup.match

    def _forget(self, lookup: Lookup | None) -> None:
        """Unpin what a look-up has found, or is about to find."""
        if lookup is not None and lookup.match is None and lookup.future is not None:
            lookup.future.add_done_callback(self._release_late)
        elif lookup is not None:
            self._release(lookup.match)

    def _release_late(self, future: "Future[Match]") -> None:
        if not future.cancelled() and future.exception() is None:
            self._release(future.result())

    def _release(self, found: Match | None) -> None:
        """Unpin what a look-up found, off this thread."""
        if found is not None and found.pin is not None:
            self._patience.start(found.release)

    def admit(self, request: Any, block_ids: list[int], store_tokens: int) -> None:
        """The scheduler has admitted a request; order the load of ``store_tokens`` after its device hit."""
        tracked = self._tracked.get(request.request_id)
        if tracked is None or tracked.lookup is None:
            return  # the second call of an asynchronous load
        lookup, tracked.lookup = tracked.lookup, None
        device_tokens, found = lookup.device_tokens, lookup.match or Match(0)
        if tracked.first_admission:
            tracked.hit_device_tokens, tracked.hit_store_tokens = device_tokens, 0
            tracked.owed_tokens = found.owed * self._block_tokens
            tracked.admitted_blocks = store_tokens // self._block_tokens
        if not store_tokens:
            self._release(found)
        else:
            tracked.pinned = found
            first, end = (
                device_tokens // self._block_tokens,
                (device_tokens + store_tokens) // self._block_tokens,
            )
            self._loads.append(self._job(tracked, block_ids, first, end))

    def orders(self, scheduler_output: Any) -> StepOrders:
        """Loads that were admitted and blocks that this step completes."""
        loads, self._loads = self._loads, []
        orders = StepOrders(loads=loads)
        if scheduler_output.has_sync_kv_loads:
            _LOG.error(SYNCHRONOUS)
            return orders  # over unproven blocks nothing may be published
        if self._store is None:
            return orders
        for request_id, scheduled_tokens in scheduler_output.num_scheduled_tokens.items():
            tracked = self._tracked.get(request_id)
            if tracked is None:
                continue
            full = tracked.full_blocks(scheduled_tokens, self._block_tokens)
            if full > tracked.published_blocks:
                block_ids = scheduler_output.kv_connector_block_state.get_block_ids(request_id)[0]
                orders.saves.append(self._job(tracked, block_ids, tracked.published_blocks, full))
                tracked.published_blocks = full
        return orders

    def learn(self, report: StepReport) -> None:
        """Take in what the worker's half did."""
        for request_id, blocks in report.loaded.items():
            tracked = self._tracked.get(request_id)
            if tracked is None:
                continue
            tracked.load_failed = tracked.load_failed or blocks == 0
            if tracked.first_admission:
                tracked.hit_store_tokens = blocks * self._block_tokens
                if blocks < tracked.admitted_blocks:
                    self._ask_owed(tracked)
            self._release(tracked.pinned)
            tracked.pinned = None
        for request_id, index in report.refused.items():
            tracked = self._tracked.get(request_id)
            if tracked is not None:
                tracked.published_blocks = min(tracked.published_blocks, index)

    def attest_computed(self) -> None:
        """Attest the prompts of requests that go on decoding here, when their first token was drawn."""
        for tracked in self._tracked.values():
            if tracked.decodes and tracked.computed:
                self._attest_prefill(tracked)

    def finish(self, request: Any) -> dict[str, Any] | None:
        """Forget a request, however it ended; the parameters of its answer, if it attests a prefill."""
        tracked = self._tracked.pop(request.request_id, None)
        if tracked is None:
            return None
        self._release(tracked.pinned)
        self._forget(tracked.lookup)
        self._attest_prefill(tracked)
        if tracked.decodes:
            facts = tracked.decode_facts()
            self._attest(tracked, lambda: self._attestor.decode(tracked.params, facts))
        return tracked.answer.to_params() if tracked.answer is not None else None

    def _attest_prefill(self, tracked: Tracked) -> None:
        """Attest a prefill, if it has one and that is not done."""
        if not tracked.prefill_due:
            return
        tracked.prefill_due = False
        owed_tokens, promised_until = 0, None
        if tracked.computed:
            owed_tokens, promised_until = self._owed_tokens(tracked), self._promised_until(tracked)
        facts = tracked.prefill_facts(self._block_tokens, owed_tokens, promised_until)
        tracked.answer = self._attest(tracked, lambda: self._attestor.prefill(tracked.params, facts))
        _LOG.info(
            "prefill %s: prompt %d, device hit %d, store hit %d, owed %d%s",
            tracked.params.request_id,
            len(facts.prompt_ids),
            facts.hit_device_tokens,
            facts.hit_store_tokens,
            facts.owed_tokens,
            "" if facts.computed else ", not computed",
        )

    def _attest(self, tracked: Tracked, sign: Callable[[], str]) -> AnswerParams | None:
        """Sign and keep. What fails here is counted and logged, and fails no request."""
        try:
            attested = AnswerParams(sign(), self._attestor.certificate)
            self.journal.append(attested.attestation, attested.certificate)
        except Exception:
            self.unattested += 1
            _LOG.exception("request %s is not attested", tracked.params.request_id)
            return None
        return attested

    def _promised_until(self, tracked: Tracked) -> int | None:
        blocks = self._blocks_of(tracked)
        if blocks is None:
            return None
        hashes = list(tracked.request.block_hashes[: len(tracked.prompt_ids) // self._block_tokens])
        kept_as = tracked.params.retention_class
        return self._patience.ask(lambda: blocks.keep(hashes, kept_as), _PROMISE_WAIT_S, None)

    def _ask_owed(self, tracked: Tracked) -> None:
        """A load brought less than was found: are the rest owed (went early) or a miss (corrupt, lost)?"""
        hit_tokens = tracked.hit_device_tokens + tracked.hit_store_tokens
        rest, blocks = tracked.wanted(hit_tokens, self._block_tokens), self._blocks_of(tracked)
        if blocks is not None:
            tracked.owed_late = self._patience.start(lambda: blocks.owed(rest))

    def _owed_tokens(self, tracked: Tracked) -> int:
        if tracked.owed_late is not None:
            return answer(tracked.owed_late, _PROMISE_WAIT_S, 0) * self._block_tokens
        # A load that never reported was no hit; nothing can be said of what lies behind it.
        loaded = tracked.hit_store_tokens >= tracked.admitted_blocks * self._block_tokens
        return tracked.owed_tokens if loaded else 0

    def close(self) -> None:
        """Attest what has not ended as aborted, and ask nothing more."""
        for tracked in list(self._tracked.values()):
            self.finish(tracked.request)
        self.journal.close()
        self._patience.close()

    def _blocks_of(self, tracked: Tracked) -> TenantBlocks | None:
        if self._store is None:
            return None
        return self._store.namespace(self._attestor.namespace, tracked.params.tenant)

    def _job(self, tracked: Tracked, block_ids: list[int], first: int, end: int) -> BlockJob:
        assert 0 <= first < end <= len(block_ids)
        return BlockJob(
            request_id=tracked.request.request_id,
            tenant=tracked.params.tenant,
            retention_class=tracked.params.retention_class,
            first=first,
            block_ids=tuple(block_ids[first:end]),
            block_hashes=tuple(tracked.request.block_hashes[first:end]),
            parent=tracked.request.block_hashes[first - 1] if first else ROOT_HASH,
        )
