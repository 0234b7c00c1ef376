"""Output without a reader: the writer goes on, dropped lines are counted, and the rest is written in order."""

import os
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TextIO

from structlog.testing import capture_logs

from ondot.telemetry.metrics import LOG_DROPPED
from ondot.telemetry.outlet import Outlet
from tests.proves import proves

PIPE_HOLDS = 65536
LONG_S = 30.0


def dropped() -> float:
    return LOG_DROPPED.value


@contextmanager
def a_pipe() -> Iterator[tuple[TextIO, int]]:
    """The two ends of a pipe: a stream to write to, and a descriptor that may be read."""
    read, write = os.pipe()
    with os.fdopen(write, "w", encoding="utf-8") as stream:
        yield stream, read
    os.close(read)


def read_all(read: int, until: str) -> str:
    text = ""
    while until not in text:
        text += os.read(read, 65536).decode()
    return text


@proves("P13")
def test_a_writer_to_an_unread_pipe_goes_on_and_the_kept_lines_come_out_in_order() -> None:
    before = dropped()
    with a_pipe() as (stream, read), capture_logs() as logs:
        outlet = Outlet(stream, most_writes=100, most_bytes=10 * PIPE_HOLDS)
        line = "x" * 1000
        for number in range(1000):
            outlet.write(f"{number} {line}\n")
        assert not outlet.drain(0.01)
        output = ""
        while not outlet.drain(0.05):
            output += os.read(read, 65536).decode()
        os.set_blocking(read, False)
        with suppress(BlockingIOError):
            while True:
                output += os.read(read, 65536).decode()
        numbers = [int(text.split()[0]) for text in output.splitlines()]
        assert numbers == sorted(set(numbers)), "in order"
        assert 100 <= len(numbers) < 1000
        assert dropped() - before == 1000 - len(numbers)
        assert sum(entry["writes"] for entry in logs if entry["event"] == "log.dropped") == 1000 - len(numbers)


@proves("P13")
def test_waiting_output_is_bounded_by_bytes_too() -> None:
    with a_pipe() as (stream, read):
        stream.write("x" * PIPE_HOLDS)
        stream.flush()
        outlet = Outlet(stream, most_bytes=3 * PIPE_HOLDS)
        before = dropped()
        for _ in range(10):
            outlet.write("x" * PIPE_HOLDS)
        assert dropped() - before == 7
        # Until all is written: the thread would write to the next file with the pipe's number.
        while not outlet.drain(0.05):
            os.read(read, PIPE_HOLDS)


@proves("P13")
def test_a_closed_pipe_loses_the_lines_and_nothing_else() -> None:
    read, write = os.pipe()
    os.close(read)
    before = dropped()
    with os.fdopen(write, "w", encoding="utf-8") as stream:
        outlet = Outlet(stream)
        for _ in range(5):
            outlet.write("nobody is there\n")
        assert outlet.drain(LONG_S)
    assert dropped() - before == 5


@proves("P13")
def test_a_non_blocking_pipe_is_waited_for() -> None:
    with a_pipe() as (stream, read):
        os.set_blocking(stream.fileno(), False)
        outlet = Outlet(stream)
        outlet.write("x" * (3 * PIPE_HOLDS) + "\nthe end\n")
        assert read_all(read, "the end").startswith("xxx")
        assert outlet.drain(LONG_S)


def run(code: str, **how: object) -> "subprocess.Popen[bytes]":
    begin = "import os, sys\nfrom ondot.telemetry.outlet import unblock_output, drain_output\nunblock_output()\n"
    return subprocess.Popen([sys.executable, "-c", begin + textwrap.dedent(code)], **how)  # type: ignore[call-overload,no-any-return]


@proves("P13")
def test_the_last_lines_and_a_traceback_are_written_at_the_end() -> None:
    with run("print('out')\nraise RuntimeError('why it ended')", stdout=subprocess.PIPE, stderr=subprocess.PIPE) as one:
        out, err = one.communicate(timeout=LONG_S)
    assert out == b"out\n"
    assert b"RuntimeError: why it ended" in err
    assert one.returncode == 1


@proves("P13")
def test_a_process_with_unread_output_can_end() -> None:
    with run("sys.stderr.write('x' * 1_000_000)", stderr=subprocess.PIPE) as one:
        assert one.wait(LONG_S) == 0


@proves("P13")
def test_a_process_without_standard_error_goes_on() -> None:
    """`2>&-`: Python has no `sys.stderr` then."""
    code = "assert sys.stderr.isatty() is False; print('into the void', file=sys.stderr); print('out')"
    with run(code, stdout=subprocess.PIPE, preexec_fn=lambda: os.close(2)) as one:
        out, _ = one.communicate(timeout=LONG_S)
    assert out == b"out\n"


@proves("P13")
def test_the_output_of_a_forked_copy_is_written_even_if_it_ends_at_once() -> None:
    code = """
    print("before", flush=True)
    drain_output()
    if os.fork() == 0:
        print("in the copy")
        os._exit(0)
    os.wait()
    print("after")
    """
    with run(code, stdout=subprocess.PIPE) as one:
        out, _ = one.communicate(timeout=LONG_S)
    assert out == b"before\nin the copy\nafter\n"


@proves("P13")
def test_a_thread_that_is_blocked_in_a_write_does_not_block_signals() -> None:
    code = """
    import signal, time
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))
    sys.stderr.write("x" * 1_000_000)
    print("ready")
    drain_output()
    while True:
        time.sleep(1)
    """
    with run(code, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as one:
        assert one.stdout is not None
        assert one.stdout.readline() == b"ready\n"
        one.send_signal(signal.SIGTERM)
        assert one.wait(LONG_S) == 7


@proves("P13")
def test_many_threads_write_whole_lines() -> None:
    with a_pipe() as (stream, read):
        outlet = Outlet(stream)

        def write(name: str) -> None:
            for number in range(200):
                outlet.write(f"{name} {number}\n")

        threads = [threading.Thread(target=write, args=(name,)) for name in "abcd"]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        outlet.write("the end\n")
        lines = read_all(read, "the end").splitlines()
        for name in "abcd":
            assert [int(line.split()[1]) for line in lines if line.startswith(f"{name} ")] == list(range(200))
