import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.wire import AnswerParams, JournalLine, RequestParams, WireInvalid, WorkerReport

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
        output_from=st.integers(0, 9),
        first_token=st.booleans(),
        weight=st.floats(0, exclude_min=True, allow_infinity=False),
    )
)
def test_what_a_cluster_writes_a_worker_reads(params: RequestParams) -> None:
    assert RequestParams.from_params(params.to_params()) == params


def test_a_worker_adds_which_images_came() -> None:
    said = PARAMS.to_params() | {"images": [[3, "a" * 64], [70, "b" * 64]]}
    assert RequestParams.from_params(said).images == ((3, "a" * 64), (70, "b" * 64))


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
        {"output_from": -1},
        {"first_token": "yes"},
        {"weight": 0},
        {"weight": float("inf")},
        {"request_id": ""},
        {"memo": None},
        {"images": 7},
        {"images": [[0]]},
        {"images": [[-1, "a" * 64]]},
        {"images": [[0, "a" * 63]]},
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


@given(st.builds(JournalLine, st.integers(), st.text(), st.text()))
def test_a_line_of_a_journal_is_read_as_it_was_written(line: JournalLine) -> None:
    assert JournalLine.from_json(json.loads(json.dumps(line.to_json()))) == line


@pytest.mark.parametrize("law", [None, (0.01, 0.0006, 4e-7)])
def test_a_report_is_read_as_it_was_written(law: tuple[float, float, float] | None) -> None:
    report = WorkerReport(1, 2, 300, 4000, True, "namespace", law, 50, 20)
    assert WorkerReport.from_json(json.loads(json.dumps(report.to_json()))) == report


@pytest.mark.parametrize(
    "wrong",
    [None, {}, [], {"running": -1}, {"running": "1"}, {"law": [1, 2]}, {"draining": 1}, {"accepted": 1}],
)
def test_a_report_that_cannot_be_is_refused(wrong: Any) -> None:
    report = WorkerReport(1, 2, 300, 4000, False, "namespace").to_json()
    with pytest.raises(WireInvalid):
        WorkerReport.from_json({**report, **wrong} if wrong and isinstance(wrong, dict) else wrong)
