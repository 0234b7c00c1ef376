"""Every error that ondot raises on purpose, with a stable code.

    OndotError
    ├── InvalidRequest        the caller's input
    │   ├── NotJson             400  the body is not JSON
    │   ├── InvalidBody         422  fields with errors, each with a JSON pointer
    │   │   ├── InvalidSchedule      a schedule that cannot be parsed, or never fires
    │   │   └── InvalidGraph    400  a cycle, or a parent that does not exist
    │   ├── InvalidParameters   422  of the query or a header
    │   │   └── InvalidQuery         a search that cannot be parsed, with the position
    │   ├── KeyReused           422  an idempotency key with another body
    │   └── TooLarge            413
    ├── Unauthorized          401  no API key, or an unknown one
    │   ├── TooManyWrongKeys  429  an address keeps sending wrong keys
    │   ├── TooManySignIns    429  too many failed tries to sign in
    │   └── WrongPassword     401  or an unknown e-mail address
    ├── Forbidden             403  another site's page or a proxy, where no key is required
    ├── NotFound              404
    ├── Conflict              409  the state does not allow it
    │   └── TenantSuspended   409  the tenant can be read, and not changed
    ├── NoSecretKey           409  the master key of secrets is missing, or another one is needed
    ├── PreconditionFailed    412  If-Match names an older version
    ├── QueueFull             429  too much work waits in a pool
    ├── QuotaExceeded         429  a quota of the tenant is used up for now
    ├── Unavailable           503  the database cannot be reached; try again
    │   ├── DatabaseHeld      503  it may lack acknowledged work: nothing starts until a person accepts it
    │   └── Busy              503  too many large bodies are being read at once
    └── Misconfigured              this installation: settings, schema, embedded server

A code is stable (`urn:ondot:problem:<code>`); a message states what to do. Facts are fields, so that logs and responses
can carry them beside the sentence. An expected refusal, such as the completion of a stale worker, is a value and not an
error.
"""

from dataclasses import dataclass
from typing import ClassVar


@dataclass(frozen=True, slots=True)
class Fault:
    """One error in a body: where (a JSON pointer) and what to do about it."""

    pointer: str
    message: str


class OndotError(Exception):
    code: ClassVar[str] = "error"
    title: ClassVar[str] = "Something went wrong"

    def __init__(self, message: str, **facts: object) -> None:
        super().__init__(message)
        self.message = message
        self.facts = facts


class InvalidRequest(OndotError):
    code = "invalid-request"
    title = "The request is not valid"


class NotJson(InvalidRequest):
    code = "not-json"
    title = "The body is not JSON"


class InvalidBody(InvalidRequest):
    code = "invalid-body"
    title = "The body is not valid"

    def __init__(self, message: str, faults: tuple[Fault, ...] = (), **facts: object) -> None:
        super().__init__(message, **facts)
        self.faults = faults


class InvalidSchedule(InvalidBody):
    code = "invalid-schedule"
    title = "The schedule is not valid"


class InvalidGraph(InvalidBody):
    code = "invalid-graph"
    title = "The graph is not valid"


class InvalidParameters(InvalidRequest):
    code = "invalid-parameters"
    title = "The parameters are not valid"


class InvalidQuery(InvalidParameters):
    code = "invalid-query"
    title = "The search cannot be parsed"


class KeyReused(InvalidRequest):
    code = "idempotency-key-reused"
    title = "The idempotency key was used with another body"


class TooLarge(InvalidRequest):
    code = "too-large"
    title = "The body is too large"


class Unauthorized(OndotError):
    code = "unauthorized"
    title = "An API key is needed"


class TooManyWrongKeys(Unauthorized):
    code = "too-many-wrong-keys"
    title = "Too many wrong API keys"


class TooManySignIns(Unauthorized):
    code = "too-many-sign-ins"
    title = "Too many tries to sign in"


class WrongPassword(Unauthorized):
    code = "wrong-password"
    title = "You are not signed in"


class Forbidden(OndotError):
    code = "forbidden"
    title = "The request is refused"


class NotFound(OndotError):
    code = "not-found"
    title = "Not found"


class Conflict(OndotError):
    code = "conflict"
    title = "The state does not allow it"


class TenantSuspended(Conflict):
    code = "tenant-suspended"
    title = "The tenant is suspended"


class NoSecretKey(OndotError):
    """This process has no master key, or not the one that a data key was wrapped with."""

    code = "no-secret-key"
    title = "The master key of secrets is missing"


class PreconditionFailed(OndotError):
    code = "precondition-failed"
    title = "It was changed by someone else"


class QueueFull(OndotError):
    code = "queue-full"
    title = "The queue is full"


class QuotaExceeded(OndotError):
    code = "quota-exceeded"
    title = "A quota of the tenant is used up"


class Unavailable(OndotError):
    code = "unavailable"
    title = "The database cannot be reached"


class DatabaseHeld(Unavailable):
    code = "held"
    title = "Nothing starts until a person accepts the database"


class Busy(Unavailable):
    code = "busy"
    title = "Too many large bodies are being read"


class Misconfigured(OndotError):
    code = "misconfigured"
    title = "This installation cannot run as it is"
