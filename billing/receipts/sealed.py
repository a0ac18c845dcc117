"""A receipt in its place in the log: what a customer keeps, a line of JSON each."""

from dataclasses import dataclass
from hashlib import sha256
from typing import Final, Self

import msgspec

from billing.errors import ProofBroken, ReceiptInvalid
from billing.receipts import merkle
from billing.receipts.head import TreeHead

NONCE_BYTES: Final = 32


class _Line(msgspec.Struct, forbid_unknown_fields=True):
    leaf_index: int
    leaf_nonce: str
    tree_size: int
    path: list[str]
    receipt: msgspec.Raw


_DECODER: Final = msgspec.json.Decoder(_Line)


@dataclass(frozen=True, slots=True)
class SealedReceipt:
    """``receipt``: bytes of a `ReceiptDocument`. ``path`` proves its leaf in the tree of ``tree_size``."""

    leaf_index: int
    leaf_nonce: bytes
    tree_size: int
    path: tuple[bytes, ...]
    receipt: bytes

    @property
    def leaf(self) -> bytes:
        """The hash of its leaf."""
        return leaf_of(self.leaf_nonce, self.receipt)

    def check(self, head: TreeHead) -> None:
        """Verify that it is in the log, by a head of its tree's size; raises ProofBroken."""
        if head.size != self.tree_size:
            raise ProofBroken(f"the path is for a tree of {self.tree_size}, the head of one of {head.size}")
        merkle.check_inclusion(self.leaf, self.leaf_index, self.tree_size, self.path, head.root)

    def to_line(self) -> bytes:
        """JSON without a line break."""
        return msgspec.json.encode(
            _Line(
                self.leaf_index,
                self.leaf_nonce.hex(),
                self.tree_size,
                [each.hex() for each in self.path],
                msgspec.Raw(self.receipt),
            )
        )

    @classmethod
    def read(cls, line: bytes) -> Self:
        """Read what `to_line` wrote; nothing is verified.

        Raises:
            ReceiptInvalid: anything else, to the byte.
        """
        try:
            read = _DECODER.decode(line)
            nonce = bytes.fromhex(read.leaf_nonce)
            path = tuple(bytes.fromhex(each) for each in read.path)
        except (msgspec.MsgspecError, ValueError) as error:
            raise ReceiptInvalid(str(error)) from error
        if len(nonce) != NONCE_BYTES or any(len(each) != merkle.HASH_BYTES for each in path):
            raise ReceiptInvalid("a nonce and the hashes of a path have 32 bytes")
        sealed = cls(read.leaf_index, nonce, read.tree_size, path, bytes(read.receipt))
        if sealed.to_line() != line:
            raise ReceiptInvalid("a line written otherwise than one is")
        return sealed


def leaf_of(nonce: bytes, receipt: bytes) -> bytes:
    """The hash of a receipt's leaf: ``SHA-256(0x00 || SHA-256(nonce || receipt))``.

    Who erases nonce and receipt leaves a leaf that says nothing and proves the others.
    """
    return merkle.leaf_hash(sha256(nonce + receipt).digest())
