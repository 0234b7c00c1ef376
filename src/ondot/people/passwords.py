"""Passwords as argon2id hashes (T1), computed in threads of their own, a few at a time.

A hash takes 19 MiB and tens of milliseconds on purpose. So two run at once and a few wait; more are refused with 429,
because an attacker must not use up the memory and the processor of the API. A wrong password, an unknown address and a
user without a password take the same time: each computes one hash.
"""

import asyncio
import secrets
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Final, TypeVar

from argon2 import PasswordHasher, Type
from argon2.exceptions import InvalidHashError, VerificationError

from ondot.model.errors import TooManySignIns
from ondot.model.sign_in import MAX_PASSWORD, normalize_password

THREADS: Final = 2
MAX_WAITING: Final = 30
MEMORY_KIB: Final = 19 * 1024
ROUNDS: Final = 2

Result = TypeVar("Result")


class Passwords:
    def __init__(self) -> None:
        self._hasher = PasswordHasher(time_cost=ROUNDS, memory_cost=MEMORY_KIB, parallelism=1, type=Type.ID)
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="password")
        self._pending = 0
        self._nobody: str | None = None
        """A hash that no password has."""

    async def hash(self, password: str) -> str:
        return await self._run(partial(self._hasher.hash, normalize_password(password)))

    async def verify(self, stored: str | None, password: str) -> bool:
        """Whether it is the password. Without a stored hash: no, in the same time."""
        return await self._run(partial(self._verify, stored, normalize_password(password)))

    def is_outdated(self, stored: str) -> bool:
        """Whether the hash was made with other parameters than those of this release."""
        return self._hasher.check_needs_rehash(stored)

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _verify(self, stored: str | None, password: str) -> bool:
        if self._nobody is None:
            self._nobody = self._hasher.hash(secrets.token_urlsafe(32))
        try:
            self._hasher.verify(stored or self._nobody, password[: MAX_PASSWORD + 1])
        except (VerificationError, InvalidHashError):
            return False
        return stored is not None

    async def _run(self, call: "partial[Result]") -> Result:
        if self._pending >= THREADS + MAX_WAITING:
            raise TooManySignIns("Too many people sign in right now. Try again in a moment.", retry_after_s=2)
        self._pending += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self._threads, call)
        finally:
            self._pending -= 1
