"""Puts the documents beside this file together: OpenAPI 3.1 of the paths that an application serves.

A document is a noun with its operations and schemas, in JSON. Of an operation it says ``paths`` (a list of
`gateway.paths`), ``method``, what it takes and gives with examples, ``ignored`` (parameters, each with a
value, that are taken and change nothing), ``open`` where it needs no key, and ``statuses`` where it refuses
by others than is usual. What is the same for all (keys, headers, refusals) is added here, and so is what is
said of ``images`` where they may be sent.
"""

import json
import re
from collections.abc import Collection, Iterator, Mapping
from importlib import resources
from typing import Any, Final

from gateway import paths
from gateway.description import refusals
from recipe.images import ImageBounds

NOUNS: Final = (
    *("chat", "responses", "messages", "completions", "models", "balance"),
    *("usage", "receipts", "house"),
)
BEARER: Final = "key"
OWN_HEADER: Final = "x-api-key"
SECURITY: Final[tuple[dict[str, list[str]], ...]] = ({BEARER: []}, {OWN_HEADER: []})
SCHEMES: Final = {
    BEARER: {"type": "http", "scheme": "bearer", "description": "`Authorization: Bearer kv_live_…`"},
    OWN_HEADER: {
        "type": "apiKey",
        "in": "header",
        "name": OWN_HEADER,
        "description": "The same key, as Anthropic's clients send it. Both are fine if they are the same.",
    },
}
PARAMETERS: Final = {
    "IdempotencyKey": {
        "name": "Idempotency-Key",
        "in": "header",
        "required": False,
        "description": "With the same body it is answered once and charged once, for a day; a client that"
        " leaves does not end its request then.",
        "schema": {"type": "string", "minLength": 1, "maxLength": 255},
    },
    "TrafficClass": {
        "name": "X-Traffic-Class",
        "in": "header",
        "required": False,
        "description": "How long the prefix is kept, if the key lets you choose: `agent` 3 days, `chat` 7.",
        "schema": {"type": "string", "enum": ["agent", "chat"]},
    },
}
HEADERS: Final = {
    "RequestId": {"description": "Its id in usage and receipts.", "schema": {"type": "string"}},
    "RetryAfter": {"description": "Seconds, at most 60.", "schema": {"type": "integer"}},
    "IgnoredParams": {
        "description": "Parameters that had no effect, by name.",
        "schema": {"type": "string"},
    },
    "Replayed": {
        "description": "`true`: the answer of an earlier request with the same idempotency key.",
        "schema": {"type": "string"},
    },
}
_BOUNDS: Final = ImageBounds()
IMAGES: Final = (
    f"Where the model reads images, a request may hold {_BOUNDS.image_count_max} of them, each a PNG, JPEG,"
    f" WebP or GIF file of at most {_BOUNDS.image_bytes_max} bytes and {_BOUNDS.pixels_max} pixels,"
    f" {_BOUNDS.side_px_max} on a side, all together of at most {_BOUNDS.request_bytes_max} bytes: as data in"
    f" base64, or by an http or https URL of the public Internet, from where it is fetched. Their tokens are"
    f" tokens of the prompt."
)
READING: Final = (400, 401, 403, 404, 413, 422, 500, 503)
OPEN: Final = (400, 404, 429, 500, 503)
INFERENCE: Final = (*READING, 402, 409, 429)

Served = Mapping[str, Collection[str]]


def described(served: Served) -> dict[str, Any]:
    """Paths, components and tags of what is described here and served: methods, in capitals, by path.

    Paths are written as OpenAPI does, ``/v1/models/{name}``.
    """
    documents = [written(noun) for noun in NOUNS]
    items: dict[str, dict[str, Any]] = {}
    tags, schemas = [], dict(refusals.SCHEMAS)
    for document in documents:
        found = list(_operations(document, served))
        for path, method, operation in found:
            items.setdefault(path, {})[method] = operation
        if found:
            tags.append(document["tag"])
            schemas |= document["schemas"]
    components = {
        "schemas": schemas,
        "responses": refusals.components(),
        "parameters": PARAMETERS,
        "headers": HEADERS,
        "securitySchemes": SCHEMES,
    }
    return {"paths": items, "components": components, "tags": tags}


def written(noun: str) -> dict[str, Any]:
    """One document, as it is written."""
    text = resources.files("gateway.description").joinpath(f"{noun}.json").read_text(encoding="utf-8")
    document: dict[str, Any] = json.loads(text)
    return document


def _operations(document: Mapping[str, Any], served: Served) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Each operation at each path that is served; all but the first name the one they are the same as."""
    for source in document["operations"]:
        every = [re.sub(r":\w+}", "}", path) for path in getattr(paths, source["paths"])]
        first, method = every[0], source["method"]
        for path in every:
            if method.upper() in served.get(path, ()):
                operation = {**_operation(source), "tags": [document["tag"]["name"]]}
                if path != first:
                    operation["operationId"] += re.sub(r"\W+", "_", path).rstrip("_") or "_root"
                    operation["x-same-as"] = first
                yield path, method, operation


def _operation(source: Mapping[str, Any]) -> dict[str, Any]:
    inference = source.get("inference", False)
    said = [source.get("description", "")]
    if ignored := source.get("ignored"):
        names = ", ".join(f"`{name}`" for name in ignored)
        said.append(f"Taken, without effect, and named in `x-ignored-params`: {names}.")
    if source.get("images", False):
        said.append(IMAGES)
    parameters = list(source.get("parameters", ()))
    if inference:
        parameters += [{"$ref": f"#/components/parameters/{name}"} for name in PARAMETERS]
    operation = {
        "operationId": source["id"],
        "summary": source["summary"],
        "description": "\n\n".join(filter(None, said)),
        "security": [] if source["refusals"] == "none" or source.get("open") else list(SECURITY),
        "responses": {"200": _answer(source, inference=inference)},
    }
    if parameters:
        operation["parameters"] = parameters
    if body := source.get("body"):
        examples = {name: {"value": example} for name, example in body["examples"].items()}
        operation["requestBody"] = {
            "required": True,
            "content": {"application/json": {"schema": _schema(body["schema"]), "examples": examples}},
        }
    if source["refusals"] != "none":
        operation["responses"] |= refusals.responses(_statuses(source), source["refusals"])
    return operation


def _statuses(source: Mapping[str, Any]) -> tuple[int, ...]:
    if source.get("inference"):
        return INFERENCE
    if "statuses" in source:
        return tuple(source["statuses"])
    if source.get("images", False):
        return (*READING, 402, 429)  # who would not be admitted has none fetched
    if "body" in source:
        return READING
    if source.get("open"):
        return OPEN
    return (401, 403, *([404] if "parameters" in source else []), 500, 503)


def _answer(source: Mapping[str, Any], *, inference: bool) -> dict[str, Any]:
    answer = source["answer"]
    content: dict[str, Any] = {}
    if "schema" in answer and "or" in answer:
        schemas = [_schema(answer["schema"]), _schema(answer["or"])]
        both = {answer["schema"]: {"value": answer["example"]}, answer["or"]: {"value": answer["other"]}}
        content["application/json"] = {"schema": {"oneOf": schemas}, "examples": both}
    elif "schema" in answer:
        content["application/json"] = {"schema": _schema(answer["schema"]), "example": answer["example"]}
    elif "media" in answer:
        schema = {"type": "object"} if answer["media"] == "application/json" else {"type": "string"}
        content[answer["media"]] = {"schema": schema}
    if stream := source.get("stream"):
        content["text/event-stream"] = {
            "schema": {
                "type": "string",
                "contentMediaType": "text/event-stream",
                "contentSchema": _schema(stream["schema"]),
                "description": f"Events, each a `{stream['schema']}`.",
            },
            "example": stream["example"],
        }
    names = {"X-Request-Id": "RequestId"}
    if inference:
        names |= {"X-Ignored-Params": "IgnoredParams", "Idempotent-Replayed": "Replayed"}
    headers = {name: {"$ref": f"#/components/headers/{ref}"} for name, ref in names.items()}
    return {"description": "The answer.", "headers": headers, "content": content}


def _schema(name: str) -> dict[str, str]:
    return {"$ref": f"#/components/schemas/{name}"}
