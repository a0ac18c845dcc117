"""Metrics and logs of a gateway process. No tenant is a label; bodies, prompts and keys are in neither."""

import logging
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

import structlog
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Metric, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector
from structlog.typing import EventDict

from billing.tenancy.keys import masked

if TYPE_CHECKING:  # commands that log import neither engine nor recipe
    from engine.api import Engine
    from recipe.memo import EncodeMemo

_render: Final = structlog.processors.JSONRenderer()


def _rendered(logger: Any, method: str, event: EventDict) -> str:
    """As JSON, without keys: paths and exceptions quote what was sent."""
    line = _render(logger, method, event)
    return masked(line if isinstance(line, str) else line.decode())


# A JSON object a line, into the standard logger "gateway". Tracebacks have no locals: those hold prompts.
log: Final[Any] = structlog.wrap_logger(
    logging.getLogger("gateway"),
    processors=[
        structlog.stdlib.filter_by_level,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.format_exc_info,
        _rendered,
    ],
    wrapper_class=structlog.stdlib.BoundLogger,
)


def log_to_stderr() -> None:
    """Send this process's log to standard error from INFO on, a line each; for mains."""
    logging.basicConfig(level=logging.INFO, format="%(message)s")


class EngineCollector(Collector):
    """What the engine's router counts, read when somebody asks."""

    def __init__(self, engine: "Engine") -> None:
        self._engine = engine

    def collect(self) -> Iterator[Metric]:
        """Yield the counters as they are now."""
        counts = self._engine.counts
        placements = CounterMetricFamily(
            "kvitto_placements", "Calls placed on workers.", labels=("stage", "reason")
        )
        for (stage, reason), count in counts.placements.items():
            placements.add_metric((stage, reason), count)
        retries = CounterMetricFamily(
            "kvitto_placement_retries", "Calls placed again after a worker failed.", labels=("stage",)
        )
        for stage, count in counts.retries.items():
            retries.add_metric((stage,), count)
        refusals = CounterMetricFamily(
            "kvitto_placement_refusals", "Calls that no worker took.", labels=("reason",)
        )
        for reason, count in counts.refusals.items():
            refusals.add_metric((reason,), count)
        yield from (placements, retries, refusals)
        yield CounterMetricFamily(
            "kvitto_placements_unshared",
            "Calls placed by this process's own ledger, for want of the shared one.",
            value=counts.unshared,
        )
        yield CounterMetricFamily(
            "kvitto_placements_unestimated",
            "Prompts placed without knowing what of them is stored.",
            value=counts.unestimated,
        )


class MemoCollector(Collector):
    """What a recipe's memo holds and finds, read when somebody asks."""

    def __init__(self, memo: "EncodeMemo") -> None:
        self._memo = memo

    def collect(self) -> Iterator[Metric]:
        """Yield the counts as they are now."""
        counts = self._memo.counts
        yield GaugeMetricFamily(
            "kvitto_encode_memo_bytes",
            "Held to encode no part of a conversation twice.",
            value=counts.bytes_held,
        )
        segments = CounterMetricFamily(
            "kvitto_encode_memo_segments", "Parts of prompts, found encoded or not.", labels=("outcome",)
        )
        segments.add_metric(("found",), counts.found)
        segments.add_metric(("missed",), counts.missed)
        yield segments


SECONDS: Final = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0)
# Names of parameters that are counted apart.
PARAMS_MAX: Final = 100


class Telemetry:
    """The metrics of one application; each has its own registry, so that tests can build many."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.requests = Counter(
            "kvitto_requests", "Answers by route and status.", ("route", "status"), registry=self.registry
        )
        self.settled = Counter(
            "kvitto_settled", "Requests by how they ended.", ("status",), registry=self.registry
        )
        self.tokens = Counter(
            "kvitto_tokens", "Billed tokens by bucket.", ("bucket",), registry=self.registry
        )
        self.in_flight = Gauge(
            "kvitto_in_flight", "Requests between admission and release.", registry=self.registry
        )
        self.first_token_s = Histogram(
            "kvitto_first_token_seconds", "Admission to first token.", buckets=SECONDS, registry=self.registry
        )
        self.request_s = Histogram(
            "kvitto_request_seconds", "Admission to settlement.", buckets=SECONDS, registry=self.registry
        )
        self._ignored_named: set[str] = set()
        self._ignored_params = Counter(
            "kvitto_ignored_params", "Parameters accepted without effect.", ("param",), registry=self.registry
        )
        self.refused_by_limit = Counter(
            "kvitto_limit_refusals",
            "Requests that a limit refused.",
            ("level", "measure"),
            registry=self.registry,
        )
        self.valkey_lost = Gauge(
            "kvitto_valkey_lost_policy",
            "What this process does while Valkey is away.",
            ("policy",),
            registry=self.registry,
        )
        self.admitted_by_share = Counter(
            "kvitto_admitted_by_share",
            "Requests admitted without Valkey, without a hold.",
            registry=self.registry,
        )
        self.budget_alerts = Counter(
            "kvitto_budget_alerts", "Soft budgets passed, once a period each.", registry=self.registry
        )
        self.quarantined = Counter(
            "kvitto_usage_quarantined", "Requests whose usage cannot be.", registry=self.registry
        )
        self.unreleased = Counter(
            "kvitto_holds_left_to_sweeper", "Holds this process could not release.", registry=self.registry
        )

        self.retries = Counter(
            "kvitto_retries", "Requests answered by another one.", ("outcome",), registry=self.registry
        )
        self.answers_kept = Counter(
            "kvitto_answers_kept",
            "Answers that may be asked for again.",
            ("outcome",),
            registry=self.registry,
        )

    def ignored(self, param: str) -> None:
        """Count a parameter without effect. Clients make names up: beyond `PARAMS_MAX` all are ``other``."""
        if param not in self._ignored_named and len(self._ignored_named) == PARAMS_MAX:
            param = "other"
        else:
            self._ignored_named.add(param)
        self._ignored_params.labels(param).inc()

    def render(self) -> bytes:
        """Write all metrics in Prometheus' text format."""
        return generate_latest(self.registry)


class SweepTelemetry:
    """The metrics of whoever keeps journals and sweeps; its own registry, as `Telemetry`."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.journal_lines = Counter(
            "kvitto_journal_lines", "Attestations kept from workers' journals.", registry=self.registry
        )
        self.journals_unreachable = Gauge(
            "kvitto_journals_unreachable",
            "Workers whose journal could not be drained.",
            registry=self.registry,
        )
        self.holds_swept = Counter(
            "kvitto_holds_swept",
            "Expired holds, by what became of them.",
            ("outcome",),
            registry=self.registry,
        )
        self.quarantined = Counter(
            "kvitto_usage_quarantined", "Lost requests whose usage cannot be.", registry=self.registry
        )
        self.receipts = Counter(
            "kvitto_receipts",
            "Requests, by how well workers attest them.",
            ("grade",),
            registry=self.registry,
        )

    def render(self) -> bytes:
        """Write all metrics in Prometheus' text format."""
        return generate_latest(self.registry)
