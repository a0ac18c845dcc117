"""Isolation hangs on the salt alone: different tenants or scopes never share one."""

import hashlib
import hmac

from hypothesis import given
from hypothesis import strategies as st

from engine.cluster.salt import cache_salt, scope_digest

SECRET = b"k" * 32
names = st.text(alphabet="ab\x00é", max_size=4)


@given(names, names, names, names)
def test_two_pairs_share_a_salt_only_when_they_are_the_same(a: str, b: str, c: str, d: str) -> None:
    assert (cache_salt(SECRET, a, b) == cache_salt(SECRET, c, d)) == ((a, b) == (c, d))


def test_fields_cannot_slide_into_each_other() -> None:
    assert cache_salt(SECRET, "ab", "c") != cache_salt(SECRET, "a", "bc")


def test_the_salt_needs_the_deployments_secret() -> None:
    assert cache_salt(SECRET, "ten_1", "") != cache_salt(b"j" * 32, "ten_1", "")


def test_the_digest_in_logs_is_not_the_salt() -> None:
    assert scope_digest(SECRET, "ten_1", "u") != cache_salt(SECRET, "ten_1", "u")


def test_a_salt_stays_what_it_is() -> None:
    """A changed derivation turns every stored prefix into a miss: a decision, never an accident."""
    fields = (b"kvitto cache salt 1", b"ten_1", b"user")
    message = b"".join(len(field).to_bytes(8, "big") + field for field in fields)
    assert cache_salt(SECRET, "ten_1", "user") == hmac.new(SECRET, message, hashlib.sha256).hexdigest()
