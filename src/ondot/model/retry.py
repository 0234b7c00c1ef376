"""What follows a failed attempt or a lost worker (E4, E6): pure decisions, with two separate budgets.

`failures` counts against `max_retries`, `losses` against `max_worker_losses`. So the crash of a worker does not use up
the retries of the other work it ran, and work that kills its workers still ends as poison.
"""

from dataclasses import dataclass
from typing import Literal

from msgspec import Struct

SUSPECT_FROM = 2
"""An execution that has lost this many workers is a suspect: it runs in a child process, and after one more alone."""

SUSPECTS_SHARE = 8
"""One slot in this many of a worker goes to suspects."""

Backoff = Literal["exponential", "linear", "fixed", "listed"]


class Retry(Struct, frozen=True, kw_only=True, omit_defaults=True):
    max_retries: int = 3
    backoff: Backoff = "exponential"
    initial_s: float = 1.0
    factor: float = 2.0
    max_s: float = 3600.0
    jitter: bool = True
    delays_s: tuple[float, ...] = ()
    max_worker_losses: int = 3
    retry_on: tuple[str, ...] = ()
    """Error codes, exception types and HTTP statuses that are retried although by default they are not."""
    never_on: tuple[str, ...] = ()
    """Those that are not retried. It wins over `retry_on`."""


@dataclass(frozen=True, slots=True)
class RetryIn:
    """Try again after this long."""

    delay_s: float


@dataclass(frozen=True, slots=True)
class GiveUp:
    """No further attempt: the execution ends FAILED, with this reason."""

    reason: str


def backoff_s(retry: Retry, failures: int, random: float) -> float:
    """The delay after the n-th failure (from 1). `random` in [0, 1) spreads it fully: from nothing to the whole."""
    match retry.backoff:
        case "exponential":
            try:
                delay = retry.initial_s * retry.factor ** (failures - 1)
            except OverflowError:  # 2.0 ** 1024: far beyond the cap
                delay = retry.max_s if retry.initial_s else 0.0
        case "linear":
            delay = retry.initial_s * failures
        case "fixed":
            delay = retry.initial_s
        case "listed":
            delays = retry.delays_s or (retry.initial_s,)
            delay = delays[min(failures, len(delays)) - 1]
    delay = min(delay, retry.max_s)
    return delay * random if retry.jitter and retry.backoff != "listed" else delay


def after_failure(
    retry: Retry, failures: int, *, retryable: bool, retry_after_s: float | None, random: float
) -> RetryIn | GiveUp:
    """Decide on the n-th failure (from 1). The backoff is at least the receiver's `Retry-After`."""
    if not retryable:
        return GiveUp("errors of this kind are not retried")
    if failures > retry.max_retries:
        return GiveUp(_used_up(retry.max_retries))
    return RetryIn(max(backoff_s(retry, failures, random), retry_after_s or 0.0))


def _used_up(retries: int) -> str:
    if not retries:
        return "the job has no retries"
    return f"{retries} {'retry' if retries == 1 else 'retries'} used, none left"


def after_loss(retry: Retry, losses: int) -> RetryIn | GiveUp:
    """Decide on the n-th lost worker (from 1): back to the queue at once, until the budget is spent."""
    if losses > retry.max_worker_losses:
        return GiveUp(
            f"poison: {losses} workers were lost while they ran it (max_worker_losses is {retry.max_worker_losses})"
        )
    return RetryIn(0.0)


def free_for_suspects(slots: int, suspects: int) -> int:
    """How many more suspects a worker takes. More than its share may run: recovered work may be suspect too."""
    return max(max(slots // SUSPECTS_SHARE, 1) - suspects, 0)
