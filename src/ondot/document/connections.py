"""Connections as people write them (E3): a kind, the address of that kind, and credentials."""

import re
from typing import Annotated, Any, Final, Literal

from msgspec import structs
from pydantic import BeforeValidator, Field, WithJsonSchema
from pydantic_core import PydanticCustomError

from ondot.document.fields import Body, Headers, check_url, sentence
from ondot.document.reading import read_form
from ondot.document.rules import POOL_NAME
from ondot.model.broker import BrokerAddress, Mechanism, parse_broker, show_broker
from ondot.model.connection import FIELD_OF_ADDRESS, ConnectionKind, ConnectionSpec
from ondot.model.errors import Fault, InvalidBody
from ondot.model.grpc import why_not_metadata, why_not_value
from ondot.model.secret import A_REFERENCE, MASK, REFERENCE, Hidden, read_reference

EXAMPLE: Final = 'for example {"kind": "kafka", "servers": "kafka-1:9092", "password": {"$secret": "kafka"}}'
LONGEST_SECRET: Final = 16_384
_NAME: Final = re.compile(POOL_NAME)
_PEM: Final = "-----BEGIN "
_TAKES: Final[dict[ConnectionKind, frozenset[str]]] = {
    "redis": frozenset({"username", "password", "ca", "certificate", "private_key"}),
    "kafka": frozenset({"username", "password", "mechanism", "tls", "ca", "certificate", "private_key"}),
    "rabbitmq": frozenset({"username", "password", "ca", "certificate", "private_key"}),
    "nats": frozenset({"username", "password", "ca", "certificate", "private_key"}),
    "grpc": frozenset({"tls", "ca", "certificate", "private_key", "headers"}),
    "webhook": frozenset({"headers"}),
}
"""The fields that each kind takes beside its address."""
_OPTIONAL: Final = ("username", "password", "mechanism", "tls", "ca", "certificate", "private_key", "headers")


def _credential(value: object) -> str | Hidden | None:
    """A message never repeats it."""
    if value is None:
        return None
    if isinstance(value, dict) and REFERENCE in value:
        found = read_reference(value)
        if isinstance(found, str):
            raise sentence(found)
        return found
    if value == MASK:
        return Hidden()
    if not isinstance(value, str) or not 1 <= len(value) <= LONGEST_SECRET or "\0" in value:
        expected = f"text of 1 to {LONGEST_SECRET:,} characters, or a reference to a secret such as {A_REFERENCE}"
        raise sentence(f"A credential must be {expected}.")
    return value


def _pem(value: object) -> object:
    if value is not None and not (isinstance(value, str) and value.strip().startswith(_PEM)):
        raise ValueError(f"PEM, which begins with {_PEM}…")
    return value


_CREDENTIAL_SCHEMA: Final[dict[str, Any]] = {
    "anyOf": [
        {"type": "string", "maxLength": LONGEST_SECRET},
        {"type": "object", "properties": {REFERENCE: {"type": "string"}}, "required": [REFERENCE]},
        {"type": "null"},
    ],
    "description": "Text, which is encrypted, or a reference to a secret.",
}
CredentialValue = Annotated[Any, BeforeValidator(_credential), WithJsonSchema(_CREDENTIAL_SCHEMA)]
Pem = Annotated[Annotated[str, Field(max_length=65_536)] | None, BeforeValidator(_pem)]
Address = Annotated[str, Field(max_length=2048)]


class ConnectionBody(Body):
    """The address is `url`, for Kafka `servers`, for gRPC `address`."""

    kind: Literal["redis", "kafka", "rabbitmq", "nats", "grpc", "webhook"] = Field(
        description="What it connects to.", examples=["kafka"]
    )
    url: Address | None = Field(
        default=None,
        description="Of Redis, RabbitMQ, NATS or a webhook. Credentials in it are taken out and encrypted.",
        examples=["redis://redis.example.com:6379/0"],
    )
    servers: Address | None = Field(
        default=None, description="Of Kafka: hosts and ports, separated by commas.", examples=["kafka-1:9092"]
    )
    address: Address | None = Field(
        default=None, description="Of gRPC: host and port.", examples=["billing.example.com:443"]
    )
    username: Annotated[str, Field(min_length=1, max_length=255)] | None = Field(
        default=None, description="The user name.", examples=["ondot"]
    )
    password: CredentialValue = Field(
        default=None, description="The password, or a reference to it.", examples=[{"$secret": "kafka"}]
    )
    mechanism: Mechanism = Field(
        default="PLAIN", description="How Kafka checks user name and password.", examples=["SCRAM-SHA-512"]
    )
    tls: bool = Field(
        default=False,
        description="Encrypt the connection to Kafka or gRPC. Default: false for Kafka, true for gRPC.",
        examples=[True],
    )
    ca: Pem = Field(default=None, description="Certificates to trust, as PEM, instead of the system's.")
    certificate: Pem = Field(default=None, description="The client's own certificate, as PEM.")
    private_key: CredentialValue = Field(
        default=None, description="The key of that certificate, or a reference to it.", examples=[{"$secret": "tls"}]
    )
    headers: Headers = Field(
        default_factory=dict,
        description="Sent with each call of a webhook, or as metadata of gRPC calls.",
        examples=[{"authorization": {"$secret": "billing", "prefix": "Bearer "}}],
    )


def read_connection_name(name: str) -> str:
    """Raises InvalidBody."""
    if not _NAME.fullmatch(name):
        expected = "at most 63 lower-case letters, digits, _ . and -, a letter or digit first"
        raise InvalidBody(f"{name[:60]!r} is not the name of a connection: {expected}.")
    return name


def read_connection(raw: object) -> ConnectionSpec:
    """Raises InvalidBody."""
    body = read_form(ConnectionBody, raw, EXAMPLE)
    kind: ConnectionKind = body.kind
    field = FIELD_OF_ADDRESS[kind]
    address = getattr(body, field)
    if address is None:
        raise _fault(field, f"A connection of the kind {kind} needs `{field}`.")
    for other in ("url", "servers", "address"):
        if other != field and getattr(body, other) is not None:
            raise _fault(other, f"A connection of the kind {kind} has its address in `{field}`, not in `{other}`.")
    given = body.model_fields_set
    for name in _OPTIONAL:
        if name in given and getattr(body, name) and name not in _TAKES[kind]:
            raise _fault(name, f"A connection of the kind {kind} takes no `{name}`: leave it out.")
    if (body.certificate is None) != (body.private_key is None):
        raise _fault("certificate", "`certificate` and `private_key` belong together: give both, or neither.")
    spec = ConnectionSpec(
        kind=kind,
        address=address,
        username=body.username,
        password=body.password,
        mechanism=body.mechanism,
        tls=body.tls if "tls" in given else kind == "grpc",
        ca=body.ca,
        certificate=body.certificate,
        private_key=body.private_key,
        headers=body.headers,
    )
    return _without_userinfo(spec, field)


def _without_userinfo(spec: ConnectionSpec, field: str) -> ConnectionSpec:
    """The connection with its address as it is shown: user name and password are fields of their own."""
    try:
        found = _parse(spec)
    except PydanticCustomError as fault:  # a whole sentence
        raise _fault(field, str(fault)) from None
    except ValueError as fault:
        raise _fault(field, f"`{field}` must be {fault}.") from None
    if found is None:
        return spec
    if (found.username and spec.username) or (found.password and spec.password):
        raise _fault(field, f"Give user name and password once: in `{field}`, or as fields of their own.")
    return structs.replace(
        spec,
        address=show_broker(found),
        username=spec.username or found.username,
        password=spec.password or found.password,
    )


def _parse(spec: ConnectionSpec) -> BrokerAddress | None:
    """The address of a broker; None: it is another server's. Raises ValueError with the end of a sentence."""
    if spec.kind == "webhook":
        check_url(spec.address)
        return None
    if spec.kind == "grpc":
        if "," in spec.address or not spec.address.rpartition(":")[2].isdecimal():
            raise ValueError("one host and port, for example billing.example.com:443")
        parse_broker("kafka", spec.address)  # written as one of Kafka's servers
        for name, value in spec.headers.items():
            if (why := why_not_metadata(name)) is not None:
                raise sentence(why)
            if isinstance(value, str) and (expected := why_not_value(name, value)) is not None:
                raise sentence(f"`headers.{name}` must be {expected}.")
        return None
    return parse_broker(spec.kind, spec.address)


def _fault(field: str, message: str) -> InvalidBody:
    return InvalidBody(message, (Fault(f"/{field}", message),))
