"""For programs that use ondot: register functions, enqueue and schedule them, talk to the API.

app          Ondot: the functions of an application, and their schedules
options      what a function may ask for, and its keys; checks: what each option may be
handler      one function: called as itself, or run by a worker
context      what a running function knows and says
decisions    what it may raise to decide what follows
transaction  what it enqueues and completes together with a transaction of its own
client       the HTTP API as methods; the command line uses it too
requests     how it reaches a server
"""

from ondot.sdk.app import Ondot
from ondot.sdk.client import Client
from ondot.sdk.context import Context
from ondot.sdk.decisions import GiveUp, RetryAt, RetryIn
from ondot.sdk.handler import Handler
from ondot.sdk.transaction import Stale

__all__ = ["Client", "Context", "GiveUp", "Handler", "Ondot", "RetryAt", "RetryIn", "Stale"]
