"""What a credit note gives back: lines of a document, whole or in part, at most what was invoiced."""

from collections.abc import Mapping, Sequence

import msgspec

from billing.errors import InvoiceConflict
from billing.invoicing.document import InvoiceDocument
from billing.invoicing.lines import Line, Tax, tax_on


def credited_lines(
    document: InvoiceDocument, notes: Sequence[InvoiceDocument], asked: Mapping[int, int] | None
) -> tuple[tuple[Line, ...], tuple[Tax, ...]]:
    """Lines of a credit note, each naming the line it credits, and their tax.

    Tax is what the tax on all that was credited of a rate rises by: notes over the whole document give back
    exactly its tax, however it was cut.

    Args:
        document: an invoice, or the document of a top-up.
        notes: the credit notes on it so far.
        asked: cents by position of the line; None: all that is left.

    Raises:
        InvoiceConflict: more than the line or the document has left, a line that is not there, or nothing.
    """
    left = [line.cents for line in document.lines]
    for note in notes:
        for line in note.lines:
            left[line.credits or 0] -= line.cents
    wanted = dict(enumerate(left)) if asked is None else asked
    lines = []
    for position, cents in sorted(wanted.items()):
        if not 0 <= position < len(left):
            raise InvoiceConflict(document.number, f"it has no line {position + 1}")
        if cents and (abs(cents) > abs(left[position]) or (cents > 0) != (left[position] > 0)):
            raise InvoiceConflict(
                document.number, f"line {position + 1} has {left[position]} cents left, not {cents}"
            )
        if cents:
            of = document.lines[position]
            lines.append(msgspec.structs.replace(of, cents=cents, credits=position))
    tax = _tax(document, notes, lines)
    if sum(line.cents for line in lines) + sum(each.tax_cents for each in tax) <= 0:
        raise InvoiceConflict(document.number, "there is nothing to credit")
    return tuple(lines), tax


def _tax(
    document: InvoiceDocument, notes: Sequence[InvoiceDocument], lines: Sequence[Line]
) -> tuple[Tax, ...]:
    invoiced = {each.rate: each for each in document.tax}
    before: dict[str, int] = {}
    for line in (line for note in notes for line in note.lines):
        before[line.tax_rate] = before.get(line.tax_rate, 0) + line.cents
    basis: dict[str, int] = {}
    for line in lines:
        basis[line.tax_rate] = basis.get(line.tax_rate, 0) + line.cents
    found = []
    for rate, cents in basis.items():
        credited = before.get(rate, 0)
        whole = invoiced[rate].basis_cents if rate in invoiced else 0
        if not 0 <= credited + cents <= whole:
            raise InvoiceConflict(document.number, f"more than was invoiced at {rate} % after deductions")
        tax = tax_on(credited + cents, rate) - tax_on(credited, rate)
        if cents:
            found.append(Tax(rate, cents, tax))
    return tuple(found)
