"""The brokers of a world without a network: none. A publish fails, and says how to allow it."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Final

from ondot.model.addresses import Reach
from ondot.model.broker import BrokerAddress, Place
from ondot.ports.publisher import Answer, Message, Publisher, Refusal

_NO_NETWORK: Final = Refusal("connect", "A world has no network: open it with `network=True`.")


class OfflinePublishers:
    @asynccontextmanager
    async def use(self, _address: BrokerAddress, _reach: Reach) -> AsyncIterator[Publisher]:
        yield _Offline()

    async def close(self) -> None:
        return


class _Offline:
    async def publish(self, _place: Place, messages: Sequence[Message], *, within_s: float) -> list[Answer]:
        return [_NO_NETWORK for _ in messages]

    async def check(self, *, within_s: float) -> Refusal | None:
        return _NO_NETWORK

    async def close(self) -> None:
        return
