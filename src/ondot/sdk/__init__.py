"""For programs that use ondot: register functions, enqueue and schedule them, talk to the API.

app          Ondot: the functions of an application, and their schedules
options      the options of a function, checked by `document`, and its keys
workflow     the steps of a workflow, described by a function; values: what is known only when it runs
workflow_handler  one workflow: checked at import, started from Python or by a schedule; runs: handles of its runs
handle       what enqueue returns: a job and the result that it will have; awaited: how programs wait for it
handler      one function: called as itself, or run by a worker
arguments    what a function takes and returns, by annotation; codecs: how one type travels as JSON
context      the attempt that a function runs in: progress, checkpoint, log, cancellation
decisions    exceptions by which a function decides what follows
transaction  jobs that are enqueued in a transaction of the caller
client       the HTTP API as methods; the command line uses it, too
requests     requests over HTTP: connections, timeouts, retries
"""

from ondot.sdk.app import Ondot
from ondot.sdk.arguments import ArgumentError
from ondot.sdk.client import Client
from ondot.sdk.context import Context
from ondot.sdk.decisions import GiveUp, RetryAt, RetryIn
from ondot.sdk.handle import Handle, NotCommitted, NotSucceeded, ResultGone
from ondot.sdk.handler import BoundHandler, Handler
from ondot.sdk.runs import RunHandle, RunNotSucceeded
from ondot.sdk.transaction import Stale
from ondot.sdk.workflow import Workflow

__all__ = [
    "ArgumentError",
    "BoundHandler",
    "Client",
    "Context",
    "GiveUp",
    "Handle",
    "Handler",
    "NotCommitted",
    "NotSucceeded",
    "Ondot",
    "ResultGone",
    "RetryAt",
    "RetryIn",
    "RunHandle",
    "RunNotSucceeded",
    "Stale",
    "Workflow",
]
