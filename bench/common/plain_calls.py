"""Calls a second of plain aiohttp: as many processes and connections as a worker has, and nothing but the calls.

As a command it is one process: it says `ready`, begins when it reads a line, and prints how many calls were answered.
"""

import asyncio
import sys
import time
from pathlib import Path
from uuid import uuid4

import aiohttp
import uvloop


async def plain_calls(url: str, seconds: float, processes: int, connections: int) -> float:
    """So many processes at once, from the same instant on; gives calls a second."""
    command = [sys.executable, str(Path(__file__).resolve()), url, str(seconds), str(connections)]
    pipe = asyncio.subprocess.PIPE
    started = [await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe) for _ in range(processes)]
    try:
        for process in started:
            assert process.stdout is not None
            if (await process.stdout.readline()).strip() != b"ready":
                raise RuntimeError("a process of plain calls did not begin: see its message above")
        told = await asyncio.gather(*(process.communicate(b"go\n") for process in started))
        return sum(int(out) for out, _ in told) / seconds
    finally:
        for process in started:
            if process.returncode is None:
                process.kill()
                await process.wait()


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
