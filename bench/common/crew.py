"""Processes that start at the same instant: each prints `ready`, waits for a line, works, and prints the result."""

import asyncio


async def crew_of(processes: int, *command: str) -> list[bytes]:
    """Run this command in several processes at once; return what each printed after `ready`."""
    pipe = asyncio.subprocess.PIPE
    started = [await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe) for _ in range(processes)]
    try:
        for process in started:
            assert process.stdout is not None
            if (await process.stdout.readline()).strip() != b"ready":
                raise RuntimeError(f"{command[1]} did not start. See its message above.")
        outputs = await asyncio.gather(*(process.communicate(b"go\n") for process in started))
        return [out for out, _ in outputs]
    finally:
        for process in started:
            if process.returncode is None:
                process.kill()
                await process.wait()
