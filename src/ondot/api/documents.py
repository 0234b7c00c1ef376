"""The parts of the OpenAPI document that the routes cannot say by themselves: bodies are read by `wire`, which knows
short forms and gathers every fault, so FastAPI only describes them."""

from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel

from ondot.api.answers import Problem
from ondot.api.job_body import JobBody, PreviewBody, RunBody
from ondot.api.problems import CONTENT_TYPE

_REF = "#/components/schemas/"


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


def describe(app: FastAPI) -> None:
    """Make `/openapi.json` tell the bodies and the problems too."""

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
            for model in (JobBody, PreviewBody, RunBody, Problem):
                schema = model.model_json_schema(ref_template=_REF + "{model}")
                schemas.update(schema.pop("$defs", {}))
                schemas[model.__name__] = schema
            for path in document["paths"].values():
                for method, operation in path.items():
                    _tell_problems(method, operation)
            schemas.pop("HTTPValidationError", None)
            schemas.pop("ValidationError", None)
            app.openapi_schema = document
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign]


def _tell_problems(method: str, operation: dict[str, Any]) -> None:
    """The refusals that any operation of its kind may meet."""
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
