"""Refusals that all brokers share, and the certificates that a client trusts."""

import asyncio
import os
import ssl
from collections.abc import Awaitable
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from ondot.model.broker import BrokerAddress, Place
from ondot.ports.publisher import Refusal
from ondot.targets.addresses import PrivateAddress, UnknownHost
from ondot.targets.text import one_line

CONNECT_WITHIN_S: Final = 10.0
CLOSE_WITHIN_S: Final = 2.0


class NotConnected(Exception):
    """There is no connection: nothing was published."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(refusal.message)
        self.refusal = refusal


def not_connected(address: BrokerAddress, error: BaseException, timeout_s: float = CONNECT_WITHIN_S) -> Refusal:
    """There was no connection, so nothing was published."""
    match error:
        case PrivateAddress():
            return Refusal("private_address", str(error), is_retryable=False)
        case UnknownHost():
            return Refusal("dns", one_line(str(error)))
        case ssl.SSLError():
            return Refusal("tls", one_line(f"No secure connection to {address}: {error}"))
        case TimeoutError():
            return Refusal("connect_timeout", f"No connection to {address} within {timeout_s:g} s.")
        case OSError():
            reason = os.strerror(error.errno) if error.errno else str(error)
            return Refusal("connect", one_line(f"No connection to {address}: {reason}"))
    return Refusal("connect", one_line(f"No connection to {address}: {type(error).__name__}: {error}"))


def bad_credentials(address: BrokerAddress, answer: str) -> Refusal:
    message = f"{address} refused the user name or password: {answer}. Correct them in the connection or the secret."
    return Refusal("bad_credentials", one_line(message), is_retryable=False)


def not_acknowledged(address: BrokerAddress, place: Place, why: str) -> Refusal:
    """It was sent, and no answer came."""
    message = f"{address} did not acknowledge the message to {place}: {why}. It may be published all the same."
    return Refusal("publish_unknown", one_line(message), may_be_published=True)


def over_time(address: BrokerAddress, place: Place, within_s: float, *, was_sent: bool) -> Refusal:
    message = f"{address} did not acknowledge the message to {place} within its timeout of {within_s:g} s."
    sent = "It may be published all the same." if was_sent else "Nothing was sent."
    return Refusal("timeout", f"{message} {sent}", may_be_published=was_sent)


def tls_context(address: BrokerAddress) -> ssl.SSLContext:
    context = ssl.create_default_context(cadata=address.ca)
    if address.certificate and address.private_key:
        # The ssl module reads a client's certificate from files only.
        with TemporaryDirectory() as directory:
            both = Path(directory) / "client.pem"
            both.touch(mode=0o600)
            both.write_text(f"{address.certificate}\n{address.private_key}\n")
            context.load_cert_chain(both)
    return context


async def close_within(closing: Awaitable[object]) -> None:
    """A frozen server does not delay the end of this process, and a broken connection is closed already."""
    with suppress(Exception):
        async with asyncio.timeout(CLOSE_WITHIN_S):
            await closing
