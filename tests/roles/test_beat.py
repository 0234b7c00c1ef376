"""The heartbeat's thread, on a database on which nothing may start."""

import asyncio
from typing import Any

import pytest

from ondot.roles import beat
from ondot.roles.beat import BeatThread
from ondot.roles.pulse import Pulse, Stall
from ondot.store.connection import Connection
from ondot.store.database import connect
from tests.proves import proves
from tests.servers import connected, settings_for


async def never_stalls(_connection: Connection, _stall: Stall, _stalled_s: float) -> None:
    raise AssertionError("the loop of this test moves")


@proves("P1", "P3")
async def test_a_process_that_may_start_nothing_and_loses_the_database_starts_nothing_until_a_beat_is_confirmed(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    tries = 0

    async def cut_off(*_args: object, **_how: object) -> Any:
        nonlocal tries
        tries += 1
        raise ConnectionRefusedError

    async def one_beat(connection: Connection) -> float:
        await connection.fetchval("SELECT 1")
        return 60.0

    thread = BeatThread(
        settings_for(database_url, allow_unsafe_database=False),
        one_beat,
        every_s=2.0,
        name="test",
        pulse=Pulse(60.0),
        one_report=never_stalls,
    )
    thread.start()
    try:
        async with connected(database_url) as connection, asyncio.timeout(30):
            while not await connection.fetchval("SELECT count(*) FROM ondot.lineage"):
                await asyncio.sleep(0)
            await connection.execute("UPDATE ondot.lineage SET held_at = ondot.clock(), held_why = 'for a test'")
            while not thread.is_held:
                thread.beat_now()
                await asyncio.sleep(0)
            monkeypatch.setattr(beat, "connect", cut_off)
            while tries < 2:
                thread.beat_now()
                await asyncio.sleep(0)
            assert thread.is_held
            await connection.execute("UPDATE ondot.lineage SET held_at = NULL, held_why = NULL")
            monkeypatch.setattr(beat, "connect", connect)
            while thread.is_held:
                thread.beat_now()
                await asyncio.sleep(0)
    finally:
        await thread.stop()


@proves("P13")
async def test_the_thread_keeps_beating_when_something_in_it_fails(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    beats = 0

    async def one_beat(_connection: Connection) -> float:
        nonlocal beats
        beats += 1
        if beats == 1:
            raise ValueError("for a test")
        return 60.0

    def fails(_self: BeatThread, _error: Exception) -> float:
        raise RuntimeError("in what was to see to it")

    monkeypatch.setattr(BeatThread, "_note_failure", fails)
    thread = BeatThread(
        settings_for(database_url), one_beat, every_s=2.0, name="test", pulse=Pulse(60.0), one_report=never_stalls
    )
    thread.start()
    try:
        async with asyncio.timeout(30):
            while beats < 2:
                await asyncio.sleep(0.01)
    finally:
        await thread.stop()
