"""Logs: events are names with fields (`execution.retrying`), ids always, payloads and secrets never."""

import logging
import sys
from typing import Any, Literal

import structlog

from ondot.telemetry.trace_context import add_trace


def configure_logs(log_format: Literal["auto", "json", "console"], level: str, *, role: str) -> None:
    """Call it once, at the start of a process: text on a terminal, JSON elsewhere."""
    as_json = log_format == "json" or (log_format == "auto" and not sys.stderr.isatty())

    def add_role(_logger: object, _method: str, event: structlog.typing.EventDict) -> structlog.typing.EventDict:
        """For every thread: a context variable would be set in the main thread only."""
        event["role"] = role
        return event

    shared: list[Any] = [
        structlog.contextvars.merge_contextvars,
        add_role,
        add_trace,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.format_exc_info if as_json else structlog.processors.ExceptionPrettyPrinter(sys.stderr),
    ]
    renderer: Any = (
        structlog.processors.JSONRenderer() if as_json else structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty())
    )
    structlog.configure(
        processors=[*shared, renderer],
        wrapper_class=structlog.make_filtering_bound_logger(getattr(logging, level.upper())),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=True,
    )


def get_logger() -> Any:
    return structlog.get_logger()
