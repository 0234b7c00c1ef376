"""Names in brokers, in requests (E3): topics, subjects, queues and streams, and the connections that lead to them."""

import re
from typing import Annotated, Final

from pydantic import AfterValidator, Field

from ondot.document.rules import POOL_NAME

LONGEST_NAME: Final = 255
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f]")
_TOPIC: Final = re.compile(r"(?!\.{1,2}$)[A-Za-z0-9._-]{1,249}")
_SUBJECT: Final = re.compile(r"[^\s.*>\x00-\x1f\x7f]+(\.[^\s.*>\x00-\x1f\x7f]+)*")
_CONNECTION: Final = re.compile(POOL_NAME)


def _plain(name: str) -> str:
    if _CONTROL.search(name):
        raise ValueError("text without control characters")
    return name


def _short(name: str) -> str:
    """AMQP's limit counts bytes."""
    if len(_plain(name).encode()) > LONGEST_NAME:
        raise ValueError(f"text of at most {LONGEST_NAME} bytes")
    return name


def _topic(name: str) -> str:
    if not _TOPIC.fullmatch(name):
        raise ValueError("a topic: 1 to 249 letters, digits, . _ and -")
    return name


def _subject(name: str) -> str:
    if len(name) > LONGEST_NAME or not _SUBJECT.fullmatch(name):
        raise ValueError('a subject without blanks and wildcards, for example "orders.paid"')
    return name


def _connection(name: str) -> str:
    if not _CONNECTION.fullmatch(name):
        raise ValueError("the name of a connection: at most 63 lower-case letters, digits, _ . and -")
    return name


RedisName = Annotated[str, Field(min_length=1, max_length=512), AfterValidator(_plain)]
Short = Annotated[str, AfterValidator(_short)]
ConnectionName = Annotated[str, AfterValidator(_connection)]
Topic = Annotated[str, AfterValidator(_topic)]
Subject = Annotated[str, AfterValidator(_subject)]
