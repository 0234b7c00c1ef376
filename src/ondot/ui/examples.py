"""An example of each call, for the API's reference: a line of curl that can be pasted into a shell as it stands.

Pure. Values are the schema's own examples; where it has none, the least that it takes. Written here are only the
example of a job, since it must call something that is really there, the process's own `/livez`, and those of bodies of
which no field is required by itself, but one of several. The address comes from a request's Host header and is quoted
for the shell like everything else.
"""

import json
import shlex
from collections.abc import Mapping, Sequence
from typing import Any, Final
from urllib.parse import quote, urlencode

Schema = Mapping[str, Any]

EXAMPLE_ID: Final = "019a8f3e-5c00-7000-8000-000000000001"
IN_PATHS: Final = {"name": "default"}
"""Of a pool: the one that is always there."""


class Examples:
    def __init__(self, schemas: Schema, address: str, *, with_key: bool) -> None:
        self._schemas = schemas
        self._address = address
        self._with_key = with_key
        job = {"name": "hello", "target": {"http": {"url": f"{address}/livez", "method": "GET"}}}
        self._bodies: dict[str, Any] = {
            "JobBody": job,
            "ReplayBody": {"ids": [EXAMPLE_ID]},
            "DiscardBody": {"ids": [EXAMPLE_ID], "reason": "the orders were cancelled"},
        }

    def curl(self, method: str, path: str, parameters: Sequence[Schema], body: Schema | None) -> str:
        query = {}
        for said in parameters:
            value = self.value(said.get("schema", {}), said["name"])
            if said["in"] == "path":
                value = IN_PATHS.get(said["name"], value)
                path = path.replace(f"{{{said['name']}}}", quote(str(value), safe=""))
            elif said["in"] == "query" and said.get("required"):
                query[said["name"]] = value
        url = f"{self._address}{path}{'?' + urlencode(query) if query else ''}"
        # curl says POST by itself where there is a body.
        verb = "" if method == "get" or (method == "post" and body) else f"-X {method.upper()} "
        parts = [f"curl {verb}{shlex.quote(url)}"]
        if self._with_key:
            parts.append('-H "authorization: Bearer $ONDOT_API_KEY"')
        if body:
            written = json.dumps(self.value(body_schema(body), ""), ensure_ascii=False)
            parts.append(f"-d {shlex.quote(written)}")
        return " \\\n  ".join(parts)

    def value(self, schema: Schema, name: str) -> Any:
        """A value that a field takes: its own example, or one made of what it must have."""
        plain = resolved(self._schemas, schema)
        if (body := self._bodies.get(plain.get("title", ""))) is not None:
            return body
        for said in (schema, plain):
            if said.get("examples"):
                return said["examples"][0]
            if said.get("default") is not None:
                return said["default"]
        return plain["enum"][0] if "enum" in plain else self._least(plain, name)

    def _least(self, plain: Schema, name: str) -> Any:
        if plain.get("format") == "uuid" or name == "id" or name.endswith("_id"):
            return EXAMPLE_ID
        match plain.get("type"):
            case "object":
                return self._object(plain)
            case "array":
                return [self.value(plain.get("items", {}), name.removesuffix("s"))]
            case "integer" | "number":
                return plain.get("minimum", 1)
            case "boolean":
                return True
            case _:
                return name or "text"

    def _object(self, plain: Schema) -> dict[str, Any]:
        """What is required; where nothing is, the first field that has an example."""
        properties: Schema = plain.get("properties", {})
        told = plain.get("required") or [name for name, said in properties.items() if said.get("examples")][:1]
        return {name: self.value(properties[name], name) for name in told}


def resolved(schemas: Schema, schema: Schema) -> Schema:
    """What a reference names; of a choice with null, the other."""
    if "$ref" in schema:
        found: Schema = schemas.get(schema["$ref"].rpartition("/")[2], {})
        return found
    choices = [choice for choice in schema.get("anyOf", ()) if choice.get("type") != "null"]
    return resolved(schemas, choices[0]) if len(choices) == 1 else schema


def body_schema(said: Schema) -> Schema:
    """The JSON schema of a request's or an answer's body; empty if it has none."""
    schema: Schema = said.get("content", {}).get("application/json", {}).get("schema", {})
    return schema
