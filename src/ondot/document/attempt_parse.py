"""From what an attempt calls, and what follows one that failed, to the model (E3, E4)."""

from typing import Final, assert_never
from urllib.parse import urlsplit

from ondot.document.attempt_body import RetryBody, TargetBody
from ondot.model.job import FunctionTarget, HttpTarget, ShellTarget, TargetSpec
from ondot.model.retry import Retry

MAX_NAME: Final = 200


def target_of(body: TargetBody) -> TargetSpec:
    if body.http is not None:
        return HttpTarget(
            url=body.http.url,
            method=body.http.method,
            headers=body.http.headers,
            connect_timeout_s=body.http.connect_timeout,
            first_byte_timeout_s=body.http.first_byte_timeout,
        )
    if body.function is not None:
        return FunctionTarget(name=body.function)
    assert body.shell is not None, "check_kinds has seen to it that there is one"
    return ShellTarget(command=tuple(body.shell.command))


def name_of(target: TargetSpec) -> str:
    """The name of a job whose creator gave none: what it calls, without what may be secret in an address."""
    match target:
        case FunctionTarget():
            return target.name
        case HttpTarget():
            parts = urlsplit(target.url)
            return f"{parts.hostname}{parts.path}"[:MAX_NAME]
        case ShellTarget():
            return target.command[0][:MAX_NAME]
        case _:
            assert_never(target)


def retry_of(body: RetryBody) -> Retry:
    return Retry(
        max_retries=body.max_retries,
        backoff=body.backoff,
        initial_s=body.initial,
        factor=body.factor,
        max_s=body.max,
        jitter=body.jitter,
        delays_s=tuple(body.delays),
        max_worker_losses=body.max_worker_losses,
        retry_on=tuple(body.retry_on),
        never_on=tuple(body.never_on),
    )
