"""Wraps and unwraps the data keys of tenants (T5): with master keys of the settings, or by a key management service.

A data key encrypts the secrets of one tenant; only its wrapped form is stored. The rotation of a master key wraps data
keys again and leaves the secrets as they are. No implementation logs a key or has one in an error.
"""

from typing import Protocol


class Kms(Protocol):
    @property
    def master(self) -> str:
        """The id of the master key that wraps. It may be shown."""

    def knows(self, master: str) -> bool:
        """Whether a data key that was wrapped with this master key can be unwrapped."""

    async def wrap(self, key: bytes, context: bytes) -> bytes:
        """`context` must be the same when it is unwrapped. Raises `Unavailable` if the service does not answer."""

    async def unwrap(self, master: str, wrapped: bytes, context: bytes) -> bytes:
        """Raises `NoSecretKey`, or `Unavailable`."""
