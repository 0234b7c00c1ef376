"""An attempt in a request: what it calls (E3), how long the parts of the call may take (E7), and its retries (E4)."""

from typing import Annotated, Any, Final, assert_never
from urllib.parse import urlsplit

from pydantic import Field, ValidationInfo, field_validator

from ondot.document.fields import (
    Argv,
    Body,
    Duration,
    ErrorNames,
    FunctionName,
    Headers,
    Method,
    SigningSecret,
    Url,
    sentence,
)
from ondot.document.grpc import GrpcBody, grpc_target_of
from ondot.document.publish import PublishBody, publish_target_of
from ondot.document.rules import LONGEST_ATTEMPT_S, LONGEST_WAIT_S, MAX_RETRIES
from ondot.document.structs import to_struct
from ondot.model.job import TargetSpec
from ondot.model.retry import Backoff, Retry
from ondot.model.signature import SIGNING_HEADER
from ondot.model.target import AttemptTarget, FunctionTarget, GrpcTarget, HttpTarget, PublishTarget, ShellTarget
from ondot.model.text import MAX_NAME
from ondot.model.workflow.spec import WorkflowTarget

_HTTP: Final = HttpTarget(url="")
_RETRY: Final = Retry()

AttemptDuration = Annotated[Duration, Field(gt=0, le=LONGEST_ATTEMPT_S)]


class HttpBody(Body):
    url: Url = Field(description="The address to call.", examples=["https://example.com/report"])
    method: Method = Field(default=_HTTP.method, description="The HTTP method.", examples=["POST"])
    headers: Headers = Field(
        default_factory=dict,
        description="Headers to send, in addition to those of ondot.",
        examples=[{"x-team": "bi"}],
    )
    signing_secret: SigningSecret | None = Field(
        default=None,
        description="The secret that signs its calls, or a reference to one; null: the secret of its host.",
        examples=[{"$secret": "hook"}],
    )
    connect_timeout: AttemptDuration | None = Field(
        default=None, description="How long it may take to connect.", examples=["5s"]
    )
    first_byte_timeout: AttemptDuration | None = Field(
        default=None, description="How long the first byte of the response may take.", examples=["30s"]
    )
    follow_redirects: bool = Field(
        default=_HTTP.follow_redirects,
        description="Follow up to 5 redirects. Another host gets no headers, signature or payload of the job.",
        examples=[True],
    )


class ShellBody(Body):
    command: Argv = Field(description="The program and its arguments.", examples=[["echo", "hello"]])


class AttemptTargetBody(Body):
    """What an attempt calls: exactly one of `http`, `function`, `shell`, `grpc`, `publish`."""

    http: HttpBody | None = Field(
        default=None, description="An HTTP call.", examples=[{"url": "https://example.com/report"}]
    )
    function: FunctionName | None = Field(
        default=None, description="A function that a worker has registered.", examples=["daily_report"]
    )
    shell: ShellBody | None = Field(default=None, description="A program.", examples=[{"command": ["echo", "hello"]}])
    grpc: GrpcBody | None = Field(
        default=None,
        description="A unary call of a gRPC server.",
        examples=[{"address": "billing.example.com:443", "method": "billing.v1.Invoices/Create"}],
    )
    publish: PublishBody | None = Field(
        default=None,
        description="A message to a broker.",
        examples=[{"redis": {"url": "redis://redis.example.com", "stream": "out"}}],
    )


class TargetBody(AttemptTargetBody):
    """What is called: exactly one of `http`, `function`, `shell`, `workflow`, `grpc`, `publish`."""

    workflow: Any = Field(
        default=None,
        description="Steps that depend on each other, with `on_failure` and `blocked_for`: see `POST /v1/workflows`.",
        examples=[{"steps": {"list": {"function": "list_files"}}}],
    )


RetryDuration = Annotated[Duration, Field(le=LONGEST_WAIT_S)]


class RetryBody(Body):
    """What happens after a failed attempt."""

    max_retries: int = Field(
        default=_RETRY.max_retries, ge=0, le=MAX_RETRIES, description="Attempts after the first.", examples=[3]
    )
    backoff: Backoff = Field(default=_RETRY.backoff, description="How the delay grows.", examples=["exponential"])
    initial: RetryDuration = Field(default=_RETRY.initial_s, description="The first delay.", examples=["1s"])
    factor: float = Field(default=_RETRY.factor, ge=1, le=100, description="For `exponential`.", examples=[2])
    max: RetryDuration = Field(default=_RETRY.max_s, description="The longest delay.", examples=["1h"])
    jitter: bool = Field(default=_RETRY.jitter, description="Spread the delays at random.", examples=[True])
    delays: list[RetryDuration] = Field(
        default_factory=list,
        max_length=100,
        description="For `listed`: the delays; the last one repeats.",
        examples=[["1s", "1m"]],
    )
    max_worker_losses: int = Field(
        default=_RETRY.max_worker_losses,
        ge=0,
        le=100,
        description="Lost workers after which it is given up as poison.",
        examples=[3],
    )
    retry_on: ErrorNames = Field(
        default_factory=list,
        description="Statuses, error codes and types of exceptions that are retried although they usually are not.",
        examples=[[404, "exit_code"]],
    )
    never_on: ErrorNames = Field(
        default_factory=list,
        description="Those that are never retried; this wins over `retry_on`.",
        examples=[["5xx", "ValueError"]],
    )

    @field_validator("never_on")
    @classmethod
    def _not_in_both(cls, never_on: list[str], info: ValidationInfo) -> list[str]:
        if both := [name for name in never_on if name in info.data.get("retry_on", ())]:
            raise sentence(f'"{both[0]}" is in both `retry_on` and `never_on`; leave it in one of them.')
        return never_on


def target_of(body: AttemptTargetBody) -> AttemptTarget:
    if body.http is not None:
        own = {} if body.http.signing_secret is None else {SIGNING_HEADER: body.http.signing_secret}
        return to_struct(HttpTarget, body.http, headers={**body.http.headers, **own}, only_public=False)
    if body.function is not None:
        return FunctionTarget(name=body.function)
    if body.grpc is not None:
        return grpc_target_of(body.grpc)
    if body.publish is not None:
        return publish_target_of(body.publish)
    assert body.shell is not None, "check_kinds has checked that there is one"
    return to_struct(ShellTarget, body.shell)


def name_of(target: TargetSpec) -> str:
    """The name of a job that was created without one: what it calls, without parts of an address that may be secret."""
    match target:
        case FunctionTarget():
            return target.name
        case HttpTarget():
            parts = urlsplit(target.url)
            return f"{parts.hostname}{parts.path}"[:MAX_NAME]
        case GrpcTarget():
            return f"{target.connection or target.host}/{target.method}"[:MAX_NAME]
        case ShellTarget():
            return target.command[0][:MAX_NAME]
        case PublishTarget():
            return f"publish to {target.place}"[:MAX_NAME]
        case WorkflowTarget():
            return "workflow"
        case _:
            assert_never(target)
