"""The OpenAPI document as a page for people: rendered here, with no script and nothing from elsewhere."""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any, Final

from jinja2 import Environment, StrictUndefined, Template
from markupsafe import Markup, escape

DEPTH_MAX: Final = 6  # of nested fields; schemas that name themselves end there
METHODS: Final = ("get", "head", "post", "patch", "put", "delete")

Schema = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Field:
    """A parameter, or a property of a body: what it is called, may be and means, and what is in it."""

    name: str
    type: str
    required: bool
    description: Markup
    fields: tuple["Field", ...] = ()


@dataclass(frozen=True, slots=True)
class Body:
    """What is sent or answered: its media type and schema's name, its fields, and examples by name."""

    media: str
    name: str
    fields: tuple[Field, ...]
    examples: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Reply:
    """What comes with a status."""

    status: str
    description: Markup
    bodies: tuple[Body, ...]


@dataclass(frozen=True, slots=True)
class Operation:
    """One method of one path; ``also`` are the paths where it is the same."""

    id: str
    method: str
    path: str
    also: tuple[str, ...]
    summary: str
    description: Markup
    keyless: bool
    parameters: tuple[Field, ...]
    sent: tuple[Body, ...]
    replies: tuple[Reply, ...]


def page_of(document: Mapping[str, Any]) -> str:
    """Render a document, whole, in HTML."""
    operations = list(_Reader(document).operations())
    sections = [
        (tag, _prose(tag["description"]), [each for name, each in operations if name == tag["name"]])
        for tag in document["tags"]
    ]
    info = document["info"]
    return _template().render(info=info, about=_prose(info["description"]), sections=sections)


@cache
def _template() -> Template:
    text = resources.files("gateway.description").joinpath("page.html").read_text(encoding="utf-8")
    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    return environment.from_string(text)


class _Reader:
    """Follows the references of one document."""

    def __init__(self, document: Mapping[str, Any]) -> None:
        self._document = document
        self._also: dict[tuple[str, str], list[str]] = {}
        for path, method, operation in self._every():
            self._also.setdefault((operation.get("x-same-as", path), method), []).append(path)

    def operations(self) -> Iterator[tuple[str, Operation]]:
        """Each with the tag it stands under, where it is first."""
        for path, method, operation in self._every():
            if "x-same-as" in operation and operation["x-same-as"] in self._document["paths"]:
                continue
            body = self._followed(operation.get("requestBody", {}))
            yield (
                operation["tags"][0],
                Operation(
                    id=operation["operationId"],
                    method=method.upper(),
                    path=path,
                    also=tuple(self._also[path, method][1:]),
                    summary=operation["summary"],
                    description=_prose(operation.get("description", "")),
                    keyless=operation["security"] == [],
                    parameters=tuple(map(self._parameter, operation.get("parameters", ()))),
                    sent=tuple(self._bodies(body)),
                    replies=tuple(self._replies(operation["responses"])),
                ),
            )

    def _every(self) -> Iterator[tuple[str, str, Mapping[str, Any]]]:
        for path, item in self._document["paths"].items():
            for method in METHODS:
                if method in item:
                    yield path, method, item[method]

    def _parameter(self, source: Schema) -> Field:
        parameter = self._followed(source)
        kind = f"{self._type(parameter['schema'])}, {parameter['in']}"
        said = _prose(parameter.get("description", ""))
        return Field(parameter["name"], kind, parameter.get("required", False), said)

    def _replies(self, responses: Mapping[str, Schema]) -> Iterator[Reply]:
        for status, source in responses.items():
            response = self._followed(source)
            yield Reply(status, _line(response["description"]), tuple(self._bodies(response)))

    def _bodies(self, source: Schema) -> Iterator[Body]:
        for media, content in source.get("content", {}).items():
            examples = {name: each["value"] for name, each in content.get("examples", {}).items()}
            if "example" in content:
                examples[""] = content["example"]
            shown = tuple((name, _shown(example)) for name, example in examples.items())
            schema = content.get("schema", {})
            schema = schema.get("contentSchema", schema)  # of a stream: one event
            yield Body(media, self._type(schema), self._fields(schema), shown)

    def _fields(self, source: Schema, depth: int = 0) -> tuple[Field, ...]:
        """The properties of an object, or of the items of a list."""
        if depth == DEPTH_MAX:
            return ()
        schema = self._followed(source)
        if "items" in schema and "properties" not in schema:
            return self._fields(schema["items"], depth)
        required = schema.get("required", ())
        return tuple(
            Field(
                name,
                self._type(each),
                name in required,
                _prose(self._followed(each).get("description", "")),
                self._fields(each, depth + 1),
            )
            for name, each in schema.get("properties", {}).items()
        )

    def _type(self, source: Schema) -> str:
        """What values may be, in a few words."""
        if "$ref" in source:
            name = str(source["$ref"]).rpartition("/")[2]
            page = "page of " if name.startswith("Listed_") else ""
            return page + name.rpartition(".")[2].strip("_")
        several = source.get("oneOf") or source.get("anyOf")
        if several:
            return " or ".join(dict.fromkeys(map(self._type, several)))
        if "const" in source:
            return json.dumps(source["const"])
        if "enum" in source:
            return ", ".join(map(json.dumps, source["enum"]))
        kinds = source.get("type", "any")
        kinds = [kinds] if isinstance(kinds, str) else list(kinds)
        if "array" not in kinds:
            return " or ".join(kinds) + _bounds(source)
        items = f"list of {self._type(source.get('items', {}))}"
        return " or ".join(items if kind == "array" else kind for kind in kinds)

    def _followed(self, source: Schema) -> Schema:
        found: Any = source
        while "$ref" in found:
            at: Any = self._document
            for step in found["$ref"].removeprefix("#/").split("/"):
                at = at[step]
            found = at
        assert isinstance(found, Mapping)
        return found


def _bounds(schema: Schema) -> str:
    words = (
        ("minimum", "at least"),
        ("exclusiveMinimum", "above"),
        ("maximum", "at most"),
        ("maxLength", "up to length"),
    )
    said = [f"{word} {schema[name]:g}" for name, word in words if name in schema]
    return f" ({', '.join(said)})" if said else ""


def _shown(example: object) -> str:
    return example if isinstance(example, str) else json.dumps(example, indent=2, ensure_ascii=False)


def _prose(text: str) -> Markup:
    """Paragraphs between empty lines, each as `_line` has it."""
    return Markup("").join(Markup("<p>{}</p>").format(_line(each)) for each in text.split("\n\n") if each)


def _line(text: str) -> Markup:
    """Text with ``code`` in backticks; nothing in it is markup of its own."""
    return Markup(re.sub(r"`([^`]+)`", r"<code>\1</code>", str(escape(text))))  # noqa: S704  escaped
