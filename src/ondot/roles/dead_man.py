"""The dead man's switch (O4): a call each minute to an address outside, as long as ondot does its work.

A monitor that hears nothing for a few minutes raises the alarm: also when PostgreSQL, this machine or its network is
gone, and nothing here can send a message any more. Whether all is well is decided as for `/readyz`.
"""

import time
from http import HTTPStatus
from typing import Final

import aiohttp

from ondot import __version__
from ondot.flow.readiness import read_readiness
from ondot.store.database import Database
from ondot.telemetry.log import get_logger

CALL_EVERY_S: Final = 60.0
LOOK_EVERY_S: Final = 1.0
"""Whether it is on duty and due: a scheduler that takes over calls at once."""
ANSWERS_WITHIN_S: Final = 10.0

log = get_logger()


class DeadMan:
    def __init__(self, database: Database, url: str) -> None:
        self._database = database
        self._url = url
        self._is_away = False
        self._next_s = 0.0

    async def one_pass(self) -> int:
        """Call if a minute is over and all is well. The address is a secret, so that no log has it."""
        if time.monotonic() < self._next_s:
            return 0
        self._next_s = time.monotonic() + CALL_EVERY_S
        async with self._database.connection() as connection:
            readiness = await read_readiness(self._database, connection)
        if not readiness.is_ready:
            log.warning("dead_man.silent", lag_s=round(readiness.due.lag_s, 3), held=readiness.held)
            return 0
        why = await self._call()
        if why is not None and not self._is_away:
            log.warning("dead_man.away", why=why)
        self._is_away = why is not None
        return 0

    async def _call(self) -> str | None:
        """Why the call failed; None: it was answered."""
        timeout = aiohttp.ClientTimeout(total=ANSWERS_WITHIN_S)
        headers = {"user-agent": f"ondot/{__version__}"}
        try:
            async with (
                aiohttp.ClientSession(timeout=timeout, headers=headers) as session,
                session.get(self._url) as answer,
            ):
                return None if answer.status < HTTPStatus.BAD_REQUEST else f"HTTP status {answer.status}"
        except (aiohttp.ClientError, OSError, TimeoutError, ValueError) as error:
            return type(error).__name__
