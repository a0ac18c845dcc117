"""A real directory, a clock that stands still, and blocks that weigh the same."""

from dataclasses import dataclass, field
from pathlib import Path

import pytest

from engine.proof.prefix import ROOT_HASH
from engine.retention import RETENTION_S
from engine.store.block import HEADER_BYTES
from engine.store.directory import Loaded, PrefixStore, Published, TenantBlocks
from engine.store.evict import Quotas

NAMESPACE, NEXT_NAMESPACE = "ab" * 32, "cd" * 32
START_S = 1_790_000_000
PAYLOAD = bytes(range(256)) * 4
FILE_BYTES = HEADER_BYTES + len(PAYLOAD)
CHAT_S, AGENT_S = RETENTION_S["chat"], RETENTION_S["agent"]


class Clock:
    def __init__(self) -> None:
        self.at_s = START_S

    def __call__(self) -> int:
        return self.at_s


def chain(length: int, first: int = 0) -> list[bytes]:
    """Names of a prompt's blocks."""
    return [bytes([first, index + 1]) * 16 for index in range(length)]


@dataclass
class House:
    """One directory with a clock; every `store` is a worker of its own on it."""

    root: Path
    clock: Clock = field(default_factory=Clock)

    def store(self, quota_blocks: int | None = None, tenant_blocks: int | None = None) -> PrefixStore:
        quotas = Quotas(
            None if quota_blocks is None else quota_blocks * FILE_BYTES,
            None if tenant_blocks is None else tenant_blocks * FILE_BYTES,
        )
        return PrefixStore(self.root, self.clock, quotas)


def publish(
    store: PrefixStore,
    hashes: list[bytes],
    retention_class: str = "chat",
    tenant: str = "ten_a",
    namespace: str = NAMESPACE,
    after: bytes = ROOT_HASH,
) -> list[Published]:
    """Publish consecutive blocks of a prompt, as a worker does; ``after`` is the one before the first."""
    blocks = store.namespace(namespace, tenant)
    parents = [after, *hashes]
    return [
        blocks.publish(block_hash, [memoryview(PAYLOAD)], retention_class, parent)
        for block_hash, parent in zip(hashes, parents, strict=False)
    ]


def load(blocks: TenantBlocks, block_hash: bytes, retention_class: str = "chat") -> Loaded:
    return blocks.load(block_hash, memoryview(bytearray(len(PAYLOAD))), retention_class)


def there(store: PrefixStore, hashes: list[bytes], tenant: str = "ten_a") -> list[bytes]:
    blocks = store.namespace(NAMESPACE, tenant)
    return [block_hash for block_hash in hashes if blocks.path(block_hash).exists()]


@pytest.fixture
def house(tmp_path: Path) -> House:
    return House(tmp_path / "store")
