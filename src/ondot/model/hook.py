"""Hooks (S11): the form of their tokens, and how senders of plain webhooks sign what they send.

A token is `ondh_`, 160 random bits and a checksum, as in an API key: one with a typo costs no look at the database. It
is in the URL that the sender calls, so `hide_tokens` removes it from every path that is logged or sent back.

    github    X-Hub-Signature-256: sha256=<hex>                        signs the body
    stripe    Stripe-Signature: t=<seconds>,v1=<hex>[,v1=…]            signs `t.body`
    slack     X-Slack-Signature: v0=<hex>, X-Slack-Request-Timestamp   signs `v0:t:body`
    standard  webhook-id, webhook-timestamp, webhook-signature         signs `id.t.body` (Standard Webhooks)
    hmac      a header of your choice: hex or base64                   signs the body

`identify` returns by what a repetition is known: the id of Standard Webhooks, which is signed; else the body. A sender
that tries again signs a new timestamp with the same body, and a copied request has the same body too.
"""

import base64
import binascii
import hashlib
import hmac
import re
import secrets
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Final
from uuid import UUID

from ondot.model.keys import ALPHABET, CHECKSUM_LENGTH, RANDOM_LENGTH, checksum_of
from ondot.model.signature import find_fault, parse_secret, write_secret

PREFIX: Final = "ondh_"
HIDDEN: Final = "•••"
TOLERANCE_S: Final = 300
DEFAULT_HEADER: Final = "x-signature"
LEAST_SECRET: Final = 8
MOST_SECRET: Final = 1_024

_TOKEN: Final = re.compile(rf"{PREFIX}[0-9A-Za-z]{{{RANDOM_LENGTH + CHECKSUM_LENGTH}}}", re.ASCII)
_LIKE_A_TOKEN: Final = re.compile(r"ond[hp]_[^/?#\s\"']*")
"""Of a hook or of a ping."""
_AFTER_HOOKS: Final = re.compile(r"(/hooks/|/ping/)([^/?#]+)")
_SECONDS: Final = re.compile(r"[0-9]{1,12}", re.ASCII)
_MOST_SIGNATURES: Final = 20


class Signature(StrEnum):
    """How a sender signs. NONE: the token alone proves that it may send."""

    NONE = "none"
    GITHUB = "github"
    STRIPE = "stripe"
    SLACK = "slack"
    STANDARD = "standard"
    HMAC = "hmac"


ISSUED_BY_SENDER: Final = frozenset({Signature.STRIPE, Signature.SLACK})
"""These senders choose the signing secret themselves; for others ondot can make one."""


def new_token() -> str:
    unchecked = PREFIX + "".join(secrets.choice(ALPHABET) for _ in range(RANDOM_LENGTH))
    return unchecked + checksum_of(unchecked)


def is_token(text: str) -> bool:
    """Whether it is worth a look at the database: its form and its checksum are right."""
    return _TOKEN.fullmatch(text) is not None and checksum_of(text[:-CHECKSUM_LENGTH]) == text[-CHECKSUM_LENGTH:]


def hash_token(token: str) -> bytes:
    return hashlib.sha256(token.encode()).digest()


def hide_tokens(path: str) -> str:
    """A path without tokens of hooks and pings, also without those that have a typo."""
    return mask_tokens(_AFTER_HOOKS.sub(lambda found: found[0] if _is_id(found[2]) else found[1] + HIDDEN, path))


def mask_tokens(text: str) -> str:
    """A text that may quote a request, without tokens of hooks and pings."""
    return _LIKE_A_TOKEN.sub(HIDDEN, text) if "ond" in text else text


def _is_id(text: str) -> bool:
    try:
        UUID(text)
    except ValueError:
        return False
    return True


def new_signing_secret(signature: Signature) -> str:
    return write_secret(secrets.token_bytes(32)) if signature is Signature.STANDARD else secrets.token_urlsafe(32)


def why_bad_secret(signature: Signature, secret: str) -> str | None:
    """What is wrong with a signing secret, without the secret itself; None: nothing."""
    if signature is Signature.STANDARD:
        try:
            parse_secret(secret)
        except ValueError as error:
            return str(error)
    if not secret.isprintable() or not LEAST_SECRET <= len(secret) <= MOST_SECRET:
        return f"a signing secret has {LEAST_SECRET} to {MOST_SECRET:,} printable characters"
    return None


def find_forgery(
    signature: Signature, header: str, keys: Sequence[str], headers: Mapping[str, str], body: bytes, now_s: float
) -> str | None:
    """Why a request must not be trusted, as a sentence; None: it is authentic, and not old.

    `keys`: the signing secrets in force. `headers`: by lower-case name. `header`: the name that `hmac` uses.
    """
    match signature:
        case Signature.NONE:
            return None
        case Signature.STANDARD:
            return find_fault(
                [parse_secret(key) for key in keys],
                message_id=headers.get("webhook-id", ""),
                timestamp=headers.get("webhook-timestamp", ""),
                signatures=headers.get("webhook-signature", ""),
                body=body,
                now_s=now_s,
            )
        case Signature.GITHUB:
            given = headers.get("x-hub-signature-256", "")
            return _compare(keys, body, [given.removeprefix("sha256=")], "X-Hub-Signature-256")
        case Signature.HMAC:
            given = headers.get(header, "").strip().removeprefix("sha256=")
            return _compare(keys, body, [_as_hex(given)], header)
        case Signature.SLACK:
            at = headers.get("x-slack-request-timestamp", "")
            given = headers.get("x-slack-signature", "")
            signed = f"v0:{at}:".encode(errors="replace") + body
            name = "X-Slack-Request-Timestamp"
            return _why_old(at, name, now_s) or _compare(keys, signed, [given.removeprefix("v0=")], "X-Slack-Signature")
        case Signature.STRIPE:
            parts = [part.strip().partition("=") for part in headers.get("stripe-signature", "").split(",")]
            at = next((value for name, _, value in parts if name == "t"), "")
            all_given = [value for name, _, value in parts if name == "v1"][:_MOST_SIGNATURES]
            signed = f"{at}.".encode(errors="replace") + body
            return _why_old(at, "t of Stripe-Signature", now_s) or _compare(keys, signed, all_given, "Stripe-Signature")


def identify(signature: Signature, hook_id: UUID, headers: Mapping[str, str], body: bytes) -> str | None:
    """The id of the event, the same for a repetition; None: nothing is signed, so each request is an event."""
    match signature:
        case Signature.NONE:
            return None
        case Signature.STANDARD:
            what = headers["webhook-id"].encode(errors="replace")
        case _:
            what = body
    return hashlib.sha256(hook_id.bytes + what).hexdigest()[:40]


def _why_old(at: str, name: str, now_s: float) -> str | None:
    if not _SECONDS.fullmatch(at):
        return f"{name} must be whole seconds since 1970, got {at[:40]!r}."
    age_s = now_s - int(at)
    if abs(age_s) > TOLERANCE_S:
        return f"The request was signed {age_s:.0f} s ago, and at most {TOLERANCE_S} s are accepted."
    return None


def _compare(keys: Sequence[str], signed: bytes, given: Sequence[str], header: str) -> str | None:
    if not any(given):
        return f"The request has no signature in {header}."
    expected = [hmac.new(key.encode(), signed, "sha256").hexdigest().encode() for key in keys]
    # All are compared, so that the time does not depend on which one matches.
    matches = [hmac.compare_digest(own, each.lower().encode(errors="replace")) for own in expected for each in given]
    return None if any(matches) else "The signature does not match: the body or the signing secret differs."


def _as_hex(given: str) -> str:
    """A signature in hex or in base64, as hex."""
    if len(given) == 64:
        return given
    try:
        return base64.b64decode(given, validate=True).hex()
    except (binascii.Error, ValueError):
        return given
