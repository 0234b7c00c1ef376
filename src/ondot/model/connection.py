"""Connections (E3, T5): the address of a broker or a server and its credentials, kept once for all that names it.

Its credentials are references to secrets, or sealed (`Hidden`); nothing here knows a value. An address contains none:
a user name and a password that a URL has are taken out of it when it is written.
"""

from collections.abc import Callable, Iterator
from typing import Any, Final, Literal

import msgspec
from msgspec import Struct, structs

from ondot.model.broker import BROKER_KINDS, BrokerAddress, Mechanism, parse_broker
from ondot.model.secret import Hidden

ConnectionKind = Literal["redis", "kafka", "rabbitmq", "nats", "grpc", "webhook"]
KINDS: Final[tuple[ConnectionKind, ...]] = (*BROKER_KINDS, "grpc", "webhook")
FIELD_OF_ADDRESS: Final[dict[ConnectionKind, str]] = {
    "redis": "url",
    "kafka": "servers",
    "rabbitmq": "url",
    "nats": "url",
    "grpc": "address",
    "webhook": "url",
}
"""How people write the address of each kind."""

Credential = str | Hidden


class ConnectionSpec(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """`tls` counts for Kafka and gRPC; the address of other kinds says it. `headers`: metadata of gRPC calls, and
    headers of a webhook."""

    kind: ConnectionKind
    address: str
    username: str | None = None
    password: Credential | None = None
    mechanism: Mechanism = "PLAIN"
    tls: bool = False
    ca: str | None = None
    certificate: str | None = None
    private_key: Credential | None = None
    headers: dict[str, Credential] = {}
    only_public: bool = False
    """Written by a caller without the scope `private-targets`."""

    def __repr__(self) -> str:
        """Without its credentials: it may stand in a log."""
        return f"{self.kind} on {self.address}"


class NoConnection(Exception):
    """There is no connection of a name, or a secret of it is missing or may not go where it leads."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


_DECODER: Final[msgspec.json.Decoder[ConnectionSpec]] = msgspec.json.Decoder(ConnectionSpec)


def encode_connection(spec: ConnectionSpec) -> str:
    return msgspec.json.encode(spec).decode()


def decode_connection(text: str | bytes) -> ConnectionSpec:
    return _DECODER.decode(text)


def list_credentials(spec: ConnectionSpec) -> Iterator[tuple[str, Credential]]:
    """Values that are secret, by their place."""
    if spec.password is not None:
        yield "password", spec.password
    if spec.private_key is not None:
        yield "private_key", spec.private_key
    yield from ((f"headers.{name}", value) for name, value in spec.headers.items())


def replace_credentials(spec: ConnectionSpec, change: Callable[[str, Credential], Credential]) -> ConnectionSpec:
    return structs.replace(
        spec,
        password=None if spec.password is None else change("password", spec.password),
        private_key=None if spec.private_key is None else change("private_key", spec.private_key),
        headers={name: change(f"headers.{name}", value) for name, value in spec.headers.items()},
    )


def find_references(spec: ConnectionSpec) -> frozenset[str]:
    """The names of the secrets that it refers to."""
    return frozenset(value.secret for _, value in list_credentials(spec) if isinstance(value, Hidden) and value.secret)


def is_sealed(spec: ConnectionSpec) -> bool:
    """Whether no credential of it is stored in plain."""
    return not any(isinstance(value, str) for _, value in list_credentials(spec))


def broker_of(spec: ConnectionSpec) -> BrokerAddress:
    """The address of a broker, of a connection whose credentials are opened."""
    assert spec.kind in BROKER_KINDS
    address = parse_broker(spec.kind, spec.address)
    return structs.replace(
        address,
        tls=address.tls or spec.tls,
        username=spec.username,
        password=_plain(spec.password),
        mechanism=spec.mechanism,
        ca=spec.ca,
        certificate=spec.certificate,
        private_key=_plain(spec.private_key),
    )


def render_connection(spec: ConnectionSpec) -> dict[str, Any]:
    """The connection as outputs show it: references by name, other credentials as `•••`."""
    shown: dict[str, Any] = {"kind": spec.kind, FIELD_OF_ADDRESS[spec.kind]: spec.address}
    if spec.username is not None:
        shown["username"] = spec.username
    if spec.password is not None:
        shown["password"] = _shown(spec.password)
    if spec.kind == "kafka":
        shown["mechanism"] = spec.mechanism
    if spec.kind in {"kafka", "grpc"}:
        shown["tls"] = spec.tls
    for name in ("ca", "certificate"):
        if (pem := getattr(spec, name)) is not None:
            shown[name] = pem
    if spec.private_key is not None:
        shown["private_key"] = _shown(spec.private_key)
    if spec.headers:
        shown["headers"] = {name: _shown(value) for name, value in spec.headers.items()}
    return shown


def _shown(value: Credential) -> object:
    return (value if isinstance(value, Hidden) else Hidden()).render()


def _plain(value: Credential | None) -> str | None:
    assert not isinstance(value, Hidden), "its credentials are opened"
    return value
