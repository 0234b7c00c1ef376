"""One program and all processes that it starts: a session of its own, its output line by line, its end.

The pipes are ondot's own and not asyncio's, whose `wait` returns only when every process has closed its end: a
grandchild in the background would keep the attempt of a finished program open for ever.
"""

import asyncio
import os
import secrets
import signal
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Final, Literal, Protocol

from ondot.ports.target import Cancel
from ondot.targets.cancelling import until_cancel
from ondot.targets.output import MAX_LINE_CHARACTERS
from ondot.targets.processes.confine import Confinement
from ondot.targets.processes.descendants import HAS_PROC, MARK, kill_all, living, signal_outside_group
from ondot.targets.processes.guard import Guard
from ondot.targets.text import storable_bytes

TAIL_BYTES: Final = 4 * 1024
AFTER_KILL_S: Final = 1.0
"""A killed process is gone at once; one that left the group and keeps the pipes open is not waited for."""

LOOK_AGAIN_S: Final = 0.05


def new_mark() -> str:
    """A word that only the processes of one call have in their environment."""
    return secrets.token_hex(16)


Stream = Literal["stdout", "stderr"]


class Lines(Protocol):
    """Receives lines: an `Output`, or an object that chooses between several."""

    @property
    def full(self) -> bool: ...

    def add(self, stream: Stream, line: str, beyond: int = 0) -> None: ...

    def skip(self, lines: int, characters: int) -> None: ...


class _Reader(asyncio.Protocol):
    """Splits a stream into lines, in bounded memory, and remembers its last bytes."""

    def __init__(self, stream: Stream, output: Lines, max_kept: int = 0) -> None:
        """`max_kept`: how many of its first bytes it keeps, beside the last ones."""
        self.ended = asyncio.get_running_loop().create_future()
        self.tail = b""
        self.kept = bytearray()
        self.written = 0
        self._max_kept = max_kept
        self._stream = stream
        self._output = output
        self._partial = b""
        self._beyond = 0

    async def attach(self, fd: int) -> asyncio.BaseTransport:
        loop = asyncio.get_running_loop()
        transport, _ = await loop.connect_read_pipe(lambda: self, os.fdopen(fd, "rb", 0))
        return transport

    def data_received(self, data: bytes) -> None:
        self.tail = (self.tail + data[-TAIL_BYTES:])[-TAIL_BYTES:]
        self.written += len(data)
        if len(self.kept) < self._max_kept:
            self.kept += data[: self._max_kept - len(self.kept)]
        start = 0
        # Line by line only while lines are kept: a flood of short ones would block the loop (`yes` writes 130,000 of
        # them in one read).
        while not self._output.full and (end := data.find(b"\n", start)) >= 0:
            self._extend(data[start:end])
            self._flush()
            start = end + 1
        if self._output.full:
            self._output.skip(data.count(b"\n", start), len(data) - start)
        else:
            self._extend(data[start:])

    def connection_lost(self, exc: Exception | None) -> None:
        if self._partial or self._beyond:
            self._flush()
        if not self.ended.done():
            self.ended.set_result(None)

    def _extend(self, data: bytes) -> None:
        room = MAX_LINE_CHARACTERS - len(self._partial)
        self._partial += data[:room]
        self._beyond += max(len(data) - room, 0)

    def _flush(self) -> None:
        line, beyond, self._partial, self._beyond = self._partial, self._beyond, b"", 0
        self._output.add(self._stream, storable_bytes(line.removesuffix(b"\r")), beyond)


async def _begin(
    streams: Sequence[int],
    *,
    command: Sequence[str],
    environment: Mapping[str, str],
    pass_fds: Sequence[int],
    cwd: Path | None,
) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        *command,
        stdin=streams[0],
        stdout=streams[1],
        stderr=streams[2],
        env=dict(environment),
        cwd=cwd,
        start_new_session=True,
        pass_fds=tuple(pass_fds),
    )


async def _launch(
    confinement: Confinement,
    streams: Sequence[int],
    *,
    command: Sequence[str],
    environment: Mapping[str, str],
    pass_fds: Sequence[int],
    cwd: Path | None,
) -> asyncio.subprocess.Process:
    """By a launcher, which reports why it could not become the program, and nothing if it did."""
    ours, theirs = os.pipe()
    try:
        try:
            words = confinement.words(command, environment, theirs)
            kept = (*pass_fds, theirs)
            process = await _begin(streams, command=words, environment=environment, pass_fds=kept, cwd=cwd)
        finally:
            os.close(theirs)
        error_number = await _read_message(ours)
        if error_number:
            await process.wait()
            raise OSError(int(error_number), os.strerror(int(error_number)))
        return process
    finally:
        os.close(ours)


async def _read_message(descriptor: int) -> bytes:
    """From a pipe that is closed after one short message or none."""
    loop = asyncio.get_running_loop()
    ready = asyncio.Event()
    loop.add_reader(descriptor, ready.set)
    try:
        await ready.wait()
        return os.read(descriptor, 64)
    finally:
        loop.remove_reader(descriptor)


class Process:
    def __init__(
        self,
        process: asyncio.subprocess.Process,
        mark: str,
        readers: Mapping[Stream, _Reader],
        transports: Sequence[asyncio.BaseTransport],
        guard: Guard | None,
    ) -> None:
        self._process = process
        self._mark = mark
        self._readers = readers
        self._transports = transports
        self._guard = guard

    @classmethod
    async def start(
        cls,
        command: Sequence[str],
        environment: Mapping[str, str],
        payload: bytes,
        output: Lines,
        *,
        kill_after_s: float,
        pass_fds: Sequence[int] = (),
        guard: Guard | None = None,
        mark: str | None = None,
        cwd: Path | None = None,
        confinement: Confinement | None = None,
        max_kept: int = 0,
    ) -> "Process":
        """Raises OSError or ValueError if it cannot be started. If cancelled, it ends what it started.

        With a guard, the program is killed if this process dies before `close`. With a confinement, the launcher starts
        it if it needs one. `max_kept`: how many bytes of its standard output `stdout` has.
        """
        if any("\0" in word for word in command):
            # uvloop would pass only the part before it.
            raise ValueError("an argument with a NUL character cannot be passed to a program")
        mark = mark or new_mark()
        how = _begin if confinement is None or not confinement.is_launched else partial(_launch, confinement)
        begin = partial(how, command=command, environment={**environment, MARK: mark}, pass_fds=pass_fds, cwd=cwd)
        starting = asyncio.ensure_future(cls._start(begin, payload, output, guard, mark, max_kept))
        try:
            return await asyncio.shield(starting)
        except asyncio.CancelledError:
            with suppress(OSError, ValueError):
                process = await starting
                try:
                    await process.end(kill_after_s)
                finally:
                    process.close()
            raise

    @classmethod
    async def _start(
        cls,
        begin: Callable[[Sequence[int]], Awaitable[asyncio.subprocess.Process]],
        payload: bytes,
        output: Lines,
        guard: Guard | None,
        mark: str,
        max_kept: int,
    ) -> "Process":
        loop = asyncio.get_running_loop()
        ours: list[int] = []
        theirs: list[int] = []
        try:
            stdin, write_end = os.pipe()
            theirs.append(stdin)
            ours.append(write_end)
            for _ in range(2):
                read_end, write_end = os.pipe()
                ours.append(read_end)
                theirs.append(write_end)
            if guard is not None:
                guard.hold(mark)
            process = await begin(theirs)
            if guard is not None:
                guard.hold(mark, process.pid)
        except BaseException:
            for fd in ours:
                os.close(fd)
            if guard is not None:
                guard.release(mark)
            raise
        finally:
            for fd in theirs:
                os.close(fd)
        readers: dict[Stream, _Reader] = {
            "stdout": _Reader("stdout", output, max_kept),
            "stderr": _Reader("stderr", output),
        }
        writing, _ = await loop.connect_write_pipe(asyncio.BaseProtocol, os.fdopen(ours[0], "wb", 0))
        # A program need not read the payload to its end: a broken pipe only ends the writing.
        writing.write(payload)
        writing.write_eof()
        transports: list[asyncio.BaseTransport] = [writing]
        for fd, reader in zip(ours[1:], readers.values(), strict=True):
            transports.append(await reader.attach(fd))
        return cls(process, mark, readers, transports, guard)

    def tail(self, stream: Stream) -> bytes:
        """The last bytes that it wrote."""
        return self._readers[stream].tail

    @property
    def stdout(self) -> bytes:
        """The first bytes of its standard output, up to `max_kept`."""
        return bytes(self._readers["stdout"].kept)

    @property
    def stdout_bytes(self) -> int:
        """How many it wrote."""
        return self._readers["stdout"].written

    async def wait(self, timeout_s: float | None, cancel: Cancel | None = None) -> int | None:
        """The exit code, negative for a signal; None if it still runs: its time is over, or it was cancelled."""
        waiting = asyncio.ensure_future(self._process.wait())
        try:
            if cancel is None:
                await asyncio.wait({waiting}, timeout=timeout_s)
            else:
                await until_cancel(waiting, cancel, timeout_s)
        finally:
            if not waiting.done():
                waiting.cancel()
        return self._process.returncode

    async def drain(self, within_s: float) -> None:
        """Read what is still in the pipes. Processes that keep them open after the program has ended are killed."""
        if not await self._wait_for_output(within_s):
            self._signal(signal.SIGKILL)
            await self._wait_for_output(within_s)

    async def end(self, kill_after_s: float) -> bool:
        """TERM to all its processes, then KILL after this time, or at once if this is cancelled.

        Returns whether the KILL was needed.
        """
        loop = asyncio.get_running_loop()
        give_up_at = loop.time() + kill_after_s
        needs_force = True
        try:
            # Once each: many programs end at once on a second TERM.
            self._signal(signal.SIGTERM)
            await asyncio.to_thread(signal_outside_group, self._process.pid, self._mark, signal.SIGTERM)
            await self.wait(kill_after_s)
            # The program may have ended at once and left its children to clean up: they get the same time.
            await self._wait_for_output(max(give_up_at - loop.time(), 0.0))
            # There is no event for the end of a process that is not our child.
            while (needs_force := await self._lives()) and loop.time() < give_up_at:  # noqa: ASYNC110
                await asyncio.sleep(LOOK_AGAIN_S)
        finally:
            self._signal(signal.SIGKILL)
            await asyncio.to_thread(kill_all, self._process.pid, self._mark, AFTER_KILL_S)
            await self.wait(AFTER_KILL_S)
            await self._wait_for_output(AFTER_KILL_S)
        return needs_force

    def close(self) -> None:
        if self._guard is not None:
            self._guard.release(self._mark)
        for transport in self._transports:
            transport.close()

    async def _wait_for_output(self, within_s: float) -> bool:
        ends = [reader.ended for reader in self._readers.values()]
        _, open_ = await asyncio.wait(ends, timeout=within_s)
        return not open_

    async def _lives(self) -> bool:
        """Whether any of its processes is left; the exit of the program itself is already known."""
        if HAS_PROC:
            return bool(await asyncio.to_thread(living, self._process.pid, self._mark))
        try:
            os.killpg(self._process.pid, 0)
        except (ProcessLookupError, PermissionError):
            return False
        return True

    def _signal(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, number)
