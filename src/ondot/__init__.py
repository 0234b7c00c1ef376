"""ondot: a distributed job scheduler on PostgreSQL.

    from ondot import Ondot, Context
    from ondot import ArgumentError, GiveUp, Handle, RetryAt, RetryIn, Stale, Workflow
    from ondot import NotCommitted, NotSucceeded, ResultGone, RunNotSucceeded

All are loaded when first asked for: the command line imports this package for its version alone.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ondot.sdk.app import Ondot
    from ondot.sdk.arguments import ArgumentError
    from ondot.sdk.context import Context
    from ondot.sdk.decisions import GiveUp, RetryAt, RetryIn
    from ondot.sdk.handle import Handle, NotCommitted, NotSucceeded, ResultGone
    from ondot.sdk.runs import RunNotSucceeded
    from ondot.sdk.transaction import Stale
    from ondot.sdk.workflow import Workflow

__version__ = "0.1.0"

__all__ = [
    "ArgumentError",
    "Context",
    "GiveUp",
    "Handle",
    "NotCommitted",
    "NotSucceeded",
    "Ondot",
    "ResultGone",
    "RetryAt",
    "RetryIn",
    "RunNotSucceeded",
    "Stale",
    "Workflow",
    "__version__",
]


def __getattr__(name: str) -> object:
    if name in __all__:
        import ondot.sdk

        return getattr(ondot.sdk, name)
    raise AttributeError(f"module 'ondot' has no attribute {name!r}")
