"""The kinds of value in a body: durations, instants, names, addresses, headers, argv, errors.

Each is a pydantic type whose ValueError says what it expects ("must be …"); `errors` makes the sentence around it. A
job cannot set the headers that ondot sets itself: a forged `webhook-id` or a second `content-length` would break the
receiver's trust in them.
"""

import re
from datetime import UTC, datetime
from difflib import get_close_matches
from functools import lru_cache
from typing import Annotated, Any, Final
from urllib.parse import urlsplit
from uuid import UUID

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, WithJsonSchema
from pydantic_core import PydanticCustomError

from ondot.document.rules import MAX_LABEL_NAME, MAX_LABEL_VALUE, MAX_LABELS, POOL_NAME
from ondot.model.duration import EXPECTED, seconds
from ondot.model.headers import why_reserved
from ondot.model.secret import A_REFERENCE, MASK, REFERENCE, Hidden, read_reference
from ondot.model.signature import parse_secret
from ondot.model.text import MAX_NAME, hidden_in, is_function_name
from ondot.model.workflow.dependencies import MAX_PARENTS

LARGEST_INTEGER: Final = 2**31 - 1
INSTANT: Final = 'an instant in RFC 3339, for example "2030-01-31T09:00:00Z"'
METHODS: Final = ("GET", "POST", "PUT", "PATCH", "DELETE", "HEAD")

_BLANK_OR_CONTROL: Final = re.compile(r"[\s\x00-\x20\x7f-\x9f\\]")
_NOT_IN_HEADERS: Final = re.compile("[\x00-\x08\x0a-\x1f\x7f]")
_TOKEN: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_POOL: Final = re.compile(POOL_NAME)
_RFC_3339: Final = re.compile(r"(\d{4})-\d\d-\d\d[Tt ]\d\d:\d\d:\d\d(?:\.\d{1,9})?([Zz]|[+-]\d\d:\d\d)?", re.ASCII)
_FIRST_YEAR, _LAST_YEAR = 1970, 2200

ERROR_NAMES: Final = (
    'an HTTP status, an error code or the type of an exception, for example 503, "5xx", "timeout" or "ValueError"'
)
ERROR_CODES: Final = frozenset(
    {
        "timeout",
        "http_status",
        "dns",
        "tls",
        "connect",
        "disconnected",
        "bad_response",
        "bad_request",
        "private_address",
        "bad_credentials",
        "publish_refused",
        "publish_unknown",
        "too_large",
        "unknown_topic",
        "unroutable",
        "no_connection",
        "exception",
        "gave_up",
        "retry_asked",
        "unknown_function",
        "bad-arguments",
        "result_not_json",
        "result_too_large",
        "shell_not_allowed",
        "exit_code",
        "grpc_status",
        "grpc_types",
        "signal",
        "not_started",
        "not_found",
        "bad_command",
        "worker_lost",
        "worker_stopped",
        "child_lost",
        "no_child",
        "not_begun",
        "lease_unheard",
        "cancelled",
        "expired",
        "spec_gone",
        "secret_missing",
        "secret_not_allowed",
        "secret_unreadable",
        "unstorable",
        "internal",
    }
)
"""The error codes of attempts, to distinguish a misspelt one from the type of an exception, which may be any name."""

# `f.<locals>.Error` is how Python names the type of an exception that a function defines.
_ERROR_NAME: Final = re.compile(r"[3-5][xX]{2}|\d{3}|[^\W\d][\w.<>]{0,199}")
_STATUS_CLASS: Final = re.compile("[3-5][xX]{2}")


class Body(BaseModel):
    """An object of a request: no unknown fields, and no conversion between types."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


def sentence(message: str) -> PydanticCustomError:
    """An error whose message is a whole sentence."""
    return PydanticCustomError("sentence", "{message}", {"message": message})


def _instant_or_local(written: object) -> datetime:
    found = _RFC_3339.fullmatch(written) if isinstance(written, str) else None
    if found is None:
        raise ValueError(INSTANT)
    assert isinstance(written, str)
    # One year of margin for the offset; datetime itself overflows in the years 1 and 9999.
    if not _FIRST_YEAR - 1 <= int(found[1]) <= _LAST_YEAR + 1:
        raise ValueError(f"an instant in the years {_FIRST_YEAR} to {_LAST_YEAR}")
    try:
        at = datetime.fromisoformat(written.upper())
    except ValueError:
        raise ValueError(f"a date and time that exist, {INSTANT.removeprefix('an instant ')}") from None
    if at.tzinfo is not None:
        at = at.astimezone(UTC)
    if not _FIRST_YEAR <= at.year <= _LAST_YEAR:
        raise ValueError(f"an instant in the years {_FIRST_YEAR} to {_LAST_YEAR}")
    return at


def _instant(written: object) -> datetime:
    at = _instant_or_local(written)
    if at.tzinfo is None:
        raise ValueError(f"{INSTANT}, with its offset from UTC at the end (Z or +01:00)")
    return at


def instant_or_none(written: object) -> datetime | None:
    """An instant with its offset; None if the value is not one."""
    try:
        return _instant(written)
    except ValueError:
        return None


def _job_id(written: object) -> UUID:
    try:
        return UUID(written) if isinstance(written, str) else UUID("")
    except ValueError:
        raise ValueError('the id of a job, for example "019a8453-5d2e-7c11-a0b3-6f1e2d3c4b5a"') from None


def _plain_text(text: str) -> str:
    check_visible(text)
    if not text.strip():
        raise ValueError("text that is not blank")
    return text


def check_visible(text: str) -> str:
    """The text, if it is one line of visible characters."""
    if hidden := hidden_in(text):
        raise ValueError(f"text without control characters, line breaks and invisible characters (it has {hidden})")
    return text


def _pool(name: str) -> str:
    if not _POOL.fullmatch(name):
        raise ValueError("a pool's name: at most 63 lower-case letters, digits, _ . and -, a letter or digit first")
    return name


def _function(name: str) -> str:
    if not is_function_name(name):
        raise ValueError(
            "the name under which a worker registered the function, without blanks, at most 200 characters"
        )
    return name


@lru_cache(maxsize=4096)
def check_url(url: str) -> str:
    if len(url) > 2048:
        raise ValueError("an address of at most 2,048 characters")
    if _BLANK_OR_CONTROL.search(url):
        raise ValueError("an address without blanks, control characters and backslashes; encode them (%20)")
    expected = "an address that begins with http:// or https:// and has a host"
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError:
        raise ValueError(expected) from None
    if parts.scheme not in {"http", "https"} or not host:
        raise ValueError(expected)
    if "@" in parts.netloc:
        # Not repeated in the message: the password would end up in logs and on screens.
        raise sentence("`url` must not contain a user name or password; send them in a header such as authorization.")
    return url


def _method(method: str) -> str:
    if method.upper() not in METHODS:
        raise ValueError(f"one of {', '.join(METHODS)}")
    return method.upper()


def _header_name(name: str) -> str:
    if len(name) > 256 or not _TOKEN.fullmatch(name):
        raise sentence(f"{name[:60]!r} is not a header name: use letters, digits and -, for example x-team.")
    if (why := why_reserved(name)) is not None:
        raise sentence(why)
    return name


def check_header_value(value: object) -> str | Hidden:
    """Text, a reference to a secret, or `•••`: the value that is stored."""
    if isinstance(value, dict) and REFERENCE in value:
        found = read_reference(value)
        if isinstance(found, str):
            raise sentence(found)
        check_header_value(found.prefix)
        return found
    if value == MASK:
        return Hidden()
    if not isinstance(value, str):
        raise ValueError(f"text, or a reference to a secret such as {A_REFERENCE}")  # noqa: TRY004
    if len(value) > 8192 or _NOT_IN_HEADERS.search(value):
        raise ValueError("text of at most 8,192 characters without line breaks and control characters")
    return value


def _signing_secret(value: object) -> str | Hidden | None:
    """A message never repeats the secret."""
    if value is None:
        return None
    found = check_header_value(value)
    if isinstance(found, str):
        try:
            list(map(parse_secret, found.split() or [""]))
        except ValueError as fault:
            raise sentence(f"`signing_secret`: {fault}; or refer to one: {A_REFERENCE}.") from None
    return found


def _headers(headers: dict[str, str | Hidden]) -> dict[str, str | Hidden]:
    if len({name.lower() for name in headers}) < len(headers):
        raise ValueError("free of names that differ only in upper and lower case")
    return headers


def _is_list_of_words(command: object) -> object:
    if isinstance(command, str):
        raise sentence(
            "`command` must be a list of words, because ondot runs it without a shell: "
            'for example ["echo", "hello"], or ["sh", "-c", "echo hello | wc -c"] if you want a shell.'
        )
    return command


def _argv(command: list[str]) -> list[str]:
    if not command[0].strip():
        raise ValueError("a list of words, of which the first is a program")
    if any("\0" in word for word in command):
        raise ValueError("a list of words without NUL characters")
    return command


def _error_name(value: object) -> str:
    """An HTTP status or a class of them, an error code, or the name of an exception's type, as text."""
    written = str(value) if isinstance(value, int) and not isinstance(value, bool) else value
    if not isinstance(written, str) or not _ERROR_NAME.fullmatch(written):
        raise ValueError(ERROR_NAMES)
    if written.isdecimal() and not 300 <= int(written) <= 599:
        raise ValueError("a status from 300 to 599, because 2xx is a success, for example 503")
    if _STATUS_CLASS.fullmatch(written):
        return written.lower()
    # Only for names that look like a code: `Timeout` is the type of an exception in a common library.
    is_code = written.islower() and written.isidentifier()
    if is_code and written not in ERROR_CODES and (close := get_close_matches(written, ERROR_CODES, n=1, cutoff=0.8)):
        raise sentence(f'There is no error code "{written}"; did you mean "{close[0]}"?')
    return written


def _each_once(names: list[str]) -> list[str]:
    return list(dict.fromkeys(names))


_DURATION_SCHEMA: Final[dict[str, Any]] = {
    "anyOf": [{"type": "number", "minimum": 0}, {"type": "string", "maxLength": 64}],
    "description": EXPECTED,
    "examples": ["90s", "15m", "1h30m", "PT15M", 90],
}
_INSTANT_SCHEMA: Final[dict[str, Any]] = {
    "type": "string",
    "format": "date-time",
    "examples": ["2030-01-31T09:00:00Z"],
}

HEADER_SCHEMA: Final[dict[str, Any]] = {
    "anyOf": [
        {"type": "string", "maxLength": 8192},
        {
            "type": "object",
            "properties": {REFERENCE: {"type": "string"}, "prefix": {"type": "string"}},
            "required": [REFERENCE],
            "additionalProperties": False,
        },
    ],
    "description": "Text, or a reference to a secret.",
}

Duration = Annotated[float, BeforeValidator(seconds), WithJsonSchema(_DURATION_SCHEMA)]
Instant = Annotated[datetime, BeforeValidator(_instant), WithJsonSchema(_INSTANT_SCHEMA)]
InstantOrLocal = Annotated[datetime, BeforeValidator(_instant_or_local), WithJsonSchema(_INSTANT_SCHEMA)]
JobIdText = Annotated[UUID, BeforeValidator(_job_id), WithJsonSchema({"type": "string", "format": "uuid"})]
PlainText = Annotated[str, Field(min_length=1, max_length=MAX_NAME), AfterValidator(_plain_text)]
PoolName = Annotated[str, AfterValidator(_pool), Field(json_schema_extra={"pattern": f"^{POOL_NAME}$"})]
FunctionName = Annotated[str, AfterValidator(_function)]
Url = Annotated[str, AfterValidator(check_url), Field(json_schema_extra={"format": "uri", "maxLength": 2048})]
Method = Annotated[str, AfterValidator(_method), Field(json_schema_extra={"enum": list(METHODS)})]
HeaderValue = Annotated[Any, BeforeValidator(check_header_value), WithJsonSchema(HEADER_SCHEMA)]
SigningSecret = Annotated[Any, BeforeValidator(_signing_secret), WithJsonSchema(HEADER_SCHEMA)]
Headers = Annotated[
    dict[Annotated[str, AfterValidator(_header_name)], HeaderValue],
    Field(max_length=64),
    AfterValidator(_headers),
]
Argv = Annotated[
    list[Annotated[str, Field(max_length=32_768)]],
    Field(min_length=1, max_length=256),
    AfterValidator(_argv),
    BeforeValidator(_is_list_of_words),
]
Labels = Annotated[
    dict[
        Annotated[str, Field(min_length=1, max_length=MAX_LABEL_NAME), AfterValidator(check_visible)],
        Annotated[str, Field(max_length=MAX_LABEL_VALUE), AfterValidator(check_visible)],
    ],
    Field(max_length=MAX_LABELS),
]
ErrorNames = Annotated[
    list[
        Annotated[
            str,
            BeforeValidator(_error_name),
            WithJsonSchema({"anyOf": [{"type": "string"}, {"type": "integer"}], "description": ERROR_NAMES}),
        ]
    ],
    Field(max_length=50),
    AfterValidator(_each_once),
]
Parents = Annotated[list[PlainText], Field(max_length=MAX_PARENTS), AfterValidator(_each_once)]
