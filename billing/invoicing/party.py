"""Who sells and who buys. The buyer's is personal and can be erased: a document only commits to it."""

import hashlib
from typing import Annotated, Any, Final, Self

import msgspec
from msgspec import Meta

from billing.errors import TermsInvalid
from engine.proof.signed import canonical

NONCE_BYTES: Final = 32

Words = Annotated[str, Meta(min_length=1, max_length=200, pattern=r"^[^\x00-\x1f\x7f]+$")]
Address = Annotated[str, Meta(max_length=1000, pattern=r"^[^\x00-\x09\x0b-\x1f\x7f]*$")]


class Party(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``address`` has line breaks, ``country`` is ISO 3166's two letters."""

    legal_name: Words
    address: Address = ""
    country: Annotated[str, Meta(pattern=r"^([A-Z]{2})?$")] = ""
    tax_id: Annotated[str, Meta(max_length=64, pattern=r"^[^\x00-\x1f\x7f]*$")] = ""
    email: Annotated[str, Meta(max_length=320, pattern=r"^([^\x00-\x20\x7f@]+@[^\x00-\x20\x7f@]+)?$")] = ""

    @classmethod
    def read(cls, written: Any) -> Self:
        """Read JSON values; raises TermsInvalid where one means nothing."""
        try:
            return msgspec.convert(written, cls)
        except msgspec.ValidationError as error:
            raise TermsInvalid("profile", str(error)) from error

    def facts(self) -> dict[str, str]:
        """As JSON."""
        plain: dict[str, str] = msgspec.to_builtins(self)
        return plain

    def commitment(self, nonce: bytes) -> str:
        """SHA-256 over a nonce and the canonical JSON, in hex: says nothing once both are erased."""
        return hashlib.sha256(nonce + canonical(self.facts())).hexdigest()
