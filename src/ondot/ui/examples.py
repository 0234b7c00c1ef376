"""An example of each call, for the API's reference: a curl command that can be pasted into a shell.

Pure. Values are the examples of the schema; without one, the smallest valid value. Only a few bodies are written here:
the job, because it must call an address that exists (the process's own `/livez`), and bodies that require one of
several fields. The base URL comes from a request's Host header and is quoted for the shell like everything else.
"""

import json
import shlex
from collections.abc import Mapping, Sequence
from typing import Any, Final
from urllib.parse import quote, urlencode

Schema = Mapping[str, Any]

JSON: Final = "application/json"
EXAMPLE_ID: Final = "019a8f3e-5c00-7000-8000-000000000001"


class Examples:
    def __init__(self, schemas: Schema, address: str, *, with_key: bool) -> None:
        self._schemas = schemas
        self._address = address
        self._with_key = with_key
        job = {"name": "hello", "target": {"http": {"url": f"{address}/livez", "method": "GET"}}}
        self._bodies: dict[str, Any] = {
            "JobBody": job,
            "ChannelBody": {"name": "ops", "email": {"to": ["ops@example.com"]}},
            "ChannelPatchBody": {"email": {"to": ["ops@example.com", "night@example.com"]}},
            "ConnectionBody": {"kind": "kafka", "servers": "kafka-1.example.com:9092"},
            "SinkBody": {"types": ["ondot.execution.failed"], "webhook": {"url": "https://example.com/events"}},
            "PingBody": {"name": "backup", "period": "1d", "grace": "1h"},
            "ReplayBody": {"ids": [EXAMPLE_ID]},
            "DiscardBody": {"ids": [EXAMPLE_ID], "reason": "the orders were cancelled"},
            "BulkBody": {"of": "jobs", "action": "pause", "ids": [EXAMPLE_ID], "reason": "a release"},
        }

    def curl(self, method: str, path: str, parameters: Sequence[Schema], body: Schema | None) -> str:
        query = {}
        for parameter in parameters:
            name = parameter["name"]
            value = self.value(parameter.get("schema", {}), name)
            if parameter["in"] == "path":
                path = path.replace(f"{{{name}}}", quote(str(value), safe=""))
            elif parameter["in"] == "query" and parameter.get("required"):
                query[name] = value
        url = f"{self._address}{path}{'?' + urlencode(query) if query else ''}"
        # With a body, curl sends POST by default.
        verb = "" if method == "get" or (method == "post" and body) else f"-X {method.upper()} "
        parts = [f"curl {verb}{shlex.quote(url)}"]
        if self._with_key:
            parts.append('-H "authorization: Bearer $ONDOT_API_KEY"')
        if body:
            if (kind := content_type(body)) != JSON:
                parts.append(f"-H {shlex.quote(f'content-type: {kind}')}")
            written = json.dumps(self.value(body_schema(body), ""), ensure_ascii=False)
            parts.append(f"-d {shlex.quote(written)}")
        return " \\\n  ".join(parts)

    def value(self, schema: Schema, name: str) -> Any:
        """A valid value: the example of the schema, or one built from its constraints."""
        plain = resolve(self._schemas, schema)
        if (body := self._bodies.get(plain.get("title", ""))) is not None:
            return body
        for source in (schema, plain):
            if source.get("examples"):
                return source["examples"][0]
            if source.get("default") is not None:
                return source["default"]
        return plain["enum"][0] if "enum" in plain else self._smallest(plain, name)

    def _smallest(self, plain: Schema, name: str) -> Any:
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
        """The required fields; without any, the first field that has an example."""
        properties: Schema = plain.get("properties", {})
        names = plain.get("required") or [name for name, field in properties.items() if field.get("examples")][:1]
        return {name: self.value(properties[name], name) for name in names}


def resolve(schemas: Schema, schema: Schema) -> Schema:
    """The schema that a reference names; the other schema of a choice with null."""
    if "$ref" in schema:
        found: Schema = schemas.get(schema["$ref"].rpartition("/")[2], {})
        return found
    choices = [choice for choice in schema.get("anyOf", ()) if choice.get("type") != "null"]
    return resolve(schemas, choices[0]) if len(choices) == 1 else schema


def body_schema(message: Schema) -> Schema:
    """The JSON schema of a request's or a response's body; empty without a body."""
    schema: Schema = message.get("content", {}).get(content_type(message), {}).get("schema", {})
    return schema


def content_type(message: Schema) -> str:
    """JSON, or the first that the body may have."""
    content = message.get("content", {})
    return JSON if JSON in content or not content else next(iter(content))
