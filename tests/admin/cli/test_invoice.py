"""Invoices from the command line: agreed on, closed, settled, and handed to the customer."""

import asyncio
import json
import secrets
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from admin import clock
from admin.settings import Settings, write_private
from admin.stack.state import Layout
from admin.verify.attached import attached_to
from admin.verify.bundle import check_bundle
from admin.verify.invoice import Invoices
from admin.verify.trust import Pin
from billing.db.transaction import Database
from billing.invoicing.paper.pdf import BUNDLE_NAME, DOCUMENT_NAME
from billing.tenancy.service import Tenancy
from engine.proof.certificate import DeploymentKey
from engine.proof.ring import DeploymentRing
from tests.admin.cli.conftest import PEPPER
from tests.admin.cli.test_verify import kvitto as verify

# The log of the module's database has one signer.
KEY = DeploymentKey.generate()


@pytest.fixture
def acme(cli_settings: Settings) -> str:
    """A postpaid tenant that was made two months ago; this process can read the deployment's key."""
    file = cli_settings.data_dir / "deployment.pem"
    write_private(file, KEY.to_pem())
    ring = DeploymentRing.of(KEY.public).to_text()
    signing = replace(cli_settings, deployment_ring=ring, deployment_key_file=file)
    signing.write(Layout(cli_settings.data_dir).settings)
    name = f"acme-{secrets.token_hex(4)}"

    async def make() -> None:
        database = Database(cli_settings.database_url, pool_size=1)
        at = clock.now() - timedelta(days=62)
        await Tenancy(database, PEPPER).create_tenant(name, at=at, billing_mode="postpaid")
        await database.close()

    asyncio.run(make())
    return name


def agreed(kvitto: Any, name: str) -> None:
    said = ("--from", "2020-01-01", "--tax", "24", "--fee", "support=49.00", "--fee", "books=10@6")
    assert kvitto("invoice", "terms", "set", name, *said).status == 0


def closed(kvitto: Any, name: str) -> Any:
    return kvitto("invoice", "close", name, "--rederive", "--json").told


def test_what_is_agreed_is_shown_and_means_something(kvitto: Any, acme: str) -> None:
    agreed(kvitto, acme)
    (shown,) = kvitto("invoice", "terms", "show", acme, "--json").told
    assert (shown["tax"], shown["fees"]) == ("24 %", "support 49.00, books 10.00")
    assert "support 49.00" in kvitto("invoice", "terms", "show", acme).out
    for words in (("--tax", "much"), ("--fee", "support"), ("--fee", "a=1.234"), ("--discount", "=5")):
        assert kvitto("invoice", "terms", "set", acme, "--from", "2020-01-01", *words).status != 0
    assert kvitto("invoice", "terms", "set", acme, "--from", "soon").status == 2


def test_a_profile_names_a_tenant_and_the_house(kvitto: Any, acme: str) -> None:
    kvitto("invoice", "profile", "set", acme, "--name", "Acme AB", "--address", "Gatan 1", "--country", "SE")
    assert kvitto("invoice", "profile", "show", acme, "--json").told["legal_name"] == "Acme AB"
    kvitto("invoice", "profile", "set", "house", "--name", "Kvitto AB")
    assert "Kvitto AB" in kvitto("invoice", "profile", "show", "house").out
    assert "country" in kvitto("invoice", "profile", "set", acme, "--name", "A", "--country", "Sweden").err


def test_a_coupon_is_given_once_and_taken_back(kvitto: Any, acme: str) -> None:
    give = ("invoice", "coupon", "give", acme, "WELCOME", "--from", "2020-01-01")
    give += ("--amount", "5", "--periods", "1")
    assert kvitto(*give).status == 0
    assert kvitto(*give).err == "kvitto: coupon WELCOME: it was given before\n"
    agreed(kvitto, acme)
    assert closed(kvitto, acme)[0]["total"] == "65.31"
    (listed,) = kvitto("invoice", "coupon", "list", acme, "--json").told
    assert (listed["off"], listed["used"]) == ("5.00", 1)
    assert kvitto("invoice", "coupon", "end", acme, "WELCOME").status == 0


def test_a_period_is_closed_shown_paid_credited_and_given_up(kvitto: Any, acme: str) -> None:
    agreed(kvitto, acme)
    assert "Draft of the invoice" in kvitto("invoice", "preview", acme).out
    assert kvitto("invoice", "preview", acme, "--json").told["number"] == "DRAFT"
    first, second, *_ = closed(kvitto, acme)
    assert (first["total"], first["open"], first["state"]) == ("71.36", "71.36", "finalised")
    again = kvitto("invoice", "close", acme)
    assert again.status == 1
    assert again.err.startswith("kvitto: the period cannot be closed: it ends too late")
    shown = kvitto("invoice", "show", first["number"]).out
    assert "support" in shown
    assert "71.36" in shown
    payload = json.loads(kvitto("invoice", "show", first["number"], "--json").out)["payload"]
    assert payload["number"] == first["number"]

    pay = ("invoice", "pay", first["number"])
    paid = kvitto(*pay, "50", "--reference", "t-1", "--json").told
    assert (paid["state"], paid["open"]) == ("finalised", "21.36")
    assert kvitto(*pay, "50", "--reference", "t-1").out.startswith(first["number"])
    assert "are open" in kvitto(*pay, "50", "--reference", "t-2").err
    assert kvitto(*pay, "0.001", "--reference", "t-3").status == 2
    credit = ("invoice", "credit-note", first["number"], "--reason", "slow")
    note = kvitto(*credit, "--line", "1=10", "--json").told
    assert (note["open"], "-C" in note["credit_note"]) == ("8.96", True)
    assert kvitto(*credit, "--line", "x").status == 2
    give_up = ("invoice", "uncollectible", first["number"], "--reason", "insolvent")
    given_up = kvitto(*give_up, "--json").told
    assert (given_up["state"], given_up["open"]) == ("uncollectible", "0.00")
    void = kvitto("invoice", "void", second["number"], "--reason", "wrong", "--json").told
    assert void["state"] == "void"
    rows = kvitto("invoice", "list", "--tenant", acme, "--json").told
    assert [row["kind"] for row in rows].count("credit_note") == 2
    assert kvitto("invoice", "list", "--tenant", acme, "--overdue", "--json").told == []
    assert "`kvitto invoice list` shows all of them" in kvitto("invoice", "show", "NONE-1").err


@pytest.mark.parametrize("name", ["bundle", "bundle.zip"])
def test_the_bundle_of_a_customer_verifies_offline(kvitto: Any, acme: str, tmp_path: Path, name: str) -> None:
    agreed(kvitto, acme)
    issued = closed(kvitto, acme)
    told = kvitto("invoice", "bundle", acme, str(tmp_path / name), "--json").told
    assert (told["receipts"], told["documents"]) == (0, len(issued))
    report = check_bundle(tmp_path / name, Pin(), jobs=1, invoices=Invoices())
    assert list(report.findings) == []
    assert len(report.invoices) == len(issued)


def test_a_printed_invoice_carries_what_verifies_it(kvitto: Any, acme: str, tmp_path: Path) -> None:
    agreed(kvitto, acme)
    first, *_ = closed(kvitto, acme)
    paper, bare, page = (tmp_path / name for name in ("I.pdf", "bare.PDF", "I.html"))
    told = kvitto("invoice", "print", first["number"], str(paper), "--json").told
    assert (told["number"], told["bytes"]) == (first["number"], paper.stat().st_size)
    assert set(attached_to(paper)) == {DOCUMENT_NAME, BUNDLE_NAME}
    verified = verify("verify", "invoice", paper, "--json")
    assert json.loads(verified[1])["checks"]["total"] == "71.36 USD", verified
    assert verified[0] == 0

    assert kvitto("invoice", "print", first["number"], str(bare), "--no-receipts").status == 0
    assert set(attached_to(bare)) == {DOCUMENT_NAME}
    page.write_text("what was there")
    assert "shows" in kvitto("invoice", "print", first["number"], str(page)).out
    assert "71.36" in page.read_text()
    assert {each.name for each in tmp_path.iterdir()} >= {"I.pdf", "bare.PDF", "I.html"}
    assert not list(tmp_path.glob(".*"))


def test_what_cannot_be_printed_leaves_what_was_there(kvitto: Any, acme: str, tmp_path: Path) -> None:
    name = ("invoice", "profile", "set", acme, "--name", "Acme \U0010fffd", "--country", "SE")
    assert kvitto(*name).status == 0
    agreed(kvitto, acme)
    number = closed(kvitto, acme)[0]["number"]
    (tmp_path / "I.pdf").write_text("what was there")
    failed = kvitto("invoice", "print", number, str(tmp_path / "I.pdf"), "--no-receipts")
    assert failed.status == 1
    assert "HTML and JSON do without" in failed.err
    assert (tmp_path / "I.pdf").read_text() == "what was there"
    assert kvitto("invoice", "print", number, str(tmp_path / "I.html")).status == 0
    assert kvitto("invoice", "print", number, str(tmp_path / "I.docx")).status == 2
    nowhere = kvitto("invoice", "print", number, str(tmp_path / "none" / "I.html"))
    assert "cannot be written" in nowhere.err
    assert "`kvitto invoice list`" in kvitto("invoice", "print", "NONE-1", str(tmp_path / "I.html")).err
