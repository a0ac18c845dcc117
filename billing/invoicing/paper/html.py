"""A document as HTML: one file without scripts, the same words as the PDF."""

from functools import cache
from importlib.resources import files
from typing import Final

from jinja2 import Environment, StrictUndefined, Template

from billing.invoicing.paper.page import Page

_TEMPLATE: Final = "invoice.html"


def html_of(page: Page) -> str:
    """The whole file. What tenants have written is escaped."""
    return _template().render(page=page)


@cache
def _template() -> Template:
    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    return environment.from_string((files(__package__) / _TEMPLATE).read_text(encoding="utf-8"))
