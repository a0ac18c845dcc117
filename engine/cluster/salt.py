"""Isolation of tenants: the salt vLLM mixes into a prompt's first block hash, and so into all that follow.

Clients never choose it. Each field is preceded by its length, so that no two (tenant, scope) pairs spell the
same
message: ("ab", "c") and ("a", "bc") differ.
"""

import hashlib
import hmac


def cache_salt(secret: bytes, tenant: str, scope: str) -> str:
    """Return the tenant's salt for one scope, 64 hexadecimal digits; `secret` is the deployment's."""
    return _keyed(secret, b"kvitto cache salt 1", tenant, scope)


def scope_digest(secret: bytes, tenant: str, scope: str) -> str:
    """Return a name for the scope that tells neither the scope nor the salt, 64 hexadecimal digits."""
    return _keyed(secret, b"kvitto scope digest 1", tenant, scope)


def _keyed(secret: bytes, purpose: bytes, tenant: str, scope: str) -> str:
    fields = (purpose, tenant.encode(), scope.encode())
    message = b"".join(len(field).to_bytes(8, "big") + field for field in fields)
    return hmac.new(secret, message, hashlib.sha256).hexdigest()
