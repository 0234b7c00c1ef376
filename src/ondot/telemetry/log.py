"""Logs: events are names with fields (`execution.retrying`), ids always, payloads and secrets never."""

import logging
import sys
from typing import Any, Literal

import structlog


def configure_logs(log_format: Literal["auto", "json", "console"], level: str, *, role: str) -> None:
    """Once, at the start of a process: lines for people on a terminal, JSON elsewhere."""
    as_json = log_format == "json" or (log_format == "auto" and not sys.stderr.isatty())
    shared: list[Any] = [
        structlog.contextvars.merge_contextvars,
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
    structlog.contextvars.bind_contextvars(role=role)


def get_logger() -> Any:
    return structlog.get_logger()
