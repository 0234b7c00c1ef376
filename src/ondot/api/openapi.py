"""The parts of the OpenAPI document that FastAPI cannot derive from the routes: bodies and problems.

`document` reads the bodies, because it knows short forms and reports every fault; FastAPI only describes them.
"""

from collections.abc import Iterable
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel

from ondot.api.problems import CONTENT_TYPE
from ondot.api.responses import Problem
from ondot.document.body import JobBody

_REF = "#/components/schemas/"
_PATCH = "Patch"


def takes(model: type[BaseModel], *, many: str | None = None, required: bool = True) -> dict[str, Any]:
    """The request body of a route, for its `openapi_extra`."""
    schema: dict[str, Any] = {"$ref": _REF + model.__name__}
    if many:
        schema = {
            "type": "object",
            "required": [many],
            "additionalProperties": False,
            "properties": {many: {"type": "array", "items": schema, "minItems": 1, "maxItems": 10_000}},
        }
    return {"requestBody": {"required": required, "content": {"application/json": {"schema": schema}}}}


def takes_patch() -> dict[str, Any]:
    """A part of a job, as a merge patch."""
    schema = {"$ref": f"{_REF}{JobBody.__name__}{_PATCH}"}
    content = {media_type: {"schema": schema} for media_type in ("application/json", "application/merge-patch+json")}
    return {"requestBody": {"required": True, "content": content}}


def describe(app: FastAPI, bodies: Iterable[type[BaseModel]]) -> None:
    """Add these bodies and the problems to `/openapi.json`."""

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            document = get_openapi(
                title=app.title,
                version=app.version,
                description=app.description,
                routes=app.routes,
                tags=app.openapi_tags,
            )
            schemas = document.setdefault("components", {}).setdefault("schemas", {})
            models: list[type[BaseModel]] = [*bodies, Problem]
            for model in models:
                schema = model.model_json_schema(ref_template=_REF + "{model}")
                schemas.update(schema.pop("$defs", {}))
                schemas[model.__name__] = schema
            schemas.update(_patches(schemas, JobBody.__name__))
            for path in document["paths"].values():
                for method, operation in path.items():
                    _add_problems(method, operation)
            schemas.pop("HTTPValidationError", None)
            schemas.pop("ValidationError", None)
            app.openapi_schema = document
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign]


def _patches(schemas: dict[str, Any], name: str) -> dict[str, Any]:
    """The schema of a patch of a body, and of the objects in it: nothing is required, null resets."""
    found: dict[str, Any] = {}

    def patch_of(name: str) -> dict[str, Any]:
        if name + _PATCH not in found:
            schema = {key: value for key, value in schemas[name].items() if key != "required"}
            found[name + _PATCH] = schema
            schema["properties"] = {
                field: {"anyOf": [part(described), {"type": "null"}], **_words_of(described)}
                for field, described in schemas[name].get("properties", {}).items()
            }
        return {"$ref": f"{_REF}{name}{_PATCH}"}

    def part(schema: dict[str, Any]) -> dict[str, Any]:
        # Objects are merged; lists are replaced as a whole.
        if "$ref" in schema:
            return patch_of(schema["$ref"].removeprefix(_REF))
        return {**schema, "anyOf": [part(one) for one in schema["anyOf"]]} if "anyOf" in schema else schema

    patch_of(name)
    return found


def _words_of(schema: dict[str, Any]) -> dict[str, Any]:
    return {"description": schema["description"]} if "description" in schema else {}


def _add_problems(method: str, operation: dict[str, Any]) -> None:
    """Add the errors that any operation of its kind may return."""
    also = {"401": "no API key", "403": "refused", "422": "not valid", "503": "the database is away"}
    if "requestBody" in operation:
        also |= {"400": "not JSON", "413": "too large"}
    if any(parameter["in"] == "path" for parameter in operation.get("parameters", [])):
        also["404"] = "not found"
    if method != "get":
        also["409"] = "the state does not allow it"
    if any(parameter["name"] == "If-Match" for parameter in operation.get("parameters", [])):
        also["412"] = "it was changed by someone else"
    for status, what in also.items():
        operation["responses"].setdefault(status, {"description": what})
    for status, response in operation["responses"].items():
        if status >= "400":
            response["content"] = {CONTENT_TYPE: {"schema": {"$ref": _REF + "Problem"}}}
