"""What a worker registers of each function of its app (D1): so that jobs made over HTTP, the command line, SQL and the
page get its options and have their arguments checked.

Options of the function's own recurring job (`overlap`, `expect` …) are not among them: they are about its schedule.
"""

import inspect
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

import msgspec

from ondot.model.function import MAX_DESCRIPTION, DeclaredFunction
from ondot.model.ids import EPOCH
from ondot.model.job import encode_spec
from ondot.model.json_schema import find_fault
from ondot.model.key_templates import names_in, parts_of
from ondot.model.text import visible
from ondot.sdk.options import ENQUEUED_ONLY, KEYS, RECURRING_ONLY, templates, with_keys_filled, without
from ondot.telemetry.log import get_logger

if TYPE_CHECKING:
    from ondot.sdk.app import Ondot
    from ondot.sdk.handler import Handler

_IN_SPEC: Final = {"concurrency_key": "key", "order_key": "order_key"}
_NOT_OPTIONS: Final = ("name", "target", "payload", "schedule")

log = get_logger()


def declare_functions(app: "Ondot") -> list[DeclaredFunction]:
    return [_declare(handler) for handler in app.handlers.values()]


def _declare(handler: "Handler[..., Any]") -> DeclaredFunction:
    options = without(handler.fields, RECURRING_ONLY)
    named = {name for _, template in templates(options) for name in names_in(template)}
    return DeclaredFunction(
        name=handler.name,
        description=_describe(handler.function),
        options=options,
        argument_defaults={name: value for name, value in handler.types.encoded_defaults().items() if name in named},
        schema=_schema_of(handler),
        enqueued=_as_spec(handler.name, options),
    )


def _describe(function: object) -> str | None:
    """The first line of its docstring. A class's docstring is not that of its instances."""
    text = inspect.getdoc(function) if inspect.isroutine(function) else getattr(function, "__doc__", None)
    line = next(iter((text or "").strip().splitlines()), "").strip()
    return visible(line)[:MAX_DESCRIPTION] or None


def _schema_of(handler: "Handler[..., Any]") -> dict[str, Any] | None:
    try:
        schema = handler.types.schema()
        why = find_fault(schema)
    except Exception as error:  # noqa: BLE001 - of the user's types
        why = f"its types have no schema: {type(error).__name__}: {error}"
    if why is not None:
        then = "arguments of its jobs are checked by the worker alone"
        log.warning("function.schema_not_kept", function=handler.name, why=why, then=then)
        return None
    return schema


def _as_spec(name: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """The options as fields of a spec. A key that names arguments is a list of its parts, which SQL fills in; `unique`,
    `debounce` and `throttle` are not for jobs that are enqueued in a transaction."""
    from ondot.document.parse import job_spec  # here: a program without a worker need not load pydantic

    options = without(options, ENQUEUED_ONLY)
    body = {"name": name, "target": {"function": name}, **with_keys_filled(options, lambda *_: "key")}
    spec = msgspec.json.decode(encode_spec(job_spec(body, EPOCH, may_be_over=True)))
    for option in KEYS:
        if option in options:
            parts = parts_of(options[option])
            is_plain = all(isinstance(part, str) for part in parts)
            spec["limits"][_IN_SPEC[option]] = "".join(map(str, parts)) if is_plain else parts
    return without(spec, _NOT_OPTIONS)
