"""A worker in little, to be killed: runs the programs that standard input names, and prints what they say.

A line is the words of a program, in JSON, or `"fork"`: then it forks itself, as a function with multiprocessing would.
"""

import asyncio
import os
import signal
import sys

import msgspec
import uvloop

from ondot.model.target import ShellTarget
from ondot.targets.shell import ShellCaller
from tests.conformance.calls import Recorder, a_call


def show(*words: object) -> None:
    sys.stdout.write(" ".join(str(word) for word in words) + "\n")
    sys.stdout.flush()


class Aloud(Recorder):
    def say(self, stream: str, line: str) -> None:
        show(line)


async def main() -> None:
    caller, running = ShellCaller(allow=True), set()

    async def run(words: tuple[str, ...]) -> None:
        report = await caller.call(ShellTarget(command=words), a_call(Aloud(), timeout_s=1000))
        show("report", type(report).__name__)

    stdin = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(stdin), sys.stdin)
    while line := await stdin.readline():
        if (words := msgspec.json.decode(line)) != "fork":
            running.add(asyncio.create_task(run(tuple(words))))
        elif (pid := os.fork()) == 0:
            signal.pause()
        else:
            show("forked", pid)


if __name__ == "__main__":
    uvloop.run(main())
