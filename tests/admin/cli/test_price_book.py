"""`kvitto price lint`, `diff`, `publish`, `export` and `plan`: books as files, and who is on which plan."""

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from admin import clock
from billing.pricing import toml
from billing.pricing.writing import write

ROW = """
[[price]]
model = "{model}"
currency = "USD"
effective_from = {at}
instant = "admitted"
hit_per_mtok = "0.01"
miss_per_mtok = "{miss}"
output_per_mtok = "0.2"
"""


def row(model: str, at: str = "2026-01-01T00:00:00Z", miss: str = "0.1", **owner: str) -> str:
    return ROW.format(model=model, at=at, miss=miss) + "".join(
        f'{key} = "{name}"\n' for key, name in owner.items()
    )


@pytest.fixture
def book(tmp_path: Path) -> Any:
    def written(text: str) -> str:
        path = tmp_path / "book.toml"
        path.write_text(text)
        return str(path)

    return written


def test_lint_names_the_file_the_line_and_the_reason_of_every_fault(kvitto: Any, book: Any) -> None:
    file = book(row("a", miss="0.00000014") + row("b") + row("c", at="2026-01-01T00:00:00"))
    ran = kvitto("price", "lint", file)
    assert (ran.status, ran.out) == (1, "")
    first, second = ran.err.removeprefix("kvitto: ").splitlines()
    assert first.startswith(f"{file}:8: price 1.miss_per_mtok: 0.00000014 is no price per 1M tokens")
    assert second.startswith(f"{file}:23: price 3.effective_from: must be an instant with an offset")
    assert "3 rows" not in ran.out


@pytest.mark.parametrize("name", ["demo", "deepseek"])
def test_lint_says_that_nothing_is_wrong(kvitto: Any, book: Any, name: str) -> None:
    ran = kvitto("price", "lint", book(write(toml.shipped(name))))
    assert ran.status == 0
    assert "nothing wrong" in ran.out


@pytest.mark.parametrize(("content", "reason"), [(None, "No such file"), (b"\xff", "no text in UTF-8")])
def test_a_file_that_cannot_be_read_is_said_so(
    kvitto: Any, tmp_path: Path, content: bytes | None, reason: str
) -> None:
    file = tmp_path / "book.toml"
    if content is not None:
        file.write_bytes(content)
    ran = kvitto("price", "lint", str(file))
    assert ran.status == 1
    assert reason in ran.err


def test_a_book_that_does_not_validate_is_refused_whole_and_the_old_one_stays(kvitto: Any, book: Any) -> None:
    kvitto("price", "publish", book(row("old")))
    before = kvitto("price", "list", "--json").told
    ran = kvitto("price", "publish", book(row("fresh") + row("old", at="2027-01-01T00:00:00Z", miss="0.001")))
    assert ran.status == 1
    assert "book.toml:11: price 2: a hit costs more than a miss" in ran.err
    assert kvitto("price", "list", "--json").told == before


def test_publishing_is_once_and_in_time(kvitto: Any, book: Any) -> None:
    scheduled = row("scheduled") + row("scheduled", at="2099-01-01T00:00:00Z", miss="0.3")
    assert kvitto("price", "publish", book(scheduled), "--json").told["added"] == 2
    assert kvitto("price", "publish", book(scheduled), "--json").told["added"] == 0
    shown = {
        at: kvitto("price", "show", "scheduled", "--at", at, "--json").told[0]["rates"]["miss"]
        for at in ("2098-12-31T23:59:59Z", "2099-01-01")
    }
    assert list(shown.values()) == ["0.1", "0.3"]
    late = kvitto("price", "publish", book(row("scheduled", at="2026-02-01T00:00:00Z")))
    assert (late.status, "before every gateway has seen it" in late.err) == (1, True)
    assert "book.toml:2: price scheduled/USD/2026-02-01T00:00:00Z: takes effect" in late.err
    changed = kvitto("price", "publish", book(row("scheduled", miss="0.5")))
    assert (changed.status, "published rows never change" in changed.err) == (1, True)


def test_a_price_that_begins_while_requests_run_that_end_by_it_is_refused_with_file_and_line(
    kvitto: Any, book: Any
) -> None:
    completed = row("ending").replace('"admitted"', '"completed"')
    assert kvitto("price", "publish", book(completed)).status == 0
    soon = f"{clock.now() + timedelta(seconds=300):%Y-%m-%dT%H:%M:%SZ}"
    text = completed + row("ending", soon, "0.3")
    ran = kvitto("price", "publish", book(text))
    assert ran.status == 1
    assert f"book.toml:{text.count(chr(10), 0, text.rindex('[[price]]')) + 1}: price ending/USD/" in ran.err
    assert "610 s from now none will" in ran.err
    assert kvitto("price", "diff", book(text), "--json").told[1]["state"] == "refused"
    later = f"{clock.now() + timedelta(seconds=700):%Y-%m-%dT%H:%M:%SZ}"
    assert kvitto("price", "publish", book(row("ending", later, "0.3"))).status == 0


def test_diff_shows_what_a_book_would_change(kvitto: Any, book: Any) -> None:
    kvitto("price", "publish", book(row("differs")))
    text = row("differs") + row("differs", at="2099-01-01T00:00:00Z", miss="0.3") + row("brand-new")
    same, new, brand = kvitto("price", "diff", book(text), "--json").told
    assert (same["state"], same["changes"]) == ("same", [])
    assert (new["state"], new["price_row_id"]) == ("new", "differs/USD/2099-01-01T00:00:00Z")
    assert new["changes"] == [{"what": "standard: miss", "before": "0.1", "after": "0.3"}]
    assert {change["before"] for change in brand["changes"]} == {None}
    shown = kvitto("price", "diff", book(text)).out
    assert "standard: miss" in shown
    assert "differs/USD/2026" not in shown
    assert "are published" in kvitto("price", "diff", book(row("differs"))).out


def test_what_is_exported_is_the_published_book(kvitto: Any, book: Any) -> None:
    kvitto("price", "publish", book(row("exported")))
    text = kvitto("price", "export").out
    assert {each["state"] for each in kvitto("price", "diff", book(text), "--json").told} == {"same"}
    assert len(toml.read(text).rows) == len(kvitto("price", "list", "--json").told)


def test_a_tenants_own_price_comes_before_its_plans(kvitto: Any, book: Any) -> None:
    acme = kvitto("tenant", "create", "planned", "--json").told["id"]
    assert kvitto("price", "plan", "create", "gold").status == 0
    later = "2098-01-01T00:00:00Z"
    text = (
        row("planned")
        + row("planned", later, "0.05", plan="gold")
        + row("planned", later, "0.02", tenant=acme)
    )
    kvitto("price", "publish", book(text.replace("planned", "offered")))
    put = kvitto("price", "plan", "put", "planned", "gold", "--from", "2097-01-01", "--json").told
    assert (put["plan"], put["effective_from"]) == ("gold", "2097-01-01T00:00:00Z")

    def miss(*words: str) -> str:
        (shown,) = kvitto("price", "show", "offered", "--at", "2098-06-01", *words, "--json").told
        return str(shown["rates"]["miss"])

    assert (miss(), miss("--tenant", "planned")) == ("0.1", "0.02")
    kvitto("tenant", "create", "plain")
    kvitto("price", "plan", "put", "plain", "gold", "--from", "2098-01-01")
    assert miss("--tenant", "plain") == "0.05"
    kvitto("price", "plan", "put", "plain", "--from", "2098-02-01")
    assert miss("--tenant", "plain") == "0.1"

    listed = kvitto("price", "plan", "list", "--json").told
    on = {(each["tenant"], each["plan"], each["effective_from"][:7], each["rows"]) for each in listed}
    assert on >= {
        ("planned", "gold", "2097-01", 1),
        ("plain", "gold", "2098-01", 1),
        ("plain", None, "2098-02", None),
    }
    assert "gold" in kvitto("price", "plan", "list").out


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("create", "Gold"), "small letters"),
        (("put", "nobody", "gold"), "`kvitto tenant list`"),
        (("put", "plain-tenant", "tin"), "`kvitto price plan list`"),
        (("put", "plain-tenant", "--from", "2020-01-01"), "before every gateway has seen it"),
    ],
)
def test_plans_that_cannot_be_are_refused(kvitto: Any, words: tuple[str, ...], reason: str) -> None:
    kvitto("tenant", "create", "plain-tenant")
    ran = kvitto("price", "plan", *words)
    assert ran.status == 1
    assert reason in ran.err
