"""Calls per second of plain aiohttp: as many processes and connections as a worker has, and nothing but the calls.

As a command it is one process: it prints `ready`, starts when it reads a line, and prints how many calls were answered.
"""

import asyncio
import sys
import time
from pathlib import Path
from uuid import uuid4

import aiohttp
import uvloop
from crew import crew_of


async def plain_calls(url: str, seconds: float, processes: int, connections: int) -> float:
    """Run this many processes at once, from the same instant on; return calls per second."""
    command = (sys.executable, str(Path(__file__).resolve()), url, str(seconds), str(connections))
    return sum(int(out) for out in await crew_of(processes, *command)) / seconds


async def _one_process(url: str, seconds: float, connections: int) -> None:
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector, cookie_jar=aiohttp.DummyCookieJar()) as session:
        print("ready", flush=True)
        sys.stdin.readline()
        began_s = time.perf_counter()

        async def go() -> int:
            count = 0
            while True:
                headers = {"content-type": "application/json", "webhook-id": str(uuid4())}
                async with session.post(url, data=b"null", headers=headers) as response:
                    await response.read()
                if time.perf_counter() - began_s > seconds:
                    return count
                count += 1

        print(sum(await asyncio.gather(*(go() for _ in range(connections)))), flush=True)


if __name__ == "__main__":
    uvloop.run(_one_process(sys.argv[1], float(sys.argv[2]), int(sys.argv[3])))
