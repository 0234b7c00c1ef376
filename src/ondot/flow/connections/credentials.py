"""The credentials of a connection (T5): sealed when it is written, opened when it is used, never shown.

A reference to a secret gets the value of that moment. Its destinations count: a secret that may go to some hosts only
does not go to others. Without a master key credentials are stored as they came, as those of jobs are.
"""

from base64 import b64encode
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from ondot.flow.sealing import DataKey, from_text, to_text
from ondot.flow.vault import NO_KEY, Vault
from ondot.model.broker import BROKER_KINDS, parse_broker
from ondot.model.connection import (
    ConnectionSpec,
    Credential,
    NoConnection,
    find_references,
    list_credentials,
    replace_credentials,
)
from ondot.model.errors import InvalidBody, NoSecretKey
from ondot.model.ids import TenantNo
from ondot.model.secret import Hidden
from ondot.model.urls import host_of
from ondot.store.secrets import SecretRow, find_secrets

_PLACE: Final = "connection"


@dataclass(frozen=True, slots=True)
class OpenedConnection:
    """A connection with its credentials in plain, and those credentials, which are scrubbed from all that is stored."""

    name: str
    spec: ConnectionSpec = field(repr=False)
    hidden: tuple[str, ...] = field(repr=False)


def hosts_of(spec: ConnectionSpec) -> list[str]:
    if spec.kind == "webhook":
        return [host_of(spec.address)]
    kind = spec.kind if spec.kind in BROKER_KINDS else "kafka"
    return [server.host.lower() for server in parse_broker(kind, spec.address).servers]


async def check_references(vault: Vault, tenant_no: TenantNo, spec: ConnectionSpec) -> None:
    """Raises InvalidBody for a secret that does not exist, or that may not go to the connection's hosts."""
    if not (names := find_references(spec)):
        return
    async with vault.database.connection() as connection:
        rows = await find_secrets(connection, tenant_no, names)
    for name in sorted(names):
        if name not in rows:
            raise InvalidBody(f"Unknown secret {name!r}. Create it with `ondot secret set {name}`, then try again.")
    if (why := _why_refused(rows, spec)) is not None:
        raise InvalidBody(why)


async def seal(vault: Vault, tenant_no: TenantNo, spec: ConnectionSpec) -> ConnectionSpec:
    """The connection as it is stored."""
    if vault.kms is None or not any(isinstance(value, str) for _, value in list_credentials(spec)):
        return spec
    key = await vault.writing_key(tenant_no)
    return replace_credentials(spec, lambda place, value: _seal(key, place, value))


async def open_credentials(
    vault: Vault | None, tenant_no: TenantNo, name: str, spec: ConnectionSpec
) -> OpenedConnection:
    """Raises NoConnection, or NoSecretKey if this process has no master key."""
    values: dict[str, str] = {}
    references = find_references(spec)
    rows: dict[str, SecretRow] = {}
    if any(isinstance(value, Hidden) for _, value in list_credentials(spec)) and vault is None:
        raise NoSecretKey(NO_KEY)
    if references and vault is not None:
        async with vault.database.connection() as connection:
            rows = await find_secrets(connection, tenant_no, references)
    if missing := sorted(references - rows.keys()):
        raise NoConnection(f"There is no secret {missing[0]!r}. Create it with `ondot secret set {missing[0]}`.")
    if (why := _why_refused(rows, spec)) is not None:
        raise NoConnection(why)
    for place, value in list_credentials(spec):
        if isinstance(value, str):
            values[place] = value
            continue
        assert vault is not None
        if value.secret is not None:
            row = rows[value.secret]
            key = await vault.key(tenant_no, row.key_no)
            values[place] = value.prefix + key.open(row.sealed, "secret", row.name, row.version)
        else:
            number, content = from_text(value.sealed or "")
            values[place] = (await vault.key(tenant_no, number)).open(content, _PLACE, place)
    opened = replace_credentials(spec, lambda place, _: values[place])
    return OpenedConnection(name, opened, tuple(values.values()))


def keep_hidden(wanted: ConnectionSpec, stored: ConnectionSpec | None) -> ConnectionSpec:
    """The connection with the stored credentials where `•••` was given. Raises InvalidBody if there is none, or if the
    connection now leads elsewhere: who may change an address must not get credentials that another person gave."""
    known = {} if stored is None else dict(list_credentials(stored))
    has_moved = stored is not None and (stored.kind, stored.address, stored.tls) != (
        wanted.kind,
        wanted.address,
        wanted.tls,
    )

    def keep(place: str, value: Credential) -> Credential:
        if not isinstance(value, Hidden) or not value.is_unchanged:
            kept = known.get(place)
            same = isinstance(value, Hidden) and isinstance(kept, Hidden) and value.mark and value.mark == kept.mark
            return kept if same and kept is not None else value
        if place not in known:
            raise InvalidBody(
                f"`{place}` is `•••`, which means unchanged, and no value is stored for it: give its value."
            )
        if has_moved:
            raise InvalidBody(f"`{place}` is kept only for the address that it was given for: give its value again.")
        return known[place]

    return replace_credentials(wanted, keep)


def _why_refused(rows: Mapping[str, SecretRow], spec: ConnectionSpec) -> str | None:
    for name, row in rows.items():
        if row.destinations.pools is not None:
            return f"The secret {name!r} is for some pools only, and jobs of any pool may name a connection."
        for host in hosts_of(spec):
            if not row.destinations.allows_host(host):
                allowed = ", ".join(row.destinations.hosts or ()) or "none"
                return f"The secret {name!r} may not be sent to {host}; allowed: {allowed}."
    return None


def _seal(key: DataKey, place: str, value: Credential) -> Credential:
    if isinstance(value, Hidden):
        return value
    mark = b64encode(key.mark(value, _PLACE, place)).decode()
    return Hidden(sealed=to_text(key.number, key.seal(value, _PLACE, place)), mark=mark)
