"""A receiver that is not ondot and keeps books: each call and each answer is a line of a file, flushed at once.

Its answers are a hash of the execution's id and the attempt, so that a run can be reproduced from its ids alone: most
calls get a 200, some a 500 or a 503 with Retry-After, some a slow answer. A URL with `percent` gets a 500 for so many
of 100 executions, whatever the attempt.
"""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import IO
from uuid import UUID

from aiohttp import web

from tests.faults.hostile import dice

FAILS_BELOW = 15
BUSY_BELOW = 20
SLOW_BELOW = 35
SLOW_S = 0.6


@dataclass(frozen=True, slots=True)
class Call:
    """A received call; `status` None: it was never answered."""

    execution_id: UUID
    attempt: int
    token: int
    at_s: float
    status: int | None
    job_id: UUID | None = None
    fire_at: datetime | None = None
    answered_s: float | None = None
    tenant: str | None = None
    """Whose call it is, if its URL names one."""


@dataclass(slots=True)
class Ledger:
    file: IO[str]
    url: str = ""

    async def receive(self, request: web.Request) -> web.Response:
        id_, attempt = request.headers["webhook-id"], int(request.headers["ondot-attempt"])
        entry = {
            "id": id_,
            "attempt": attempt,
            "token": int(request.headers["ondot-fencing-token"]),
            "job_id": request.headers["ondot-job-id"],
            "fire_at": request.headers["ondot-fire-at"],
            "tenant": request.query.get("tenant"),
        }
        self._write({"received": entry, "at_s": time.time()})
        chance = dice(id_, attempt)
        if BUSY_BELOW <= chance < SLOW_BELOW or "slow_s" in request.query:
            await asyncio.sleep(float(request.query.get("slow_s", SLOW_S)))
        status = 500 if chance < FAILS_BELOW else 503 if chance < BUSY_BELOW else 200
        if (percent := request.query.get("percent")) is not None:
            status = 500 if dice(id_, 0) < int(percent) else 200
        self._write({"answered": entry, "status": status, "at_s": time.time()})
        return web.json_response(
            {"attempt": attempt}, status=status, headers={"retry-after": "1"} if status == 503 else {}
        )

    def _write(self, line: dict[str, object]) -> None:
        if self.file.closed:
            return  # A call that outlived the run has no reader.
        self.file.write(json.dumps(line) + "\n")
        self.file.flush()


@asynccontextmanager
async def keeping_books(path: Path) -> AsyncIterator[Ledger]:
    with path.open("a") as file:
        ledger = Ledger(file)
        app = web.Application()
        app.router.add_post("/", ledger.receive)
        runner = web.AppRunner(app, shutdown_timeout=0.1, access_log=None)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        ledger.url = f"http://127.0.0.1:{runner.addresses[0][1]}/"
        try:
            yield ledger
        finally:
            await runner.cleanup()


def read_books(path: Path) -> Sequence[Call]:
    """The calls in the order of their arrival; two calls of one attempt are two."""
    calls: list[Call] = []
    open_calls: dict[tuple[str, int], list[int]] = {}
    for line in path.read_text().splitlines():
        entry = json.loads(line)
        if received := entry.get("received"):
            open_calls.setdefault((received["id"], received["attempt"]), []).append(len(calls))
            calls.append(
                Call(
                    UUID(received["id"]),
                    received["attempt"],
                    received["token"],
                    entry["at_s"],
                    None,
                    UUID(received["job_id"]),
                    datetime.fromisoformat(received["fire_at"]),
                    tenant=received.get("tenant"),
                )
            )
        else:
            answered = entry["answered"]
            number = open_calls[answered["id"], answered["attempt"]].pop(0)
            calls[number] = replace(calls[number], status=entry["status"], answered_s=entry.get("at_s"))
    return calls
