"""What one attempt calls: an HTTP address, a function of a worker, a program, or a method of a gRPC server.

`RemoteTarget`s are those whose calls leave the worker for a host. They share what that needs: `headers`, of which some
are credentials, `only_public`, and an `origin` that credentials were given for.
"""

from msgspec import Struct

from ondot.model.grpc import parse_address
from ondot.model.secret import Hidden
from ondot.model.urls import host_of, origin_of


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
    address: str
    """Host and port."""
    method: str
    """pkg.Service/Method"""
    headers: dict[str, str | Hidden] = {}
    """Its metadata, and what `model.grpc.TLS_HEADERS` names."""
    tls: bool = True
    server_name: str | None = None
    """The name in the server's certificate, if it is not the host."""
    descriptor_set: str | None = None
    """Base64 of a FileDescriptorSet. None: the server's reflection describes the method."""
    only_public: bool = False

    @property
    def host(self) -> str:
        return parse_address(self.address)[0]

    @property
    def origin(self) -> object:
        return ("grpcs" if self.tls else "grpc", *parse_address(self.address))


class FunctionTarget(Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="kind", tag="function"):
    name: str


class ShellTarget(Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="kind", tag="shell"):
    command: tuple[str, ...]


RemoteTarget = HttpTarget | GrpcTarget
AttemptTarget = RemoteTarget | FunctionTarget | ShellTarget
