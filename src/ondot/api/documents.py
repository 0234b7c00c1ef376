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


def creates() -> dict[int | str, dict[str, Any]]:
    """The refusals that a create may meet."""
    return {
        status: {"description": what} for status, what in ((409, "a key is being used by others"), (413, "too large"))
    }


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
                for operation in path.values():
                    _tell_problems(operation)
            schemas.pop("HTTPValidationError", None)
            schemas.pop("ValidationError", None)
            app.openapi_schema = document
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign]


def _tell_problems(operation: dict[str, Any]) -> None:
    responses = operation["responses"]
    problem = {CONTENT_TYPE: {"schema": {"$ref": _REF + "Problem"}}}
    also = {"400": "not JSON", "401": "no API key", "403": "refused", "404": "not found", "422": "not valid"}
    if "requestBody" not in operation:
        also.pop("400")
    if "/{id}" not in str(operation.get("parameters", "")) and not any(
        parameter.get("in") == "path" for parameter in operation.get("parameters", [])
    ):
        also.pop("404")
    for status, what in {**also, "409": "the state does not allow it", "503": "the database is away"}.items():
        responses.setdefault(status, {"description": what})
    for status, response in responses.items():
        if status >= "400":
            response["content"] = problem
