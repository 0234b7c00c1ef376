"""The target `grpc` in a request and in an answer (E3): a server, a method, metadata, and what secures the connection.

`"tls": true` is the default and trusts the system's authorities. An object names others: certificates as PEM or as
references to secrets, and for the private key best a reference. What is sealed is shown as `•••`, which sent back means
unchanged, as for headers.
"""

import re
from typing import Annotated, Any, Final

from pydantic import AfterValidator, BeforeValidator, Field, WithJsonSchema, model_validator
from typing_extensions import TypedDict

from ondot.document.broker_names import ConnectionName
from ondot.document.fields import HEADER_SCHEMA, Body, HeaderValue, check_header_value, sentence
from ondot.model.grpc import (
    A_METHOD,
    AN_ADDRESS,
    MAX_ADDRESS,
    MAX_DESCRIPTOR_SET,
    MAX_METHOD,
    MAX_PEM,
    TLS_HEADERS,
    parse_address,
    parse_method,
    why_not_metadata,
    why_not_value,
)
from ondot.model.headers import is_sensitive
from ondot.model.secret import A_REFERENCE, MASK, Hidden
from ondot.model.target import GrpcTarget

_PEM: Final = "-----BEGIN "
_A_NAME: Final = "billing.internal"
_NAME: Final = re.compile(r"[A-Za-z0-9_.:-]{1,253}")


def _address(text: str) -> str:
    parse_address(text)
    return text


def _metadata_name(name: str) -> str:
    if (why := why_not_metadata(name)) is not None:
        raise sentence(why)
    return name


def _metadata(metadata: dict[str, str | Hidden]) -> dict[str, str | Hidden]:
    for name, value in metadata.items():
        if isinstance(value, str) and (why := why_not_value(name, value)) is not None:
            raise sentence(f"`metadata.{name}` must be {why}.")
    return metadata


def _pem(value: object) -> str | Hidden | None:
    """A message never repeats it."""
    if value is None:
        return None
    if isinstance(value, str) and value != MASK:
        if len(value) > MAX_PEM or not value.lstrip().startswith(_PEM):
            raise sentence(f"Give PEM ({_PEM}…) of at most {MAX_PEM:,} characters, or a reference: {A_REFERENCE}.")
        return value
    return check_header_value(value)


def _tls(value: object) -> object:
    """`true` in full; None is no TLS."""
    if value is None or isinstance(value, bool):
        return None if value is False else {}
    if not isinstance(value, dict):
        raise ValueError("true, false, or an object with `ca`, `certificate`, `key` or `server_name`")  # noqa: TRY004
    return value


def _server_name(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise ValueError(f"a host's name, for example {_A_NAME}")
    return name


Pem = Annotated[Any, BeforeValidator(_pem), WithJsonSchema(HEADER_SCHEMA)]
Metadata = Annotated[
    dict[Annotated[str, AfterValidator(_metadata_name)], HeaderValue], Field(max_length=64), AfterValidator(_metadata)
]


class TlsBody(Body):
    """How the connection is secured."""

    ca: Pem | None = Field(
        default=None, description="The authorities to trust instead of the system's.", examples=[{"$secret": "our-ca"}]
    )
    certificate: Pem | None = Field(
        default=None, description="The certificate to show, with `key`.", examples=[{"$secret": "client-certificate"}]
    )
    key: Pem | None = Field(default=None, description="Its private key.", examples=[{"$secret": "client-key"}])
    server_name: Annotated[str, AfterValidator(_server_name)] | None = Field(
        default=None, description="The name in the server's certificate. Default: the host.", examples=[_A_NAME]
    )

    @model_validator(mode="after")
    def _both(self) -> "TlsBody":
        if (self.certificate is None) != (self.key is None):
            raise sentence("`certificate` and `key` belong together: give both, or neither.")
        return self


class GrpcBody(Body):
    """A unary call of a gRPC server."""

    connection: ConnectionName | None = Field(
        default=None, description="A connection, which has address, credentials and TLS.", examples=["billing"]
    )
    address: Annotated[str, AfterValidator(_address), Field(json_schema_extra={"maxLength": MAX_ADDRESS})] | None = (
        Field(
            default=None,
            description="The server, if there is no connection: its host and port.",
            examples=[AN_ADDRESS],
        )
    )
    method: Annotated[str, AfterValidator(parse_method), Field(json_schema_extra={"maxLength": MAX_METHOD})] = Field(
        description="The service with its package, and the method.", examples=[A_METHOD]
    )
    metadata: Metadata = Field(
        default_factory=dict,
        description="Metadata to send, in addition to those of ondot; base64 for names that end in -bin.",
        examples=[{"x-team": "bi"}],
    )
    tls: Annotated[
        TlsBody | None,
        BeforeValidator(_tls),
        WithJsonSchema({"anyOf": [{"type": "boolean"}, {"type": "object"}]}),
    ] = Field(
        default_factory=TlsBody,
        description="true: TLS by the system's authorities; false: none; or `ca`, `certificate`, `key`, `server_name`.",
        examples=[True],
    )
    descriptor_set: Annotated[str, Field(max_length=MAX_DESCRIPTOR_SET)] | None = Field(
        default=None,
        description="Base64 of a FileDescriptorSet with the method. Default: the server's reflection describes it.",
        examples=["Cgxncm..."],
    )

    @model_validator(mode="after")
    def _one_server(self) -> "GrpcBody":
        if (self.connection is None) == (self.address is None):
            raise sentence(f'`grpc` takes exactly one of `connection` and `address`, for example "{AN_ADDRESS}".')
        if self.connection is not None and self.tls != TlsBody():
            raise sentence("The connection says how it is secured: leave `tls` out.")
        return self


def grpc_target_of(body: GrpcBody) -> GrpcTarget:
    tls = body.tls
    secured = {} if tls is None else {name: getattr(tls, field) for field, name in TLS_HEADERS.items()}
    return GrpcTarget(
        connection=body.connection,
        address=body.address or "",
        method=body.method,
        headers={**body.metadata, **{name: value for name, value in secured.items() if value is not None}},
        tls=tls is not None,
        server_name=None if tls is None else tls.server_name,
        descriptor_set=body.descriptor_set,
    )


class GrpcOut(TypedDict):
    connection: str | None
    address: str | None
    method: str
    metadata: dict[str, str | dict[str, str]]
    tls: bool | dict[str, str | dict[str, str]]
    descriptor_set: str | None


def render_grpc(target: GrpcTarget) -> GrpcOut:
    shown = {
        name: value.render() if isinstance(value, Hidden) else MASK if is_sensitive(name) else value
        for name, value in target.headers.items()
    }
    tls = {field: shown.pop(name) for field, name in TLS_HEADERS.items() if name in shown}
    if target.server_name is not None:
        tls["server_name"] = target.server_name
    return {
        "connection": target.connection,
        "address": target.address or None,
        "method": target.method,
        "metadata": shown,
        "tls": tls or target.tls,
        "descriptor_set": target.descriptor_set,
    }
