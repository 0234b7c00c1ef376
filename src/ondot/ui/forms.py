"""What a form sends: a few short fields. The guard has checked that one of ondot's own pages sent it."""

from typing import Final
from urllib.parse import parse_qsl

from fastapi import Request

from ondot.model.errors import InvalidRequest, TooLarge

KIND: Final = "application/x-www-form-urlencoded"
MAX_BYTES: Final = 16 * 1024
MAX_FIELDS: Final = 20


async def read_form(request: Request) -> dict[str, str]:
    """The fields by name. Raises if it is not what a form sends."""
    require_form(request)
    raw = b""
    async for part in request.stream():
        raw += part
        if len(raw) > MAX_BYTES:
            raise TooLarge(f"A form has at most {MAX_BYTES:,} bytes.")
    return parse_form(raw)


def require_form(request: Request) -> None:
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != KIND:
        raise InvalidRequest(f"Send the fields of the form as {KIND}.")


def parse_form(raw: bytes, max_fields: int = MAX_FIELDS) -> dict[str, str]:
    try:
        pairs = parse_qsl(raw.decode(), keep_blank_values=True, max_num_fields=max_fields, errors="strict")
    except ValueError:
        raise InvalidRequest("The fields of the form cannot be read. Send them in UTF-8.") from None
    fields: dict[str, str] = {}
    for name, value in pairs:
        if name in fields or "\0" in value:
            raise InvalidRequest(f"The field {name[:60]!r} appears twice, or contains NUL.")
        fields[name] = value
    return fields
