"""What computed the blocks of a namespace, as a readable file: ``<root>/<namespace>/namespace.json``.

``promises`` names what a customer was promised, apart from engine versions: weights, tokenizer and tokens
of a block. Namespaces with the same one hold blocks of the same names, so a promise outlives an upgrade.
"""

import contextlib
import json
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Self

from engine.proof.prefix import BLOCK_TOKENS

DESCRIPTION: Final = "namespace.json"
_DIGEST: Final = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class Namespace:
    """A namespace's own description. Digests have 64 hex digits; ``facts`` are what its digest covers."""

    digest: str
    promises: str
    block_tokens: int = BLOCK_TOKENS
    facts: Mapping[str, Any] = field(default_factory=dict)

    def write(self, root: Path) -> None:
        """Write the file unless it is there; raises OSError."""
        file = root / self.digest / DESCRIPTION
        if file.exists():
            return
        file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        document = {
            "namespace": self.digest,
            "promises": self.promises,
            "block_tokens": self.block_tokens,
            "facts": dict(self.facts),
        }
        temporary = file.with_name(f"{DESCRIPTION}.{os.getpid()}-{os.urandom(4).hex()}.tmp")
        try:
            temporary.write_text(json.dumps(document, indent=2) + "\n")
            temporary.replace(file)
        finally:
            temporary.unlink(missing_ok=True)

    @classmethod
    def read(cls, root: Path, digest: str) -> Self:
        """The description; a namespace without a usable one makes its promises under its own digest."""
        with contextlib.suppress(OSError, ValueError):
            match json.loads((root / digest / DESCRIPTION).read_text()):
                case {"promises": str(promises), "block_tokens": int(block_tokens), "facts": dict(facts)} if (
                    _DIGEST.fullmatch(promises) and block_tokens > 0
                ):
                    return cls(digest, promises, block_tokens, facts)
        return cls(digest, digest)


def namespaces_of(root: Path) -> Iterator[str]:
    """Digests of the namespaces in a store, in order; none when it cannot be read."""
    with contextlib.suppress(OSError):
        yield from sorted(name for name in os.listdir(root) if _DIGEST.fullmatch(name))  # noqa: PTH208 -- names are all we need
