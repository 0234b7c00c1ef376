"""The credentials of a channel (T5): sealed when it is written, opened at each attempt, never shown.

A reference to a secret gets the value of that moment. Its destinations count: a secret that may go to one host only
does not go to another. Without a master key credentials are stored as they came, as those of jobs are.
"""

from base64 import b64encode
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, assert_never

from msgspec import structs

from ondot.flow.sealing import DataKey, from_text, to_text
from ondot.flow.vault import Vault
from ondot.model.channel import (
    POOL,
    ChannelSpec,
    Credential,
    EmailChannel,
    PagerDutyChannel,
    SlackChannel,
    WebhookChannel,
)
from ondot.model.errors import InvalidBody
from ondot.model.headers import is_sensitive
from ondot.model.ids import TenantNo
from ondot.model.secret import Hidden
from ondot.model.urls import host_of, origin_of
from ondot.store.secrets import SecretRow, find_secrets

_PLACE: Final = "channel"


class NoCredential(Exception):
    """A secret of a channel is missing, or may not go where the channel sends."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


@dataclass(frozen=True, slots=True)
class Opened:
    """A channel with its credentials in plain, and those credentials, which are scrubbed from all that is stored."""

    spec: ChannelSpec = field(repr=False)
    hidden: tuple[str, ...] = field(repr=False)


def find_references(spec: ChannelSpec) -> frozenset[str]:
    """The names of the secrets that a channel refers to."""
    return frozenset(value.secret for _, value in _credentials(spec) if isinstance(value, Hidden) and value.secret)


def find_unsealed(spec: ChannelSpec) -> list[str]:
    """The places of credentials that are stored in plain."""
    return [place for place, value in _credentials(spec) if isinstance(value, str) and _is_secret(spec, place)]


async def check_references(vault: Vault, tenant_no: TenantNo, spec: ChannelSpec) -> None:
    """Raises InvalidBody for a secret that does not exist, or that may not go to the channel's host."""
    names = find_references(spec)
    if not names:
        return
    async with vault.database.connection() as connection:
        rows = await find_secrets(connection, tenant_no, names)
    for name in sorted(names):
        if name not in rows:
            raise InvalidBody(f"Unknown secret {name!r}. Create it with `ondot secret set {name}`, then try again.")
    url = _url(spec)
    if isinstance(url, str) and (why := _why_refused(rows, url)) is not None:
        raise InvalidBody(why)


async def seal(vault: Vault, tenant_no: TenantNo, spec: ChannelSpec) -> ChannelSpec:
    """The channel as it is stored."""
    plain = find_unsealed(spec)
    if vault.kms is None or not plain:
        return spec
    key = await vault.writing_key(tenant_no)
    return _replace(spec, lambda place, value: _seal(key, place, value) if place in plain else value)


async def open_credentials(vault: Vault | None, tenant_no: TenantNo, spec: ChannelSpec) -> Opened:
    """Raises NoCredential, or NoSecretKey if this process has no master key."""
    hidden = [value for _, value in _credentials(spec) if isinstance(value, Hidden)]
    if not hidden:
        return Opened(spec, tuple(str(value) for place, value in _credentials(spec) if _is_secret(spec, place)))
    if vault is None:
        raise NoCredential("This scheduler has no vault: set ONDOT_SECRET_KEY.")
    names = find_references(spec)
    async with vault.database.connection() as connection:
        rows = await find_secrets(connection, tenant_no, names) if names else {}
    if missing := sorted(names - rows.keys()):
        raise NoCredential(f"There is no secret {missing[0]!r}. Create it with `ondot secret set {missing[0]}`.")
    values: dict[str, str] = {}
    for place, value in _credentials(spec):
        if isinstance(value, str):
            values[place] = value
        elif value.secret is not None:
            row = rows[value.secret]
            key = await vault.key(tenant_no, row.key_no)
            values[place] = value.prefix + key.open(row.sealed, "secret", row.name, row.version)
        else:
            number, content = from_text(value.sealed or "")
            values[place] = (await vault.key(tenant_no, number)).open(content, _PLACE, place)
    opened = _replace(spec, lambda place, _: values[place])
    if (why := _why_refused(rows, str(_url(opened) or ""))) is not None:
        raise NoCredential(why)
    are_secret = [
        values[place] for place, value in _credentials(spec) if isinstance(value, Hidden) or _is_secret(spec, place)
    ]
    return Opened(opened, tuple(are_secret))


def keep_hidden(wanted: ChannelSpec, stored: ChannelSpec | None) -> ChannelSpec:
    """The channel with the stored credentials where `•••` was given. Raises InvalidBody if there is none, or if the
    channel now sends elsewhere: who may change an address must not get credentials that another person gave."""
    known = dict(_credentials(stored)) if stored is not None and type(stored) is type(wanted) else {}
    before, after = (None if stored is None else _url(stored)), _url(wanted)
    has_moved = isinstance(before, str) and isinstance(after, str) and origin_of(before) != origin_of(after)

    def keep(place: str, value: Credential) -> Credential:
        if not isinstance(value, Hidden) or not value.is_unchanged:
            return value
        if place not in known:
            raise InvalidBody(
                f"`{place}` is `•••`, which means unchanged, and no value is stored for it: give its value."
            )
        if has_moved:
            raise InvalidBody(f"`{place}` is kept only for the address that it was given for: give its value again.")
        return known[place]

    return _replace(wanted, keep)


def _why_refused(rows: Mapping[str, SecretRow], url: str) -> str | None:
    for name, row in rows.items():
        host = host_of(url)
        if row.destinations.pools is not None and not row.destinations.allows_pool(POOL):
            return f"The secret {name!r} is for some pools only, and channels have none of them."
        if not row.destinations.allows_host(host):
            allowed = ", ".join(row.destinations.hosts or ()) or "none"
            return f"The secret {name!r} may not be sent to {host}; allowed: {allowed}."
    return None


def _url(spec: ChannelSpec) -> Credential | None:
    return None if isinstance(spec, EmailChannel) else spec.url


def _credentials(spec: ChannelSpec) -> Iterator[tuple[str, Credential]]:
    """Values that may be secret, by their place."""
    match spec:
        case WebhookChannel():
            yield "url", spec.url
            yield from ((f"headers.{name.lower()}", value) for name, value in spec.headers.items())
        case SlackChannel():
            yield "url", spec.url
        case PagerDutyChannel():
            yield "routing_key", spec.routing_key
        case EmailChannel():
            return
        case _:
            assert_never(spec)


def _is_secret(spec: ChannelSpec, place: str) -> bool:
    """Whether a value that is written in plain is a credential. The URL of a webhook is shown, as that of a job."""
    if isinstance(spec, WebhookChannel):
        return place.startswith("headers.") and is_sensitive(place.removeprefix("headers."))
    return True


def _replace(spec: ChannelSpec, change: Callable[[str, Credential], Credential]) -> ChannelSpec:
    match spec:
        case WebhookChannel():
            headers = {name: change(f"headers.{name.lower()}", value) for name, value in spec.headers.items()}
            return structs.replace(spec, url=change("url", spec.url), headers=headers)
        case SlackChannel():
            return structs.replace(spec, url=change("url", spec.url))
        case PagerDutyChannel():
            return structs.replace(spec, routing_key=change("routing_key", spec.routing_key))
        case EmailChannel():
            return spec
        case _:
            assert_never(spec)


def _seal(key: DataKey, place: str, value: Credential) -> Hidden:
    assert isinstance(value, str)
    mark = b64encode(key.mark(value, _PLACE, place)).decode()
    return Hidden(sealed=to_text(key.number, key.seal(value, _PLACE, place)), mark=mark)
