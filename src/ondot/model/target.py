"""What one attempt calls: an HTTP address, a function of a worker, or a program."""

from msgspec import Struct

from ondot.model.secret import Hidden


class HttpTarget(Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="kind", tag="http"):
    url: str
    method: str = "POST"
    headers: dict[str, str | Hidden] = {}
    connect_timeout_s: float | None = None
    first_byte_timeout_s: float | None = None
    follow_redirects: bool = False
    only_public: bool = False
    """The job was written by a caller without the scope `private-targets`."""


class FunctionTarget(Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="kind", tag="function"):
    name: str


class ShellTarget(Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="kind", tag="shell"):
    command: tuple[str, ...]


AttemptTarget = HttpTarget | FunctionTarget | ShellTarget
