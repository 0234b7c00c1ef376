"""Every error that ondot raises on purpose, with a stable code.

    OndotError
    ├── InvalidRequest        the caller's input
    │   ├── NotJson             400  the body could not be read as JSON at all
    │   ├── InvalidBody         422  fields with faults, each with a JSON pointer
    │   │   └── InvalidSchedule      a schedule that cannot be read, or never fires
    │   ├── InvalidParameters   422  of the query or a header
    │   ├── KeyReused           422  an idempotency key with another body
    │   └── TooLarge            413
    ├── Unauthorized          401  no API key, or one that is not known
    │   └── TooManyWrongKeys  429  an address keeps sending wrong ones
    ├── Forbidden             403  another site's page or a proxy, where no key is asked for
    ├── NotFound              404
    ├── Conflict              409  the state does not allow it
    ├── PreconditionFailed    412  If-Match names an older version
    ├── QueueFull             429  so much waits in a pool that no more is taken for now
    ├── Unavailable           503  the database is away; try again
    │   ├── Held              503  it may lack what was acknowledged: nothing is begun until a person has looked
    │   └── Busy              503  as many large bodies are being read as may be at once
    └── Misconfigured              this installation: settings, schema, embedded server

A code is a promise (`urn:ondot:problem:<code>`); a message says what to do. Facts are fields, so that logs and
answers can carry them apart from the sentence. A refusal that is expected, such as the completion of a stale worker,
is a value and not in this tree.
"""

from dataclasses import dataclass
from typing import ClassVar


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing that is wrong with a body: where (a JSON pointer) and what to do about it."""

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


class InvalidParameters(InvalidRequest):
    code = "invalid-parameters"
    title = "The parameters are not valid"


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


class Forbidden(OndotError):
    code = "forbidden"
    title = "The request is refused"


class NotFound(OndotError):
    code = "not-found"
    title = "There is no such thing"


class Conflict(OndotError):
    code = "conflict"
    title = "The state does not allow it"


class PreconditionFailed(OndotError):
    code = "precondition-failed"
    title = "It was changed by someone else"


class QueueFull(OndotError):
    code = "queue-full"
    title = "The queue is full"


class Unavailable(OndotError):
    code = "unavailable"
    title = "The database is away"


class Held(Unavailable):
    code = "held"
    title = "Nothing is begun until a person has looked"


class Busy(Unavailable):
    code = "busy"
    title = "Too many large bodies are being read"


class Misconfigured(OndotError):
    code = "misconfigured"
    title = "This installation cannot run as it is"
