"""Hooks as people write them (S11), and the body of a webhook as the data of an event: JSON, a form or text."""

import re
from typing import Annotated, Any, Final
from urllib.parse import parse_qsl

from pydantic import AfterValidator, BeforeValidator, Field, WithJsonSchema

from ondot.document.fields import Body, Duration, PlainText, sentence
from ondot.document.json_text import read_json
from ondot.model.errors import InvalidRequest, NotJson
from ondot.model.hook import DEFAULT_HEADER, LEAST_SECRET, MOST_SECRET, Signature

DAY_S: Final = 86_400.0
LONGEST_OVERLAP_S: Final = 30 * DAY_S
MOST_FIELDS: Final = 1_000
"""Of a form."""

_TYPE: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/-]{0,199}", re.ASCII)
_SOURCE: Final = re.compile(r"[!-~]{1,1000}", re.ASCII)
_HEADER: Final = re.compile(r"[A-Za-z0-9-]{1,64}", re.ASCII)
_OWN: Final = "ondot."


def _type(text: str) -> str:
    if not _TYPE.fullmatch(text):
        raise ValueError('the type of its events, for example "com.acme.order.paid": letters, digits, . _ / and -')
    if text.lower().startswith(_OWN):
        raise sentence(f"Types that start with {_OWN!r} are of ondot's own events. Choose another.")
    return text


def _source(text: str) -> str:
    if not _SOURCE.fullmatch(text):
        raise ValueError('the source of its events, a URI without blanks, for example "/github/acme"')
    return text


def _signature(written: object) -> Signature:
    try:
        return Signature(str(written))
    except ValueError:
        raise ValueError(f"one of {', '.join(Signature)}") from None


def _header(text: str) -> str:
    if not _HEADER.fullmatch(text):
        raise ValueError('the name of a header, for example "X-Signature"')
    return text.lower()


def _overlap(seconds: float) -> float:
    if seconds > LONGEST_OVERLAP_S:
        raise ValueError('a duration of at most 30 days, for example "24h"')
    return seconds


SecretText = Annotated[str, Field(min_length=LEAST_SECRET, max_length=MOST_SECRET)]


class HookBody(Body):
    """A new hook."""

    name: PlainText = Field(description="For people; each hook of a tenant has its own.", examples=["github"])
    type: Annotated[str, AfterValidator(_type)] = Field(
        description="The type of its events.", examples=["com.github.push"]
    )
    source: Annotated[str, AfterValidator(_source)] | None = Field(
        default=None, description="The source of its events. Default: `/hooks/` and the name.", examples=["/github"]
    )
    signature: Annotated[
        Signature, BeforeValidator(_signature), WithJsonSchema({"type": "string", "enum": list(Signature)})
    ] = Field(
        default=Signature.NONE,
        description="How the sender signs. `none`: the token in the URL alone proves that it may send.",
        examples=["github"],
    )
    secret: SecretText | None = Field(
        default=None,
        description="The signing secret. It is encrypted and never shown again. Stripe and Slack choose it; for others"
        " ondot makes one if it is left out, and shows it once.",
    )
    header: Annotated[str, AfterValidator(_header)] = Field(
        default=DEFAULT_HEADER, description="For `hmac`: the header of the signature.", examples=["X-Signature"]
    )


class RotateHookBody(Body):
    """How a hook gets a new token, or a new signing secret."""

    overlap: Annotated[Duration, AfterValidator(_overlap)] = Field(
        default=DAY_S, description="How long the one before still works; 0: not at all.", examples=["24h"]
    )
    secret: SecretText | None = Field(
        default=None, description="The new signing secret. With it the token stays; without it there is a new token."
    )


def read_webhook(content_type: str, raw: bytes, *, max_bytes: int) -> Any:
    """The data of the event. Raises NotJson or InvalidRequest."""
    kind = content_type.partition(";")[0].strip().lower()
    if kind == "application/json" or kind.endswith("+json"):
        return read_json(raw, max_bytes=max_bytes)
    if kind == "application/x-www-form-urlencoded":
        return _read_form(_text(raw), max_bytes)
    if kind.startswith("text/") or kind == "application/xml" or kind.endswith("+xml"):
        return _text(raw)
    if not kind:
        try:
            return read_json(raw, max_bytes=max_bytes)
        except NotJson:
            return _text(raw)
    raise InvalidRequest(
        f"A hook reads JSON, forms (application/x-www-form-urlencoded) and text, got {kind[:80]!r}."
        " Change the content type at the sender."
    )


def _read_form(text: str, max_bytes: int) -> Any:
    try:
        fields = parse_qsl(text, keep_blank_values=True, strict_parsing=bool(text), max_num_fields=MOST_FIELDS)
    except ValueError:
        raise InvalidRequest(f"The body is not a form of at most {MOST_FIELDS:,} fields.") from None
    if any("\0" in part for field in fields for part in field):
        raise InvalidRequest("The form must not contain NUL (%00).")
    if len(fields) == 1 and fields[0][0] == "payload":
        # GitHub and Slack send JSON in a form this way.
        try:
            return read_json(fields[0][1].encode(), max_bytes=max_bytes)
        except NotJson:
            pass
    data: dict[str, Any] = {}
    for name, value in fields:
        if name not in data:
            data[name] = value
        elif isinstance(data[name], list):
            data[name].append(value)
        else:
            data[name] = [data[name], value]
    return data


def _text(raw: bytes) -> str:
    try:
        text = raw.decode()
    except UnicodeDecodeError:
        raise InvalidRequest("The body must be UTF-8.") from None
    if "\0" in text:
        raise InvalidRequest("The body must not contain NUL.")
    return text
