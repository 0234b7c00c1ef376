"""`/docs`: the API's reference, shaped for its page from the OpenAPI document (O5).

Pure: the document in, chapters of operations out, each with its parameters, the fields of its body, its answers and an
example.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from http import HTTPStatus
from typing import Final

from ondot.ui.examples import Examples, Schema, body_schema, resolve

METHODS: Final = frozenset({"get", "post", "put", "patch", "delete"})
NO_LIMIT: Final = 2**31 - 1
"""A technical limit of PostgreSQL, which the page does not show."""

BODY_DEPTH: Final = 3
ANSWER_DEPTH: Final = 1
FASTAPI_WORDS: Final = {"Validation Error": "not valid"}
"""FastAPI's description of an answer that the route does not describe, and ours."""


@dataclass(frozen=True, slots=True)
class Parameter:
    name: str
    where: str
    type: str
    is_required: bool
    default: str | None
    description: str


@dataclass(frozen=True, slots=True)
class Field:
    """A field of a body, by its dotted name; `depth` counts the dots."""

    name: str
    depth: int
    type: str
    is_required: bool
    default: str | None
    example: str | None
    description: str


@dataclass(frozen=True, slots=True)
class Body:
    """`same_as`: an operation with the same body, or whose bodies this one lists in the field `list_in`."""

    is_required: bool
    description: str
    fields: tuple[Field, ...]
    short_forms: tuple[Field, ...]
    same_as: "Anchor | None" = None
    list_in: str | None = None


@dataclass(frozen=True, slots=True)
class Anchor:
    id: str
    method: str
    path: str


@dataclass(frozen=True, slots=True)
class Answer:
    status: str
    description: str
    fields: tuple[Field, ...]


@dataclass(frozen=True, slots=True)
class Operation:
    anchor: Anchor
    title: str
    description: str
    parameters: tuple[Parameter, ...]
    body: Body | None
    answers: tuple[Answer, ...]
    curl: str
    names_an_id: bool


@dataclass(frozen=True, slots=True)
class Chapter:
    id: str
    title: str
    operations: tuple[Operation, ...]


@dataclass(frozen=True, slots=True)
class Reference:
    title: str
    version: str
    description: str
    chapters: tuple[Chapter, ...]


def read_reference(document: Schema, address: str, *, with_key: bool) -> Reference:
    """Everything on the page. Examples call `address`, and send a key if `with_key`."""
    return _Reader(document, address, with_key).read()


class _Reader:
    def __init__(self, document: Schema, address: str, with_key: bool) -> None:
        self._document = document
        self._schemas: Schema = document.get("components", {}).get("schemas", {})
        self._examples = Examples(self._schemas, address, with_key=with_key)
        self._anchors: dict[str, Anchor] = {}

    def read(self) -> Reference:
        chapters: dict[str, list[Operation]] = {}
        for path, methods in self._document["paths"].items():
            for method in methods:
                if method in METHODS:
                    # The last tag is the narrowest: a route adds its own to its router's.
                    tag = methods[method].get("tags", ["other"])[-1]
                    chapters.setdefault(tag, []).append(self._operation(method, path, methods[method]))
        info = self._document["info"]
        return Reference(
            title=info["title"],
            version=info["version"],
            description=info.get("description", ""),
            chapters=tuple(
                Chapter(f"tag-{tag}", tag.replace("-", " ").capitalize(), tuple(operations))
                for tag, operations in chapters.items()
            ),
        )

    def _operation(self, method: str, path: str, operation: Schema) -> Operation:
        words = [part.strip("{}") for part in path.split("/") if part]
        anchor = Anchor("-".join([method, *words]), method.upper(), path)
        parameters: list[Schema] = list(operation.get("parameters", ()))
        return Operation(
            anchor=anchor,
            title=operation.get("summary", path).capitalize(),
            description=operation.get("description", ""),
            parameters=tuple(self._parameter(parameter) for parameter in parameters),
            body=self._body(operation["requestBody"], anchor) if "requestBody" in operation else None,
            answers=tuple(self._answer(status, answer) for status, answer in sorted(operation["responses"].items())),
            curl=self._examples.curl(method, path, parameters, operation.get("requestBody")),
            names_an_id="{id}" in path,
        )

    def _parameter(self, parameter: Schema) -> Parameter:
        schema = parameter.get("schema", {})
        return Parameter(
            name=parameter["name"],
            where=parameter["in"],
            type=self._type(schema),
            is_required=parameter.get("required", False),
            default=_to_json(schema.get("default")),
            description=parameter.get("description") or schema.get("description", ""),
        )

    def _body(self, request: Schema, anchor: Anchor) -> Body:
        schema = body_schema(request)
        is_required = request.get("required", False)
        name, list_in = _find_name(schema)
        if name in self._anchors:
            rows = () if list_in is None else tuple(self._fields(schema, 0))
            return Body(is_required, "", rows, (), self._anchors[name], list_in)
        if name and not list_in:
            self._anchors[name] = anchor
        rows = tuple(self._fields(schema, BODY_DEPTH))
        return Body(
            is_required,
            self._resolve(schema).get("description", ""),
            tuple(row for row in rows if not _is_short(row)),
            tuple(row for row in rows if _is_short(row)),
        )

    def _answer(self, status: str, answer: Schema) -> Answer:
        description: str = answer.get("description", "")
        if description == "Successful Response":
            description = HTTPStatus(int(status)).phrase if status.isdecimal() else ""
        # All problems have one form, which the top of the page describes.
        fields = tuple(self._fields(body_schema(answer), ANSWER_DEPTH)) if status < "400" else ()
        return Answer(status, FASTAPI_WORDS.get(description, description), fields)

    def _fields(self, schema: Schema, depth: int, prefix: str = "", level: int = 0) -> Iterator[Field]:
        """The fields of an object, each followed by its own fields, down to `depth` levels."""
        found = self._resolve(schema)
        required = found.get("required", ())
        for name, field in found.get("properties", {}).items():
            plain = self._resolve(field)
            examples = field.get("examples") or plain.get("examples")
            yield Field(
                name=prefix + name,
                depth=level,
                type=self._type(field),
                is_required=name in required,
                default=_to_json(field.get("default")),
                example=_to_json(examples[0]) if examples else None,
                description=field.get("description") or plain.get("description", ""),
            )
            if level < depth:
                inner, dots = (plain["items"], "[].") if "items" in plain else (plain, ".")
                yield from self._fields(inner, depth, f"{prefix}{name}{dots}", level + 1)

    def _resolve(self, schema: Schema) -> Schema:
        return resolve(self._schemas, schema)

    def _type(self, schema: Schema) -> str:
        plain = self._resolve(schema)
        if "enum" in plain:
            return " | ".join(str(choice) for choice in plain["enum"])
        if "anyOf" in plain:
            kinds = [self._type(choice) for choice in plain["anyOf"] if choice.get("type") != "null"]
            return " or ".join(dict.fromkeys(kinds))
        if plain.get("type") == "array":
            return f"list of {self._type(plain['items'])}" if plain.get("items") else "list"
        kind = {"date-time": "instant", "uuid": "uuid", "uri": "address"}.get(plain.get("format", ""))
        kind = kind or {None: "any", "null": "null"}.get(plain.get("type"), plain.get("type", "any"))
        low, high = plain.get("minimum"), plain.get("maximum")
        if low is not None and high is not None:
            return f"{kind}, {low:,} to {high:,}" if high < NO_LIMIT else f"{kind}, from {low:,}"
        return str(kind)


def _find_name(schema: Schema) -> tuple[str, str | None]:
    """The name of a body's schema; if its only field is a list, the name of the items' schema, and the field."""
    properties: Schema = schema.get("properties", {})
    if len(properties) == 1:
        ((field, schema_of_field),) = properties.items()
        return schema_of_field.get("items", {}).get("$ref", "").rpartition("/")[2], field
    return schema.get("$ref", "").rpartition("/")[2], None


def _is_short(field: Field) -> bool:
    return field.type == "any" and field.depth == 0 and field.description.startswith("Short for ")


def _to_json(value: object) -> str | None:
    """As in a body; None for empty values, which the page does not show."""
    if value is None or value in ([], {}):
        return None
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return json.dumps(value, ensure_ascii=False)
