"""Our KV connector: the seam between vLLM 0.32 and the prefix store.

vLLM makes one in its engine core (role SCHEDULER, `Planner`) and one in the model worker (role WORKER,
`Mover`). What fails here is logged and becomes a miss; an exception would end the worker for every request.
"""

import functools
import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, TypeVar, cast

from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorBase_V1,
    KVConnectorRole,
    SupportsHMA,
)
from vllm.v1.metrics.cache_hit_source import CacheHitSource

from engine.retention import RETENTION_S
from engine.store.directory import PrefixStore
from engine.store.evict import Quotas
from engine.worker import clock, layout
from engine.worker.attest import Attestor
from engine.worker.journal import Journal
from engine.worker.keeper import Keeper
from engine.worker.lineage import die_with_parent, leave_quickly
from engine.worker.messages import StepOrders, StepReport
from engine.worker.mover import Mover
from engine.worker.planner import Planner
from engine.worker.report import Count, ReportFile, rank_says

_LOG: Final = logging.getLogger("vllm.kvitto.connector")
Method = TypeVar("Method", bound=Callable[..., Any])


def _or(otherwise: Any) -> Callable[[Method], Method]:
    """Turn an exception of a method into ``otherwise``, and log it."""

    def guard(method: Method) -> Method:
        @functools.wraps(method)
        def guarded(*args: Any, **kwargs: Any) -> Any:
            try:
                return method(*args, **kwargs)
            except Exception:
                _LOG.exception("a hook of the connector failed")
                return otherwise

        return cast("Method", guarded)

    return guard


class PrefixStoreConnector(KVConnectorBase_V1):  # type: ignore[misc]  # vllm is untyped here
    """Whole blocks, loaded asynchronously, published before the step's result leaves."""

    _cache_hit_source = CacheHitSource.DISK

    def __init__(self, vllm_config: Any, role: Any, kv_cache_config: Any) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        die_with_parent()
        extra = vllm_config.kv_transfer_config.kv_connector_extra_config
        self._store = _store_of(extra)
        self._namespace = ""
        if self._store is not None:
            namespace = layout.namespace_of(vllm_config, kv_cache_config, extra["identity"])
            if namespace is None:
                _LOG.warning(
                    "the store is off: vLLM marks nothing of this model's KV cache as prefix-cacheable"
                )
                self._store = None
            else:
                self._namespace = namespace.digest
                self._store.describe(namespace)
        journal_dir = Path(extra["journal_dir"])
        self._counts_file = ReportFile.of_rank(journal_dir, vllm_config.parallel_config.rank)
        self._planner: Planner | None = None
        self._mover: Mover | None = None
        self._keeper: Keeper | None = None
        if role == KVConnectorRole.SCHEDULER:
            block_tokens = int(kv_cache_config.kv_cache_groups[0].kv_cache_spec.block_size)
            attestor = Attestor.of(
                extra["worker"],
                Path(extra["key_file"]),
                Path(extra["certificate_file"]),
                self._namespace,
                block_tokens,
            )
            self._planner = Planner(self._store, attestor, Journal(journal_dir))
        _LOG.info("prefix store %s, namespace %s", extra["store_dir"], self._namespace)

    @property
    def requires_kv_delivery(self) -> bool:
        """A cache: what it does not keep is computed again."""
        return False

    @property
    def namespace(self) -> str:
        """Names its blocks in the store; empty without one."""
        return self._namespace

    # The scheduler's half.

    @property
    def planner(self) -> Planner:
        """The scheduler's half; only in the engine core."""
        assert self._planner is not None
        return self._planner

    @_or(None)
    def on_new_request(self, request: Any) -> None:
        """vLLM: a request was added."""
        self.planner.add(request)

    @_or((0, False))
    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> tuple[int | None, bool]:
        """vLLM: tokens to be had beyond its own, and that they come asynchronously."""
        tokens = self.planner.match(request, num_computed_tokens)
        return tokens, bool(tokens)

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        """vLLM: blocks are allocated. Unguarded: a load that was promised and is lost hangs its request."""
        self.planner.admit(request, blocks.get_block_ids()[0], num_external_tokens)

    def build_connector_meta(self, scheduler_output: Any) -> StepOrders:
        """vLLM: the step's orders to the worker's half."""
        return self.planner.orders(scheduler_output)

    @_or(None)
    def update_connector_output(self, connector_output: Any) -> None:
        """vLLM: the worker's half reports."""
        # The step's tokens are known and its blocks published; its outputs leave the engine core after this.
        self.planner.attest_computed()
        report = connector_output.kv_connector_worker_meta
        if isinstance(report, StepReport):
            self.planner.learn(report)

    @_or((False, None))
    def request_finished(self, request: Any, block_ids: list[int]) -> tuple[bool, dict[str, Any] | None]:  # noqa: ARG002 -- vLLM's signature
        """vLLM: a request ended; its blocks may be freed at once."""
        return False, self.planner.finish(request)

    # The worker's half.

    @property
    def mover(self) -> Mover:
        """The worker's half; only in the model worker of a store, once the KV cache is there."""
        assert self._mover is not None
        return self._mover

    def register_kv_caches(self, kv_caches: dict[str, Any]) -> None:
        """vLLM: the KV cache is allocated."""
        if self._store is None:
            return
        group = layout.stored_group(self._kv_cache_config)
        assert group is not None, "without a stored group there is no store"
        self._mover = Mover(self._store, self._namespace, kv_caches, list(group.layer_names))
        expected = layout.block_bytes(group)
        if self._mover.block_bytes != expected:
            raise layout.LayoutUnsupported(
                f"a block has {self._mover.block_bytes} bytes, {expected} expected"
            )
        # Beside the writer, which counts by what the last sweep has found.
        self._keeper = Keeper(self._store)
        self._keeper.start()

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:  # noqa: ARG002 -- vLLM's signature
        """vLLM: start this step's loads."""
        for job in self._get_connector_metadata().loads:
            self.mover.load(job)

    def wait_for_layer_load(self, layer_name: str) -> None:
        """vLLM: nothing to wait for; loads are never part of a forward pass."""

    def save_kv_layer(self, layer_name: str, kv_layer: Any, attn_metadata: Any, **kwargs: Any) -> None:
        """vLLM: nothing by layer; blocks are saved whole."""

    @_or(None)
    def wait_for_save(self) -> None:
        """vLLM: the forward pass is over; publish what it completed."""
        for job in self._get_connector_metadata().saves:
            self.mover.save(job)

    def get_finished(self, finished_req_ids: set[str]) -> tuple[set[str] | None, set[str] | None]:  # noqa: ARG002 -- vLLM's signature
        """vLLM: requests whose load has ended."""
        return None, (self._mover.ended_loads() or None) if self._mover is not None else None

    def get_block_ids_with_load_errors(self) -> set[int]:
        """vLLM: blocks to compute after all."""
        return self._mover.take_failed_block_ids() if self._mover is not None else set()

    def build_connector_worker_meta(self) -> StepReport | None:
        """vLLM: what the scheduler's half has to learn."""
        self._leave_counts()
        return self._mover.take_report() if self._mover is not None else None

    @_or(None)
    def _leave_counts(self) -> None:
        if self._store is None or self._keeper is None or self._mover is None:
            return
        counts = self._mover.counts
        counts[Count.EXPIRED_BLOCKS] = self._keeper.expired_blocks
        counts[Count.EVICTED_BLOCKS] = self._store.evictor.evicted_blocks + self._keeper.evicted_blocks
        self._counts_file.leave(lambda: rank_says(counts), at_once=True)

    def shutdown(self) -> None:
        """vLLM: the process is ending."""
        for half in (self._planner, self._mover, self._keeper):
            if half is not None:
                half.close()
        leave_quickly()


class StorelessConnector(PrefixStoreConnector, SupportsHMA):  # type: ignore[misc]  # vllm is untyped here
    """Of a worker without a store: it attests, and leaves vLLM its hybrid manager, which some models need."""

    def request_finished_all_groups(
        self, request: Any, block_ids: tuple[list[int], ...]
    ) -> tuple[bool, dict[str, Any] | None]:
        """vLLM: a request ended; its blocks may be freed at once."""
        finished: tuple[bool, dict[str, Any] | None] = self.request_finished(request, block_ids[0])
        return finished


def _store_of(extra: Mapping[str, Any]) -> PrefixStore | None:
    """The store that the worker's spec names, if it names one."""
    if extra["store_dir"] is None:
        return None
    quotas = Quotas(extra.get("store_bytes_max"), extra.get("tenant_bytes_max"))
    classes = {**RETENTION_S, **extra.get("retention_s", {})}
    return PrefixStore(Path(extra["store_dir"]), clock.now_s, quotas, classes, extra.get("promise", True))
