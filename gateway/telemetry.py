"""Metrics and logs of a gateway process. No tenant is a label; bodies, prompts and keys are in neither."""

import logging
from typing import Any, Final

import structlog
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

# A JSON object a line, into the standard logger "gateway". Tracebacks have no locals: those hold prompts.
log: Final[Any] = structlog.wrap_logger(
    logging.getLogger("gateway"),
    processors=[
        structlog.stdlib.filter_by_level,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.format_exc_info,
        structlog.processors.JSONRenderer(),
    ],
    wrapper_class=structlog.stdlib.BoundLogger,
)


def log_to_stderr() -> None:
    """Send this process's log to standard error from INFO on, a line each; for mains."""
    logging.basicConfig(level=logging.INFO, format="%(message)s")


SECONDS: Final = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0)


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
        self.ignored_params = Counter(
            "kvitto_ignored_params", "Parameters accepted without effect.", ("param",), registry=self.registry
        )
        self.unreleased = Counter(
            "kvitto_holds_left_to_sweeper", "Holds this process could not release.", registry=self.registry
        )

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
        self.receipts = Counter(
            "kvitto_receipts",
            "Requests, by how well workers attest them.",
            ("grade",),
            registry=self.registry,
        )

    def render(self) -> bytes:
        """Write all metrics in Prometheus' text format."""
        return generate_latest(self.registry)
