"""Whether an error is retried (E4): the job decides over the target.

A target judges by kind: a 503 may pass, a 404 will not. A job may know better, and names errors:

    "503"  "5xx"                         an HTTP status, a class of them
    "timeout"  "connect_timeout"         an error's code, as the attempt shows it
    "ValueError"  "shop.errors.Closed"   an exception or a base class of it, with its module or without
    "3"  "SIGKILL"                       how a program ended: exit code or signal

`never_on` wins over `retry_on`, and both over the target.
"""

from ondot.model.outcome import Failed
from ondot.model.retry import Retry


def retryable(retry: Retry, failed: Failed) -> bool:
    if not retry.never_on and not retry.retry_on:
        return failed.retryable
    names = names_of(failed)
    if any(_means(word, names) for word in retry.never_on):
        return False
    return failed.retryable or any(_means(word, names) for word in retry.retry_on)


def names_of(failed: Failed) -> frozenset[str]:
    """All names of an error that a job may use."""
    facts = failed.error.facts
    names = {failed.error.code, *map(str, facts.get("types", ()))}
    names |= {str(facts[fact]) for fact in ("type", "status", "exit_code", "signal") if fact in facts}
    status = facts.get("status")
    if isinstance(status, int):
        names |= {f"{status // 100}xx", f"{status // 100}XX"}
    return frozenset(names)


def _means(word: str, names: frozenset[str]) -> bool:
    return bool(word) and (word in names or any(name.endswith(f".{word}") for name in names))
