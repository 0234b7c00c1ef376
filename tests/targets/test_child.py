"""Suspects in child processes, with functions that do what suspects do; see `hostile`."""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest

from ondot.model.execution import Outcome
from ondot.model.outcome import Cancelled, Interrupted, Succeeded
from ondot.model.scrub import SecretValues
from ondot.model.target import FunctionTarget
from ondot.ports.target import CallReport, Cancel
from ondot.sdk.handler import Handler
from ondot.targets.function.child import ChildCaller
from ondot.targets.function.placement import Functions
from ondot.targets.function.target import FunctionCaller
from tests.conformance.calls import Recorder, a_call, failure_of, gone, result_of
from tests.proves import proves

APP = "tests.targets.hostile:app"


@pytest.fixture(autouse=True)
def importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))


@pytest.fixture
async def children() -> AsyncIterator[ChildCaller]:
    caller = ChildCaller(APP, max_calls=2, ends_within_s=0.1, answers_within_s=1.0)
    yield caller
    await caller.close()
    assert caller.children == 0


def call(
    caller: ChildCaller,
    name: str,
    payload: Any = None,
    recorder: Recorder | None = None,
    *,
    losses: int = 2,
    **fields: Any,
) -> asyncio.Task[CallReport]:
    fields.setdefault("timeout_s", 60.0)
    target = FunctionTarget(name=name)
    return asyncio.create_task(caller.call(target, a_call(recorder, payload, losses=losses, **fields)))


def lost_child(report: CallReport) -> Interrupted:
    assert isinstance(report, Interrupted), report
    assert report.code == "child_lost"
    return report


async def pid_of(recorder: Recorder, words: str) -> int:
    return int((await recorder.line(words)).split()[1])


@proves("E6")
async def test_a_call_in_a_child_gets_the_same_facts_as_in_the_worker(children: ChildCaller) -> None:
    facts = result_of(await call(children, "fine", {"n": 7}, checkpoint='{"row":3}'))
    assert facts.pop("pid") != os.getpid()
    assert facts == {"n": 7, "attempt": 3, "fire_at": "2030-01-31T09:00:00Z", "checkpoint": {"row": 3}}


@proves("T5")
async def test_a_function_in_a_child_reads_the_secrets_of_its_attempt(children: ChildCaller) -> None:
    secrets = SecretValues({"stripe": "sk_live_1234"})
    found = result_of(await call(children, "confides", secrets=secrets))
    assert found.pop("pid") != os.getpid()
    assert found == {"value": "sk_live_1234", "environ": False}


@proves("E6", "P12", "T5")
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux shows the environment of a process")
async def test_a_child_has_the_variables_of_its_worker_and_shows_them_to_no_other_process(
    children: ChildCaller, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STRIPE_KEY", "s3cr3t")
    shown = result_of(await call(children, "shows_its_variables"))
    assert shown["has"] == "s3cr3t"
    assert "s3cr3t" not in shown["shown"]


@proves("E6", "E4", "C3")
async def test_an_instant_that_a_function_in_a_child_asks_for_reaches_the_worker_as_it_is(
    children: ChildCaller,
) -> None:
    failed = failure_of(await call(children, "waits_for_tomorrow"), "retry_asked")
    assert (failed.retry_at, failed.retry_after_s) == (datetime(2031, 3, 4, 12, tzinfo=UTC), None)


@proves("E6", "E9", "E14")
async def test_output_of_a_function_in_a_child_arrives_however_it_is_written(children: ChildCaller) -> None:
    recorder = Recorder()
    assert await call(children, "speaks", recorder=recorder) == Succeeded()
    assert recorder.of("log") == ["logged n=1"]
    assert recorder.of("stderr") == ["oops"]
    printed = ["printed", "half a line", "from a thread"]
    assert recorder.of("stdout")[:3] == printed
    assert set(recorder.of("stdout")[3:]) <= {"around everything", "by a program"}
    assert recorder.progress == [(0.5, "half", None), (None, None, '{"row":7}')]


@proves("E6")
@pytest.mark.parametrize(
    ("name", "how"),
    [("exits", "exit code 3"), ("kills_itself", "ended by SIGKILL"), ("segfaults", "ended by SIGSEGV")],
)
async def test_a_child_that_dies_is_reported_with_how_it_died(children: ChildCaller, name: str, how: str) -> None:
    lost = lost_child(await call(children, name))
    assert how in lost.reason
    if name == "segfaults":
        assert "in segfaults" in (lost.detail or "")
    assert isinstance(await call(children, "fine"), Succeeded)


@proves("E6")
async def test_output_before_the_death_of_a_child_arrives(children: ChildCaller) -> None:
    recorder = Recorder()
    lost_child(await call(children, "logs_and_dies", recorder=recorder))
    assert recorder.of("log") == ["about to die"]
    assert recorder.progress == [(None, None, "[1]")]


@proves("E6")
async def test_a_child_that_dies_interrupts_its_own_calls_and_no_others(children: ChildCaller) -> None:
    one, two, other = Recorder(), Recorder(), Recorder()
    neighbour = call(children, "waits", recorder=one)
    pid = await pid_of(one, "waiting")
    alone = call(children, "waits", recorder=other, losses=3)
    assert await pid_of(other, "waiting") != pid
    lost_child(await call(children, "exits", recorder=two))
    assert "exit code 3" in lost_child(await neighbour).reason
    assert not alone.done()
    alone.cancel()
    await asyncio.wait({alone})


@proves("E6")
async def test_a_child_is_shared_by_a_limited_number_of_calls(children: ChildCaller) -> None:
    recorder = [Recorder() for _ in range(4)]
    calls = [call(children, "waits", recorder=each) for each in recorder]
    pids = [await pid_of(each, "waiting") for each in recorder]
    assert sorted(pids.count(pid) for pid in set(pids)) == [2, 2]
    for each in calls:
        each.cancel()
    await asyncio.wait(calls)


@proves("E6")
async def test_a_function_that_lost_three_workers_has_a_child_of_its_own_that_ends_with_it(
    children: ChildCaller,
) -> None:
    shared = result_of(await call(children, "fine"))["pid"]
    alone = [result_of(await call(children, "fine", losses=3))["pid"] for _ in range(2)]
    assert len({shared, *alone}) == 3
    assert result_of(await call(children, "fine"))["pid"] == shared
    for pid in alone:
        await gone(pid)


@proves("E6")
async def test_there_are_no_more_children_than_allowed_and_a_call_without_a_place_waits() -> None:
    caller = ChildCaller(APP, max_children=1, ends_within_s=0.1)
    recorder = Recorder()
    waits = call(caller, "waits", recorder=recorder, losses=3)
    await recorder.line("waiting")
    failed = failure_of(await call(caller, "fine", losses=3, timeout_s=0.2), "no_child")
    assert failed.retryable
    next_one = call(caller, "fine", losses=3)
    waits.cancel()
    assert isinstance(await next_one, Succeeded)
    # An idle one that is shared makes room.
    assert isinstance(await call(caller, "fine", losses=2), Succeeded)
    assert isinstance(await call(caller, "fine", losses=3), Succeeded)
    await caller.close()


@proves("E6")
async def test_an_idle_child_is_ended() -> None:
    caller = ChildCaller(APP, idle_s=0.05)
    pid = result_of(await call(caller, "fine"))["pid"]
    await gone(pid)
    assert isinstance(await call(caller, "fine"), Succeeded)
    await caller.close()


@proves("E6")
async def test_a_child_that_cannot_import_the_app_is_lost_with_the_reason() -> None:
    caller = ChildCaller("tests.targets.no_such_module:app")
    assert "There is no module 'tests.targets.no_such_module'" in lost_child(await call(caller, "fine")).reason
    await caller.close()


@proves("E6")
async def test_a_child_that_imports_for_ever_is_lost_in_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "endless_import.py").write_text("import threading; threading.Event().wait()")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    caller = ChildCaller("endless_import:app", starts_within_s=1.0)
    assert "not ready after 1 s" in lost_child(await call(caller, "fine")).reason
    await caller.close()


@proves("E8")
@pytest.mark.parametrize(("name", "result"), [("waits", "tidied"), ("works_until_cancelled", None)])
async def test_a_cancel_is_sent_to_the_child(children: ChildCaller, name: str, result: str | None) -> None:
    recorder, cancel = Recorder(), Cancel(grace_s=10)
    calling = call(children, name, recorder=recorder, cancel=cancel)
    await recorder.line("w")
    cancel.request()
    report = await calling
    assert isinstance(report, Cancelled)
    assert not report.forced
    assert result is None or msgspec.json.decode(report.result or "") == result


@proves("E7", "E8")
@pytest.mark.parametrize("name", ["sleeps_for_ever", "holds_up_the_loop"])
@pytest.mark.parametrize("how", ["cancel", "timeout"])
async def test_a_function_that_will_not_end_is_ended_with_its_process(
    children: ChildCaller, name: str, how: str
) -> None:
    recorder, cancel = Recorder(), Cancel(grace_s=0.1)
    calling = call(children, name, recorder=recorder, cancel=cancel, timeout_s=1.0 if how == "timeout" else 60.0)
    pid = await pid_of(recorder, "ing ")
    if how == "cancel":
        cancel.request()
    report = await calling
    if how == "cancel":
        assert isinstance(report, Cancelled)
        assert report.forced
    else:
        failed = failure_of(report, "timeout")
        assert failed.outcome is Outcome.TIMED_OUT
        assert "timeout of 1 s" in failed.error.message
    await gone(pid)


@proves("E7")
async def test_processes_of_a_function_end_with_its_child_even_in_a_session_of_their_own(
    children: ChildCaller,
) -> None:
    recorder = Recorder()
    calling = call(children, "begins_a_daemon", recorder=recorder, timeout_s=2)
    daemon = await pid_of(recorder, "daemon")
    failure_of(await calling, "timeout")
    await gone(daemon)


@proves("E6")
@pytest.mark.parametrize("name", ["talks_nonsense", "closes_everything"])
async def test_a_child_that_breaks_its_pipes_is_given_up(children: ChildCaller, name: str) -> None:
    # As in a worker with many connections: the pipes get large numbers, which a child inherits.
    many_files = [os.open(os.devnull, os.O_RDONLY) for _ in range(100)]
    try:
        async with asyncio.timeout(30):
            assert "ended by its worker" in lost_child(await call(children, name)).reason
    finally:
        for file in many_files:
            os.close(file)


@proves("E6", "E14")
async def test_a_flood_of_output_is_bounded(children: ChildCaller) -> None:
    recorder = Recorder()
    assert result_of(await call(children, "floods", {"megabytes": 100}, recorder)) == "flooded"
    assert sum(len(line) for _, line in recorder.lines) < 70 * 1024 * 1024
    assert any("more lines" in line for line in recorder.of("log"))


@proves("E4", "E6")
@pytest.mark.parametrize(
    ("name", "code", "type_"),
    [
        ("exits_politely", "exception", "SystemExit"),
        ("raises_oddly", "exception", "Odd"),
        ("recurses", "exception", "RecursionError"),
        ("returns_no_json", "result_not_json", None),
        ("wants_a_transaction", "exception", "RuntimeError"),
    ],
)
async def test_errors_that_end_an_attempt_in_the_worker_end_it_in_a_child_and_not_the_child(
    children: ChildCaller, name: str, code: str, type_: str | None
) -> None:
    before = result_of(await call(children, "fine"))["pid"]
    failed = failure_of(await call(children, name), code)
    assert failed.error.facts.get("type") == type_
    assert result_of(await call(children, "fine"))["pid"] == before


@proves("E6")
async def test_a_large_result_arrives_complete(children: ChildCaller) -> None:
    assert result_of(await call(children, "returns", {"size": 10_000_000})) == "x" * 10_000_000


@proves("E6")
async def test_a_function_that_forks_in_a_child_returns_once(children: ChildCaller) -> None:
    assert result_of(await call(children, "forks")) == "parent"


@proves("E6")
async def test_a_child_dies_with_its_worker_however_that_dies() -> None:
    script = f"""
import asyncio
from ondot.model.target import FunctionTarget
from ondot.targets.function.child import ChildCaller
from tests.conformance.calls import a_call

class Recorder:
    def say(self, stream, line):
        print(line, flush=True)
    def report(self, *_):
        pass

asyncio.run(ChildCaller({APP!r}).call(FunctionTarget(name="holds_up_the_loop"), a_call(Recorder(), timeout_s=100)))
"""
    worker = await asyncio.create_subprocess_exec(sys.executable, "-c", script, stdout=asyncio.subprocess.PIPE)
    assert worker.stdout is not None
    child = int((await worker.stdout.readline()).split()[1])
    assert psutil.pid_exists(child)
    worker.send_signal(signal.SIGKILL)
    await worker.wait()
    await gone(child)


@proves("P13")
async def test_calls_that_must_be_alone_take_turns_in_a_child_and_never_share_it(children: ChildCaller) -> None:
    fine, waits = FunctionTarget(name="fine"), FunctionTarget(name="waits")
    pids = [result_of(await children.call(fine, a_call(timeout_s=60.0), is_alone=True))["pid"] for _ in range(3)]
    assert len(set(pids)) == 1, "a process for each call would take a hundred times as long"
    recorder = Recorder()
    alone = asyncio.create_task(children.call(waits, a_call(recorder, timeout_s=60.0), is_alone=True))
    assert await pid_of(recorder, "waiting") == pids[0]
    assert result_of(await call(children, "fine"))["pid"] != pids[0]
    alone.cancel()
    await asyncio.wait({alone})


@proves("E6")
async def test_functions_are_suspects_by_degrees() -> None:
    async def fine(n: int = 0) -> dict[str, int]:
        return {"pid": os.getpid()}

    functions = Functions(FunctionCaller({"fine": Handler(fine)}), ChildCaller(APP))
    target = FunctionTarget(name="fine")
    pids = [result_of(await functions.call(target, a_call(losses=losses)))["pid"] for losses in range(4)]
    assert pids[:2] == [os.getpid()] * 2
    assert len({*pids}) == 3
    assert functions.stuck == 0
    await functions.close()


@proves("E6")
async def test_without_an_app_to_import_all_functions_run_here() -> None:
    async def fine() -> int:
        return os.getpid()

    functions = Functions(FunctionCaller({"fine": Handler(fine)}))
    assert result_of(await functions.call(FunctionTarget(name="fine"), a_call(losses=3))) == os.getpid()
    await functions.close()


@proves("E6")
async def test_no_file_descriptor_is_left_open() -> None:
    this = psutil.Process()
    before: list[int] = []
    for _ in range(3):
        caller = ChildCaller(APP, ends_within_s=0.1)
        await call(caller, "fine", losses=3)
        lost_child(await call(caller, "exits"))
        await caller.close()
        before.append(this.num_fds())
    assert before[2] <= before[1]
