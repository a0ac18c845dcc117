from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.wire import AnswerParams, RequestParams, WireInvalid

PARAMS = RequestParams("request", 0, "prefill", "chat", bytes(32), "memo", "ten_0123", "scope")


@given(
    st.builds(
        RequestParams,
        request_id=st.text(min_size=1),
        attempt=st.integers(0, 9),
        stage=st.sampled_from(("prefill", "decode", "both")),
        retention_class=st.text(),
        nonce=st.binary(min_size=32, max_size=32),
        memo=st.text(),
        tenant=st.from_regex(r"[A-Za-z0-9_-]{1,64}", fullmatch=True),
        scope_digest=st.text(),
    )
)
def test_what_a_cluster_writes_a_worker_reads(params: RequestParams) -> None:
    assert RequestParams.from_params(params.to_params()) == params


@pytest.mark.parametrize(
    "change",
    [
        {"tenant": "../other"},
        {"tenant": ""},
        {"tenant": "a" * 65},
        {"tenant": "ten_a\n"},
        {"nonce": "00" * 31},
        {"nonce": "zz" * 32},
        {"stage": "all"},
        {"attempt": "0"},
        {"attempt": -1},
        {"request_id": ""},
        {"memo": None},
    ],
)
def test_parameters_that_no_cluster_writes_are_refused(change: dict[str, Any]) -> None:
    with pytest.raises(WireInvalid):
        RequestParams.from_params(PARAMS.to_params() | change)


@pytest.mark.parametrize("params", [None, {}, [], {"attestation": 1, "certificate": "c"}])
def test_an_answer_without_an_attestation_is_noticed(params: object) -> None:
    with pytest.raises(WireInvalid):
        AnswerParams.from_params(params)


def test_an_answer_is_read_back() -> None:
    answer = AnswerParams("attested", "certified")
    assert AnswerParams.from_params(answer.to_params()) == answer
