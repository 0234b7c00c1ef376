"""The API's reference, shaped for its page from the OpenAPI document (O5): what `/docs` shows.

Pure: it takes the document and gives chapters of operations, each with its parameters, the fields of its body, its
answers and an"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from http import HTTPStatus
from typing import Final

from ondot.ui.examples import Examples, Schema, body_schema, resolved

METHODS: Final = frozenset({"get", "post", "put", "patch", "delete"})
NO_LIMIT: Final = 2**31 - 1
"""A limit of PostgreSQL's that nobody needs to know."""

BODY_DEPTH: Final = 3
ANSWER_DEPTH: Final = 1
FASTAPI_WORDS: Final = {"Validation Error": "not valid"}
"""What FastAPI says of an answer when the route says nothing."""


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
    """A field of a body, by its dotted name; `depth` is how many dots that has."""

    name: str
    depth: int
    type: str
    is_required: bool
    default: str | None
    example: str | None
    description: str


@dataclass(frozen=True, slots=True)
class Body:
    """`same_as`: the operation whose body it is too, or is a list of (`list_in` names the field)."""

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
    """All that the page shows; examples call `address`, and send a key where one is asked for."""
    return _Reader(document, address, with_key).read()


class _Reader:
    def __init__(self, document: Schema, address: str, with_key: bool) -> None:
        self._document = document
        self._schemas: Schema = document.get("components", {}).get("schemas", {})
        self._examples = Examples(self._schemas, address, with_key=with_key)
        self._shown: dict[str, Anchor] = {}

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

    def _operation(self, method: str, path: str, said: Schema) -> Operation:
        words = [part.strip("{}") for part in path.split("/") if part]
        anchor = Anchor("-".join([method, *words]), method.upper(), path)
        parameters: list[Schema] = list(said.get("parameters", ()))
        return Operation(
            anchor=anchor,
            title=said.get("summary", path).capitalize(),
            description=said.get("description", ""),
            parameters=tuple(self._parameter(parameter) for parameter in parameters),
            body=self._body(said["requestBody"], anchor) if "requestBody" in said else None,
            answers=tuple(self._answer(status, answer) for status, answer in sorted(said["responses"].items())),
            curl=self._examples.curl(method, path, parameters, said.get("requestBody")),
            names_an_id="{id}" in path,
        )

    def _parameter(self, said: Schema) -> Parameter:
        schema = said.get("schema", {})
        return Parameter(
            name=said["name"],
            where=said["in"],
            type=self._type(schema),
            is_required=said.get("required", False),
            default=_told(schema.get("default")),
            description=said.get("description") or schema.get("description", ""),
        )

    def _body(self, said: Schema, anchor: Anchor) -> Body:
        schema = body_schema(said)
        is_required = said.get("required", False)
        name, list_in = _named(schema)
        if name in self._shown:
            rows = () if list_in is None else tuple(self._fields(schema, 0))
            return Body(is_required, "", rows, (), self._shown[name], list_in)
        if name and not list_in:
            self._shown[name] = anchor
        rows = tuple(self._fields(schema, BODY_DEPTH))
        return Body(
            is_required,
            self._resolved(schema).get("description", ""),
            tuple(row for row in rows if not _is_short(row)),
            tuple(row for row in rows if _is_short(row)),
        )

    def _answer(self, status: str, said: Schema) -> Answer:
        description: str = said.get("description", "")
        if description == "Successful Response":
            description = HTTPStatus(int(status)).phrase if status.isdecimal() else ""
        # Problems are all of one form, told once at the top.
        fields = tuple(self._fields(body_schema(said), ANSWER_DEPTH)) if status < "400" else ()
        return Answer(status, FASTAPI_WORDS.get(description, description), fields)

    def _fields(self, schema: Schema, depth: int, prefix: str = "", level: int = 0) -> Iterator[Field]:
        """The fields of an object, those of objects in it after it, `depth` levels down."""
        found = self._resolved(schema)
        required = found.get("required", ())
        for name, said in found.get("properties", {}).items():
            plain = self._resolved(said)
            examples = said.get("examples") or plain.get("examples")
            yield Field(
                name=prefix + name,
                depth=level,
                type=self._type(said),
                is_required=name in required,
                default=_told(said.get("default")),
                example=_told(examples[0]) if examples else None,
                description=said.get("description") or plain.get("description", ""),
            )
            if level < depth:
                inner, dots = (plain["items"], "[].") if "items" in plain else (plain, ".")
                yield from self._fields(inner, depth, f"{prefix}{name}{dots}", level + 1)

    def _resolved(self, schema: Schema) -> Schema:
        return resolved(self._schemas, schema)

    def _type(self, schema: Schema) -> str:
        plain = self._resolved(schema)
        if "enum" in plain:
            return " | ".join(str(choice) for choice in plain["enum"])
        if "anyOf" in plain:
            kinds = [self._type(choice) for choice in plain["anyOf"] if choice.get("type") != "null"]
            return " or ".join(dict.fromkeys(kinds))
        if plain.get("type") == "array":
            return f"list of {self._type(plain['items'])}" if plain.get("items") else "list"
        kind = {"date-time": "instant", "uuid": "uuid", "uri": "address"}.get(plain.get("format", ""))
        kind = kind or {None: "any", "null": "null"}.get(plain.get("type"), plain.get("type", "any"))
        least, most = plain.get("minimum"), plain.get("maximum")
        if least is not None and most is not None:
            return f"{kind}, {least:,} to {most:,}" if most < NO_LIMIT else f"{kind}, from {least:,}"
        return str(kind)


def _named(schema: Schema) -> tuple[str, str | None]:
    """The name of a body's schema; for a list of such in its only field, that field too."""
    properties: Schema = schema.get("properties", {})
    if len(properties) == 1:
        ((field, said),) = properties.items()
        return said.get("items", {}).get("$ref", "").rpartition("/")[2], field
    return schema.get("$ref", "").rpartition("/")[2], None


def _is_short(field: Field) -> bool:
    return field.type == "any" and field.depth == 0 and field.description.startswith("Short for ")


def _told(value: object) -> str | None:
    """As it would be written in a body; None and what is empty go without saying."""
    if value is None or value in ([], {}):
        return None
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return json.dumps(value, ensure_ascii=False)
