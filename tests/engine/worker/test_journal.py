"""The journal on a real directory: a writer, readers, killed processes, a full disk."""

import json
import resource
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from engine.proof.attestation import DECODE_KIND, PREFILL_KIND
from engine.wire import JournalLine
from engine.worker.journal import Journal, JournalReader

ROOT = Path(__file__).parents[3]
LINE_BYTES = 2000


class Clock:
    def __init__(self) -> None:
        self.at_s = 0.0

    def __call__(self) -> float:
        return self.at_s


def attestation(request_id: str, attempt: int = 0, kind: str = PREFILL_KIND, fill: int = 0) -> str:
    payload = {"kind": kind, "request_id": request_id, "attempt": attempt, "memo": "m" * fill}
    return json.dumps({"payload": payload})


def written(journal: Journal, count: int, fill: int = 0) -> list[int]:
    return [journal.append(attestation(f"r{journal.written}", fill=fill), "c") for _ in range(count)]


def sequences(lines: list[JournalLine]) -> list[int]:
    return [line.sequence for line in lines]


@contextmanager
def file_size_limit(limit: int) -> Iterator[None]:
    """No file of this process grows beyond the limit: what a full disk is like."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_line_is_served_as_soon_as_it_is_written(tmp_path: Path) -> None:
    journal, reader = Journal(tmp_path / "new" / "folder"), JournalReader(tmp_path / "new" / "folder")
    assert reader.lines(0, 10) == []
    assert journal.append("an attestation", "a certificate") == 1
    assert reader.lines(0, 10) == [JournalLine(1, "an attestation", "a certificate")]
    journal.append("another", "a certificate")
    assert sequences(reader.lines(1, 10)) == [2]


def test_lines_come_in_order_over_segments_and_no_more_than_asked_for(tmp_path: Path) -> None:
    journal, reader = Journal(tmp_path), JournalReader(tmp_path)
    assert written(journal, 1500, fill=LINE_BYTES) == list(range(1, 1501))
    assert len(list(tmp_path.glob("*.jsonl"))) > 2
    taken: list[int] = []
    while lines := reader.lines(taken[-1] if taken else 0, 400):
        assert len(lines) <= 400
        taken += sequences(lines)
    assert taken == list(range(1, 1501))


def test_a_torn_last_line_is_never_served_and_dropped_at_the_next_start(tmp_path: Path) -> None:
    written(Journal(tmp_path), 3)
    (segment,) = tmp_path.glob("*.jsonl")
    whole = segment.read_bytes()
    segment.write_bytes(whole + b'{"sequence":4,"attestation":"half an att')
    reader = JournalReader(tmp_path)
    assert sequences(reader.lines(0, 10)) == [1, 2, 3]
    successor = Journal(tmp_path)
    assert segment.read_bytes() == whole
    assert successor.append("whole", "c") == 4
    assert reader.lines(3, 10) == [JournalLine(4, "whole", "c")]


def test_a_line_is_there_once_its_end_is(tmp_path: Path) -> None:
    journal, reader = Journal(tmp_path), JournalReader(tmp_path)
    journal.append(attestation("a"), "c")
    (segment,) = tmp_path.glob("*.jsonl")
    text = json.dumps(JournalLine(2, attestation("b"), "c").to_json())
    for part in (text[:40], text[40:]):
        with segment.open("a") as file:
            file.write(part)
        assert reader.find("b", 0, "prefill") is None
        assert sequences(reader.lines(0, 10)) == [1]
    with segment.open("a") as file:
        file.write("\n")
    assert reader.find("b", 0, "prefill") == JournalLine(2, attestation("b"), "c")
    assert sequences(reader.lines(0, 10)) == [1, 2]


def test_a_torn_first_line_makes_room_for_a_whole_one(tmp_path: Path) -> None:
    (tmp_path / f"{1:020}.jsonl").write_bytes(b'{"sequence":1,')
    assert Journal(tmp_path).append("whole", "c") == 1
    assert sequences(JournalReader(tmp_path).lines(0, 10)) == [1]


def test_the_sequence_goes_on_after_a_restart_also_when_all_was_removed(tmp_path: Path) -> None:
    written(Journal(tmp_path), 3)
    assert written(Journal(tmp_path), 2) == [4, 5]
    JournalReader(tmp_path).acknowledge(5)
    for segment in tmp_path.glob("*.jsonl"):
        segment.unlink()
    assert Journal(tmp_path).append("next", "c") == 6


def test_acknowledged_lines_are_not_served_again_neither_after_a_restart(tmp_path: Path) -> None:
    written(Journal(tmp_path), 5)
    reader = JournalReader(tmp_path)
    reader.acknowledge(3)
    reader.acknowledge(3)
    reader.acknowledge(2)
    assert sequences(reader.lines(0, 10)) == [4, 5]
    assert sequences(JournalReader(tmp_path).lines(0, 10)) == [4, 5]


def test_who_acknowledges_more_than_there_is_acknowledges_what_there_is(tmp_path: Path) -> None:
    journal, reader = Journal(tmp_path), JournalReader(tmp_path)
    written(journal, 2)
    reader.acknowledge(10**9)
    written(journal, 1)
    assert sequences(reader.lines(0, 10)) == [3]
    assert Journal(tmp_path).append("next", "c") == 4


def test_acknowledged_segments_go_ten_minutes_later_and_the_writers_own_stays(tmp_path: Path) -> None:
    clock = Clock()
    journal, reader = Journal(tmp_path), JournalReader(tmp_path, clock)
    written(journal, 1500, fill=LINE_BYTES)
    before = len(list(tmp_path.glob("*.jsonl")))
    reader.acknowledge(1500)
    clock.at_s = 590
    reader.acknowledge(1500)
    assert len(list(tmp_path.glob("*.jsonl"))) == before
    assert reader.find("r0", 0, "prefill") is not None
    clock.at_s = 601
    reader.acknowledge(1500)
    assert len(list(tmp_path.glob("*.jsonl"))) == 1
    assert reader.find("r0", 0, "prefill") is None
    assert reader.find("r1499", 0, "prefill") is not None
    assert written(journal, 1) == [1501]
    assert sequences(reader.lines(0, 10)) == [1501]


def test_a_segment_with_one_line_unacknowledged_stays(tmp_path: Path) -> None:
    clock = Clock()
    journal, reader = Journal(tmp_path), JournalReader(tmp_path, clock)
    written(journal, 1500, fill=LINE_BYTES)
    second = sorted(int(path.stem) for path in tmp_path.glob("*.jsonl"))[1]
    reader.acknowledge(second - 2)
    clock.at_s = 3600
    reader.acknowledge(0)
    assert sequences(reader.lines(0, 2)) == [second - 1, second]
    reader.acknowledge(second - 1)
    clock.at_s = 7200
    reader.acknowledge(0)
    assert sequences(reader.lines(0, 1)) == [second]
    assert min(int(path.stem) for path in tmp_path.glob("*.jsonl")) == second


def test_a_call_is_found_by_request_attempt_and_kind(tmp_path: Path) -> None:
    journal, reader = Journal(tmp_path), JournalReader(tmp_path)
    assert reader.find("a", 0, "prefill") is None
    for request_id, attempt, kind in (("a", 0, PREFILL_KIND), ("a", 0, DECODE_KIND), ("b", 1, DECODE_KIND)):
        journal.append(attestation(request_id, attempt, kind), "c")
    found = [reader.find("a", 0, "prefill"), reader.find("a", 0, "decode"), reader.find("b", 1, "decode")]
    assert [line.sequence for line in found if line is not None] == [1, 2, 3]
    assert reader.find("b", 0, "decode") is None
    assert reader.find("b", 1, "prefill") is None


def test_what_is_no_line_is_left_out_and_what_follows_is_served(tmp_path: Path) -> None:
    written(Journal(tmp_path), 1)
    (segment,) = tmp_path.glob("*.jsonl")
    with segment.open("ab") as file:
        file.write(b"\0\0\0\n" + b"{}\n" + b"\xff\n")
    journal, reader = Journal(tmp_path), JournalReader(tmp_path)
    assert journal.append(attestation("b"), "c") == 2
    assert sequences(reader.lines(0, 10)) == [1, 2]
    found = reader.find("b", 0, "prefill")
    assert found is not None
    assert found.sequence == 2


def test_a_full_disk_loses_lines_counts_them_and_later_ones_are_kept(tmp_path: Path) -> None:
    journal, reader = Journal(tmp_path), JournalReader(tmp_path)
    written(journal, 2)
    (segment,) = tmp_path.glob("*.jsonl")
    with file_size_limit(segment.stat().st_size + 50):
        assert written(journal, 3) == [0, 0, 0]
    assert journal.lost == 3
    assert written(journal, 1) == [3]
    assert sequences(reader.lines(0, 10)) == [1, 2, 3]
    assert segment.read_bytes().count(b"\n") == 3


def test_a_folder_that_vanished_is_made_again(tmp_path: Path) -> None:
    folder = tmp_path / "journal"
    journal, reader = Journal(folder), JournalReader(folder)
    written(journal, 2)
    folder.rename(tmp_path / "elsewhere")
    for segment in (tmp_path / "elsewhere").iterdir():
        segment.unlink()
    assert written(journal, 1) == [3]
    assert sequences(reader.lines(2, 10)) == [3]


WRITER = """
import sys
from pathlib import Path
from engine.worker.journal import Journal
journal = Journal(Path(sys.argv[1]))
while True:
    print(journal.append("a" * 3000, "c"), flush=True)
"""


def test_of_a_killed_writer_every_line_is_whole_and_its_successor_goes_on(tmp_path: Path) -> None:
    reader, deadline = JournalReader(tmp_path), time.monotonic() + 30
    after = 0
    for _ in range(3):
        process = subprocess.Popen(
            [sys.executable, "-c", WRITER, str(tmp_path)], cwd=ROOT, stdout=subprocess.PIPE, text=True
        )
        assert process.stdout is not None
        try:
            assert int(process.stdout.readline()) == after + 1
            said = after
            while said < after + 400:
                said = int(process.stdout.readline())
                lines = reader.lines(said - 1, 1)
                assert sequences(lines) == [said]
                assert time.monotonic() < deadline
        finally:
            process.kill()
            process.wait(10)
            process.stdout.close()
        lines = reader.lines(after, 10**6)
        assert sequences(lines) == list(range(after + 1, after + 1 + len(lines)))
        assert {line.attestation for line in lines} == {"a" * 3000}
        assert len(lines) >= said - after
        after += len(lines)


@pytest.mark.parametrize("text", ["", "nonsense", "-"])
def test_an_acknowledgement_that_cannot_be_read_is_none(tmp_path: Path, text: str) -> None:
    written(Journal(tmp_path), 2)
    (tmp_path / "acknowledged").write_text(text)
    assert sequences(JournalReader(tmp_path).lines(0, 10)) == [1, 2]
