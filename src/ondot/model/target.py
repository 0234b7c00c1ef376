"""What one attempt calls: an HTTP address, a function of a worker, a program, a method of a gRPC server, or a broker.

`RemoteTarget`s are those whose calls leave the worker for a host. They share what that needs: `headers`, of which some
are credentials, `only_public`, and an `origin` that credentials were given for.
"""

from typing import Final

from msgspec import Struct, structs

from ondot.model.broker import BrokerAddress, Mechanism, Place, kind_of_place, parse_broker
from ondot.model.grpc import parse_address
from ondot.model.secret import Hidden
from ondot.model.urls import host_of, origin_of

PASSWORD_HEADER: Final = "ondot-broker-password"  # noqa: S105
"""Among the headers of a publish target: it is sealed and opened as those are, and no job can give such a header."""


class HttpTarget(Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="kind", tag="http"):
    url: str
    method: str = "POST"
    headers: dict[str, str | Hidden] = {}
    connect_timeout_s: float | None = None
    first_byte_timeout_s: float | None = None
    follow_redirects: bool = False
    only_public: bool = False
    """The job was written by a caller without the scope `private-targets`."""

    @property
    def host(self) -> str:
        return host_of(self.url)

    @property
    def origin(self) -> object:
        """What its credentials were given for: scheme, host and port."""
        return origin_of(self.url)


class GrpcTarget(Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="kind", tag="grpc"):
    method: str
    """pkg.Service/Method"""
    connection: str | None = None
    address: str = ""
    """Host and port, if they are not a connection's."""
    headers: dict[str, str | Hidden] = {}
    """Its metadata, and what `model.grpc.TLS_HEADERS` names."""
    tls: bool = True
    server_name: str | None = None
    """The name in the server's certificate, if it is not the host."""
    descriptor_set: str | None = None
    """Base64 of a FileDescriptorSet. None: the server's reflection describes the method."""
    only_public: bool = False

    @property
    def place(self) -> str:
        """The server, for people."""
        return self.address if self.connection is None else f"connection {self.connection}"

    @property
    def host(self) -> str:
        return parse_address(self.address)[0] if self.connection is None else f"the connection {self.connection}"

    @property
    def origin(self) -> object:
        if self.connection is not None:
            return self.connection, None
        return ("grpcs" if self.tls else "grpc", *parse_address(self.address))


class FunctionTarget(Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="kind", tag="function"):
    name: str


class ShellTarget(Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="kind", tag="shell"):
    command: tuple[str, ...]


class PublishTarget(Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="kind", tag="publish"):
    place: Place
    connection: str | None = None
    address: str | None = None
    """Of the broker, if it is not a connection's."""
    username: str | None = None
    tls: bool = False
    mechanism: Mechanism = "PLAIN"
    key: str | None = None
    headers: dict[str, str | Hidden] = {}
    """Of the message; and the broker's password, as `PASSWORD_HEADER`."""
    only_public: bool = False

    @property
    def host(self) -> str:
        """The broker's; several hosts are no host that a secret may be limited to."""
        if self.address is None:
            return f"the connection {self.connection}"
        return ",".join(sorted({server.host.lower() for server in self._broker.servers}))

    @property
    def origin(self) -> object:
        return (self.connection, None) if self.address is None else (self._broker, self.tls)

    @property
    def _broker(self) -> BrokerAddress:
        return parse_broker(kind_of_place(self.place), self.address or "")

    def broker(self) -> BrokerAddress:
        """Its own address with its credentials, which are filled in."""
        password = self.headers.get(PASSWORD_HEADER)
        if isinstance(password, Hidden):
            # Never a call without its credentials.
            raise ValueError("the password of the broker is not known to this worker")  # noqa: TRY004
        address = self._broker
        return structs.replace(
            address,
            username=self.username,
            password=password,
            tls=address.tls or self.tls,
            mechanism=self.mechanism,
        )


RemoteTarget = HttpTarget | GrpcTarget | PublishTarget
ConnectedTarget = GrpcTarget | PublishTarget
"""Those that may name a connection."""
AttemptTarget = RemoteTarget | FunctionTarget | ShellTarget


def connection_kind(target: ConnectedTarget) -> str:
    """The kind of the connections that it may name."""
    return "grpc" if isinstance(target, GrpcTarget) else kind_of_place(target.place)
