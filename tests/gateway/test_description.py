"""What is described is what there is: every route, and bodies as they are really read and answered."""

import json
import re
from collections.abc import Iterator, Mapping
from html.parser import HTMLParser
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import msgspec
import pytest
from jsonschema import Draft202012Validator

from gateway import paths
from gateway.description.document import NOUNS, written
from gateway.description.page import page_of
from gateway.routes import description
from tests.gateway.conftest import House

# The whole document, also of surfaces that this application does not serve yet.
WHOLE = description.document(
    frozenset(
        (re.sub(r":\w+}", "}", path), method)
        for name, listed in vars(paths).items()
        if name.isupper()
        for path in listed
        for method in ("GET", "HEAD", "POST")
    )
)
# Surfaces that can be read already, by the noun that describes them.
READERS = {
    noun: import_module(f"recipe.protocols.{noun}")
    for noun in ("chat", "responses", "messages", "completions")
    if find_spec(f"recipe.protocols.{noun}")
}
Found = tuple[str, Mapping[str, Any], Mapping[str, Any]]  # noun, operation as written, its body's schema


def bodies() -> Iterator[Found]:
    """Each operation with a body, once."""
    for noun in READERS:
        document = written(noun)
        for operation in document["operations"]:
            if "body" in operation:
                yield noun, operation, document["schemas"][operation["body"]["schema"]]


def reading(noun: str, operation: Mapping[str, Any]) -> Any:
    return getattr(READERS[noun], operation.get("reader", "read"))


BODIES = list(bodies())
by_operation = pytest.mark.parametrize(
    ("noun", "operation", "schema"), BODIES, ids=[operation["id"] for _, operation, _ in BODIES]
)


@pytest.fixture
async def document(house: House) -> Any:
    async with house.session.get(f"{house.url}/openapi.json") as answer:
        return await answer.json()


def check(name: str, value: object) -> None:
    """One value against a schema of the document."""
    validate({"$ref": f"#/components/schemas/{name}"}, value)


def validate(schema: Mapping[str, Any], value: object) -> None:
    Draft202012Validator({**schema, "components": WHOLE["components"]}).validate(value)


def inside(value: Any, key: str) -> Iterator[Any]:
    """Whatever stands under a key, anywhere in a document."""
    if isinstance(value, Mapping):
        for name, each in value.items():
            if name == key:
                yield each
            yield from inside(each, key)
    elif isinstance(value, list | tuple):
        for each in value:
            yield from inside(each, key)


async def test_just_what_is_served_is_described(house: House, document: Any) -> None:
    served = description.routes_of(house.app)
    assert {(path, method.upper()) for path, item in document["paths"].items() for method in item} == served
    assert {tag["name"] for tag in document["tags"]} == {
        tag for item in document["paths"].values() for operation in item.values() for tag in operation["tags"]
    }


async def test_the_document_holds_together(document: Any) -> None:
    assert document["openapi"].startswith("3.1")
    for reference in inside([document, WHOLE], "$ref"):
        at: Any = WHOLE
        for step in reference.removeprefix("#/").split("/"):
            at = at[step]
    for schema in WHOLE["components"]["schemas"].values():
        Draft202012Validator.check_schema(schema)
    operations = [(path, operation) for path, item in WHOLE["paths"].items() for operation in item.values()]
    names = [operation["operationId"] for _, operation in operations]
    assert len(set(names)) == len(names)
    for path, operation in operations:
        assert operation["summary"]
        assert {"200", "201"} & operation["responses"].keys(), path
        named = {p["name"] for p in operation.get("parameters", ()) if p.get("in") == "path"}
        assert named == set(re.findall(r"{(\w+)}", path))


def test_every_example_is_what_its_schema_says() -> None:
    checked = 0
    for content in inside(WHOLE, "content"):
        body = content.get("application/json", {}) if isinstance(content, Mapping) else {}
        examples = [each["value"] for each in body.get("examples", {}).values()]
        for example in [*examples, *([body["example"]] if "example" in body else [])]:
            validate(body["schema"], example)
            checked += 1
    assert checked > len(NOUNS)


def test_every_event_of_an_example_is_what_its_schema_says() -> None:
    for noun in NOUNS:
        for operation in written(noun)["operations"]:
            for line in operation.get("stream", {}).get("example", "").splitlines():
                if line.startswith("data: {"):
                    check(operation["stream"]["schema"], json.loads(line.removeprefix("data: ")))


@by_operation
def test_every_example_of_a_body_is_read_and_nothing_in_it_ignored(
    noun: str, operation: Mapping[str, Any], schema: Mapping[str, Any]
) -> None:
    for name, example in operation["body"]["examples"].items():
        assert reading(noun, operation)(msgspec.json.encode(example)).ignored_params == (), name


@by_operation
def test_every_parameter_that_is_described_has_an_effect(
    noun: str, operation: Mapping[str, Any], schema: Mapping[str, Any]
) -> None:
    plain = operation["body"]["examples"]["plain"]
    assert set(schema.get("required", ())) <= schema["properties"].keys()
    for name, parameter in schema["properties"].items():
        (value,) = parameter["examples"]
        validate(parameter, value)
        told = {"logprobs": True, "include": ["message.output_text.logprobs"]}
        more = {"stream_options": {"stream": True}, "top_logprobs": told}.get(name, {})
        read = reading(noun, operation)(msgspec.json.encode({**plain, **more, name: value}))
        assert name not in read.ignored_params, name
        assert name in read.sent, name


@by_operation
def test_every_parameter_said_to_be_without_effect_is_named_as_ignored(
    noun: str, operation: Mapping[str, Any], schema: Mapping[str, Any]
) -> None:
    plain = operation["body"]["examples"]["plain"]
    for name, value in operation.get("ignored", {}).items():
        assert name not in schema["properties"]
        read = reading(noun, operation)(msgspec.json.encode({**plain, name: value}))
        assert name in read.ignored_params, name


async def test_what_is_answered_is_what_is_described(house: House) -> None:
    async def shown(path: str, status: int = 200, **headers: str) -> Any:
        async with house.session.get(house.url + path, headers={**house.headers, **headers}) as answer:
            assert answer.status == status
            return await answer.json()

    for path, name in (
        ("/models", "ModelList"),
        ("/anthropic/v1/models", "AnthropicModelList"),
        ("/user/balance", "Balance"),
        ("/readyz", "Readiness"),
    ):
        check(name, await shown(path))
    check("ErrorBody", await shown("/v1/models/nobody", 404))
    check("AnthropicErrorBody", await shown("/anthropic/v1/models/nobody", 404))
    async with house.chat() as answer:
        check("ChatCompletion", await answer.json())
    async with house.chat(stream=True, stream_options={"include_usage": True}) as answer:
        events = re.findall(r"^data: ({.*})$", await answer.text(), re.MULTILINE)
    assert len(events) > 2
    for event in events:
        check("ChatCompletionChunk", json.loads(event))


VOID = {"meta", "br", "hr", "img", "link", "input"}


class Page(HTMLParser):
    """Ids, links and open tags of a page; what closes must be what was opened last."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.ids: list[str] = []
        self.links: list[str] = []
        self.tags: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.ids += [value or "" for name, value in attrs if name == "id"]
        self.links += [value or "" for name, value in attrs if name in {"href", "src"}]
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


async def test_the_reference_is_one_whole_page_that_loads_nothing(house: House, document: Any) -> None:
    async with house.session.get(f"{house.url}/docs") as answer:
        assert answer.status == 200
        assert answer.content_type == "text/html"
        assert "default-src 'none'" in answer.headers["content-security-policy"]
        text = await answer.text()
    page = Page()
    page.feed(text)
    assert not page.open
    assert not page.tags & {"script", "link", "img", "iframe"}
    assert "url(" not in text
    assert {link for link in page.links if not link.startswith("#")} == {"/openapi.json"}
    assert len(set(page.ids)) == len(page.ids)
    assert {link[1:] for link in page.links if link.startswith("#")} <= set(page.ids)
    for path, item in document["paths"].items():
        for operation in item.values():
            assert path in text
            assert operation["operationId"] in page.ids or operation["x-same-as"] in text


def test_a_description_is_text_and_never_markup() -> None:
    document = {
        "info": {"title": "<b>", "version": "1", "description": "`<i>` & <u>"},
        "tags": [],
        "paths": {},
        "components": {},
    }
    text = page_of(document)
    assert "<code>&lt;i&gt;</code> &amp; &lt;u&gt;" in text
    assert "<u>" not in text
