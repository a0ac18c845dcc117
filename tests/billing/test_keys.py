from hypothesis import given
from hypothesis import strategies as st

from billing.tenancy.keys import checksum_ok, digest, secret_of

ENTROPY = st.binary(min_size=32, max_size=32)


@given(ENTROPY)
def test_a_key_is_its_prefix_thirty_characters_and_a_checksum(entropy: bytes):
    secret = secret_of(entropy)
    assert secret.startswith("kv_live_")
    assert len(secret) == len("kv_live_") + 30 + 6
    assert secret.isascii()
    assert secret.removeprefix("kv_live_").isalnum()
    assert checksum_ok(secret)


@given(ENTROPY, st.integers(8, 43), st.sampled_from("0aZ_-"))
def test_a_key_with_one_wrong_character_is_told_apart(entropy: bytes, position: int, character: str):
    secret = secret_of(entropy)
    wrong = secret[:position] + character + secret[position + 1 :]
    assert checksum_ok(wrong) == (wrong == secret)


@given(ENTROPY, st.integers(0, 43))
def test_a_truncated_key_is_told_apart(entropy: bytes, length: int):
    assert not checksum_ok(secret_of(entropy)[:length])


@given(st.text(max_size=60))
def test_no_text_makes_the_checksum_fail_otherwise_than_by_saying_no(text: str):
    assert not checksum_ok(text)
    assert not checksum_ok("kv_live_" + text)


def test_the_digest_depends_on_the_pepper():
    secret = secret_of(bytes(32))
    assert digest(secret, b"one") != digest(secret, b"two")
    assert len(digest(secret, b"one")) == 32
