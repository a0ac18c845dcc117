"""A deployment made up: its keys, workers and prices, the receipts of what it served, and bundles of them."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, time, timedelta
from hashlib import sha256
from itertools import pairwise
from typing import Any, Final, Literal

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from billing.pricing.book import Placement, PriceBook, PriceRow
from billing.pricing.document import placement_text, row_text
from billing.pricing.rates import Rates
from billing.pricing.rating import rate, rating_instant
from billing.pricing.window import Window
from billing.receipts import merkle
from billing.receipts.bundle import Consistency, Contents, InvoiceFile
from billing.receipts.document import ReceiptDocument
from billing.receipts.head import TreeHead
from billing.receipts.memo import Memo
from billing.receipts.sealed import SealedReceipt, leaf_of
from billing.request_id import mint
from billing.usage import TokenUsage
from engine.proof import signed
from engine.proof.attestation import Attestation, DecodeAttestation, PrefillAttestation, commitment
from engine.proof.certificate import DeploymentKey, WorkerCertificate
from engine.proof.coverage import Attempt, Grade
from engine.proof.ring import DeploymentRing

Shape = Literal["both", "apart", "killed", "nothing"]

TENANT: Final = "ten_a"
MODEL: Final = "m"
BLOCK: Final = 64
START: Final = datetime(2026, 11, 2, 7, 0, 0, 123_456, UTC)
ROTATED_AT: Final = datetime(2026, 11, 3, tzinfo=UTC)
EPOCH: Final = datetime(2026, 1, 1, tzinfo=UTC)

PEAK: Final = Rates(hit=20_000, miss=200_000, output=300_000, flex=Rates(15_000, 150_000, 250_000))
NIGHT: Final = Rates(hit=10_000, miss=100_000, output=150_000, flex=Rates(7_000, 70_000, 120_000))
PUBLIC: Final = PriceRow(
    model=MODEL,
    currency="USD",
    effective_from=EPOCH,
    instant="completed",
    standard=PEAK,
    windows=(Window("night", NIGHT, time(16, 30), time(0, 30), "UTC", holidays="CN"),),
    standard_name="peak",
)
LATER: Final = replace(
    PUBLIC,
    effective_from=datetime(2026, 11, 3, 12, tzinfo=UTC),
    instant="admitted",
    windows=(),
    standard_name="standard",
)
GOLD: Final = replace(LATER, plan="gold", standard=NIGHT, effective_from=datetime(2026, 11, 4, tzinfo=UTC))
PLACED: Final = Placement(TENANT, datetime(2026, 11, 4, 12, tzinfo=UTC), "gold")
BOOK: Final = PriceBook((PUBLIC, LATER, GOLD), (PLACED,))


def key_of(name: str) -> Ed25519PrivateKey:
    """The same key for the same name, always."""
    return Ed25519PrivateKey.from_private_bytes(hashlib.sha256(name.encode()).digest())


@dataclass(frozen=True, slots=True)
class Request:
    """What a customer asked, and what came of it."""

    number: int
    token_ids: tuple[int, ...] = tuple(range(200))
    at: datetime = START
    output: int = 20
    shape: Shape = "both"
    hit: int = 64
    owed: int = 0
    promised_until: int | None = None
    tier: Literal["standard", "flex"] = "standard"
    block: int = BLOCK


@dataclass(frozen=True, slots=True)
class Served:
    """A request's receipt, and the nonce of its prompt."""

    request: Request
    nonce: bytes
    receipt: ReceiptDocument


@dataclass
class Deployment:
    """Two keys, the second from `ROTATED_AT` on; w0 does both, p1 prefills, d1 decodes."""

    name: str = "house"
    workers: Mapping[str, Ed25519PrivateKey] = field(init=False)
    ring: DeploymentRing = field(init=False)

    def __post_init__(self) -> None:
        self.old, self.new = key_of(f"{self.name}/old"), key_of(f"{self.name}/new")
        first = DeploymentRing.of(self.old.public_key())
        self.ring = first.rotated(self.old, self.new.public_key(), int(ROTATED_AT.timestamp()))
        self.workers = {name: key_of(f"{self.name}/{name}") for name in ("w0", "p1", "d1")}

    def key_at(self, at: datetime) -> Ed25519PrivateKey:
        """The key that signs then."""
        return self.old if at < ROTATED_AT else self.new

    @property
    def certificates(self) -> list[str]:
        """One a worker, a day before all."""
        issued_s = int((START - timedelta(days=1)).timestamp())
        return [
            WorkerCertificate.issue(DeploymentKey(self.old), name, key.public_key(), issued_s)
            for name, key in self.workers.items()
        ]

    def serve(self, request: Request) -> Served:
        """Attest, rate and write the receipt."""
        nonce = sha256(f"{self.name}/{request.number}".encode()).digest()
        request_id = mint(request.at, request.number.to_bytes(10, "big"))
        done = request.at + timedelta(seconds=3)
        book = BOOK.of(TENANT)
        row = book.row(MODEL, "USD", request.at)
        memo = Memo(TENANT, "key_a", MODEL, "chat", row.id, request.tier).to_text()
        said = self._attested(request, {"request_id": str(request_id), "memo": memo}, nonce)
        attempts = _attempts(request)
        usage = TokenUsage.none()
        if request.shape != "nothing":
            miss = len(request.token_ids) - request.hit - request.owed
            usage = TokenUsage(request.hit, request.owed, 0, miss, request.output)
        rated_at = rating_instant(row, request.at, done)
        charge = rate(book, MODEL, "USD", usage, rated_at, request.tier)
        grades: dict[Shape, Grade] = {"nothing": "unattested", "killed": "gateway-counted"}
        receipt = ReceiptDocument(
            request_id=request_id,
            tenant_id=TENANT,
            key_id="key_a",
            model=MODEL,
            traffic_class="chat",
            status="failed" if request.shape == "nothing" else "completed",
            admitted_at=request.at,
            rated_at=rated_at,
            usage=usage,
            reasoning_tokens=usage.output // 2,
            charge=charge.amount,
            currency="USD",
            price_row_id=charge.price_row_id,
            window=charge.window,
            tier=request.tier,
            attempts=attempts,
            grade=grades.get(request.shape, "attested"),
            finding=None,
            attestations=tuple(each.sign(self.workers[each.worker]) for each in said),
        )
        return Served(request, nonce, receipt)

    def _attested(self, request: Request, named: Mapping[str, str], nonce: bytes) -> list[Attestation]:
        ids, at_ns = request.token_ids, int(request.at.timestamp() * 1e9) + 10**9
        apart = request.shape == "apart"
        common: dict[str, Any] = {**named, "attempt": 0, "namespace": "ab" * 32, "attested_at_ns": at_ns}
        prefill = PrefillAttestation(
            stage="prefill" if apart else "both",
            worker="p1" if apart else "w0",
            prompt_tokens=len(ids),
            hit_tokens=request.hit,
            owed_tokens=request.owed,
            hit_device_tokens=0,
            hit_store_tokens=request.hit,
            block_tokens=request.block,
            retention_class="chat",
            promised_until=request.promised_until,
            prompt_commitment=commitment(nonce, ids),
            cached_prefix_commitment=commitment(nonce, ids[: request.hit]),
            output_to=int(apart),
            **common,
        )
        decode = DecodeAttestation(
            stage="decode" if apart else "both",
            worker="d1" if apart else "w0",
            prompt_tokens=len(ids),
            handoff_tokens=0,
            output_from=int(apart),
            output_to=request.output,
            ended="stop",
            **{**common, "attempt": int(apart)},
        )
        said: list[Attestation] = [prefill, decode]
        return {"nothing": said[:0], "killed": said[:1]}.get(request.shape, said)


def _attempts(request: Request) -> tuple[Attempt, ...]:
    match request.shape:
        case "nothing":
            return ()
        case "apart":
            return (Attempt(0, "prefill", "p1", 0, 1), Attempt(1, "decode", "d1", 1, request.output))
        case _:
            return (Attempt(0, "both", "w0", 0, request.output),)


def requests(count: int) -> list[Request]:
    """Of every shape, tier, window and price row, ten hours apart."""
    shapes: tuple[Shape, ...] = ("both", "apart", "killed", "nothing", "both")
    return [
        Request(
            number,
            tuple(range(number, number + 200)),
            START + timedelta(hours=10 * number),
            20 + number,
            shapes[number % len(shapes)],
            tier="flex" if number % 3 == 2 else "standard",
        )
        for number in range(count)
    ]


@dataclass(frozen=True, slots=True)
class Log:
    """Leaves of receipts, each behind `between` leaves of others."""

    nonces: tuple[bytes, ...]
    places: tuple[int, ...]
    nodes: Mapping[merkle.Node, bytes]
    size: int

    def root(self, size: int) -> bytes:
        """The root over so many leaves."""
        return merkle.range_hash((0, size), self.nodes)

    def path(self, ranges: Sequence[merkle.Range]) -> tuple[bytes, ...]:
        """A proof."""
        return tuple(merkle.range_hash(each, self.nodes) for each in ranges)


def log_of(served: Sequence[Served], between: int = 2) -> Log:
    """Put receipts into a log, and leaves of others between and behind them."""
    leaves: list[bytes] = []
    nonces, places = [], []
    for number, one in enumerate(served):
        leaves += (merkle.leaf_hash(b"%d/%d" % (number, other)) for other in range(between))
        nonces.append(sha256(b"leaf %d" % number).digest())
        places.append(len(leaves))
        leaves.append(leaf_of(nonces[-1], one.receipt.to_bytes()))
    leaves.append(merkle.leaf_hash(b"the last"))
    nodes = dict(merkle.grow(0, {}, leaves))
    return Log(tuple(nonces), tuple(places), nodes, len(leaves))


def sealed_in(log: Log, served: Sequence[Served], size: int | None = None) -> list[SealedReceipt]:
    """The receipts in their places, by the head of a size."""
    size = size or log.size
    return [
        SealedReceipt(
            place, nonce, size, log.path(merkle.inclusion_ranges(place, size)), one.receipt.to_bytes()
        )
        for place, nonce, one in zip(log.places, log.nonces, served, strict=True)
        if place < size
    ]


def heads_of(deployment: Deployment, log: Log, sizes: Sequence[int], first_at: datetime) -> list[str]:
    """Signed heads, an hour apart."""
    heads = []
    for hour, size in enumerate(sizes):
        at = first_at + timedelta(hours=hour)
        head = TreeHead(size, log.root(size), int(at.timestamp()))
        heads.append(head.sign(deployment.key_at(at)))
    return heads


def contents_of(
    deployment: Deployment,
    served: Sequence[Served],
    invoices: Sequence[InvoiceFile] = (),
    between: int = 2,
) -> Contents:
    """What a bundle of these receipts consists of, by three heads; all paths lead to the last."""
    log = log_of(served, between)
    sizes = sorted({1, (log.size + 1) // 2, log.size})
    last = max(one.receipt.rated_at for one in served) + timedelta(hours=2)
    return Contents(
        keys=deployment.ring.to_text(),
        certificates=deployment.certificates,
        heads=heads_of(deployment, log, sizes, last),
        consistency=[
            Consistency(one, two, log.path(merkle.consistency_ranges(one, two)))
            for one, two in pairwise(sizes)
        ],
        prices=[row_text(row) for row in BOOK.rows],
        placements=[placement_text(each) for each in BOOK.placements],
        receipts=sealed_in(log, served),
        invoices=invoices,
    )


def served_by(deployment: Deployment, count: int = 10) -> list[Served]:
    """Receipts of every kind."""
    return [deployment.serve(request) for request in requests(count)]


WRITTEN_AT_S: Final = int(datetime(2026, 12, 1, tzinfo=UTC).timestamp())


def resigned(deployment: Deployment, document: str, change: Mapping[str, Any]) -> str:
    """A signed document with another payload, signed by the deployment's present key."""
    return signed.sign(deployment.new, {**json.loads(document)["payload"], **change})
