"""The SDK without asyncio: `.sync` of handlers, handles, workflows and the client, over threads and forks (D3).

The server is real and in the test's own loop; the calls block in threads and in processes of their own.
"""

import asyncio
import inspect
import os
import pickle
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from docs import sync_types

from ondot import NotSucceeded, Ondot, Workflow
from ondot.model.outcome import AttemptError, Failed, Succeeded
from ondot.sdk.client import Client
from ondot.sdk.handle import Handle
from ondot.sdk.sync import Blocking
from tests.proves import proves
from tests.ui.serving import served
from tests.world import World

APP = """
import os, signal, sys, threading, time
from ondot import Ondot

app = Ondot()

@app.job(retries=0)
def double(n: int) -> int:
    return 2 * n
"""


def make_app(url: str) -> Any:
    app = Ondot(url)

    @app.job(retries=0)
    def double(n: int) -> int:
        return 2 * n

    @app.workflow
    def both(w: Workflow) -> None:
        w.step(double, n=1)

    return app, double, both


@pytest.fixture
async def url(world: World) -> AsyncIterator[str]:
    async with served(world.database) as page:
        yield page.url


async def run_script(url: str, text: str, tmp_path: Path, warnings: str = "error") -> str:
    """What a program prints that uses the server. It must end by itself, without a word on standard error."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("ONDOT_")}
    script = await asyncio.create_subprocess_exec(
        sys.executable,
        *(["-W", f"{warnings}::ResourceWarning"] if warnings else []),
        *("-c", APP + text),
        env=environment | {"ONDOT_URL": url, "ONDOT_HOME": str(tmp_path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    try:
        async with asyncio.timeout(90):
            out, errors = await script.communicate()
    finally:
        if script.returncode is None:  # it hangs: the next test must not meet it
            script.kill()
            await script.communicate()
    assert (script.returncode, errors.decode()) == (0, ""), errors.decode()
    return out.decode()


@proves("D3")
async def test_threads_enqueue_and_wait_for_results_at_the_same_time(world: World, url: str) -> None:
    app, double, both = make_app(url)
    worker = await world.worker()

    def use(n: int) -> Any:
        return double.sync.enqueue(n)

    handles = await asyncio.gather(*(asyncio.to_thread(use, n) for n in range(20)))
    waiting = [asyncio.create_task(asyncio.to_thread(handle.result, 60)) for handle in handles]
    await worker.complete_all(await worker.lease(), Succeeded("8"))
    assert await asyncio.gather(*waiting) == [8] * 20

    def use_the_rest() -> None:
        [one, other] = double.sync.enqueue_many([double.args(1), double.args(2)])
        later = double.sync.options(in_="1h").enqueue(3)
        assert double.options(in_="1h").sync.enqueue(3).state() == later.state() == one.state() == "PENDING"
        later.cancel("not needed")
        assert double.sync.handle(other.id) == other
        assert repr(one) == f"<Handle {one.id} of double>.sync"
        assert app.handle(one.id).sync.execution()["job_id"] == one.id
        run = both.sync.enqueue()
        assert run.state() in {"PENDING", "RUNNING"}
        assert len(app.client.sync.list_jobs(limit=5)["items"]) == 5
        assert b"".join(app.client.sync.export("executions", "jsonl")).count(b"\n") >= 20
        with pytest.raises(TypeError, match="double"):
            double.sync.enqueue("two")
        one.cancel("done")
        with pytest.raises(NotSucceeded, match="CANCELLED") as cancelled:
            one.result(60)
        assert cancelled.value.__context__ is None, "its traceback shows what happened, and nothing else"
        with pytest.raises(TimeoutError):
            other.result(0.01)
        app.client.sync.close()

    await asyncio.to_thread(use_the_rest)


@proves("D3")
async def test_inside_an_event_loop_the_error_says_what_to_await() -> None:
    _, double, _ = make_app("http://127.0.0.1:1")
    with pytest.raises(RuntimeError, match=r"Write `await double\.enqueue\(…\)` without `\.sync`"):
        double.sync.enqueue(1)
    assert "enqueue" in dir(double.sync)
    with pytest.raises(AttributeError):
        double.sync._submit  # noqa: B018 - it must raise


@proves("D3")
async def test_a_program_ends_without_hanging_or_warnings(url: str, tmp_path: Path) -> None:
    script = """
handles = double.sync.enqueue_many(double.args(n) for n in range(3))
print(len(handles), threading.active_count())
try:
    handles[0].result(0.05)
except TimeoutError:
    print("not ended")
"""
    assert await run_script(url, script, tmp_path) == "3 2\nnot ended\n"


@proves("D3")
async def test_after_a_fork_parent_and_child_have_connections_of_their_own(url: str, tmp_path: Path) -> None:
    script = """
import multiprocessing, warnings
warnings.simplefilter("ignore", DeprecationWarning)  # forking a process with threads
before = double.sync.enqueue(1)

def in_child() -> None:
    print("child", double.sync.enqueue(2).state(), app.handle(before.id).sync.state(), flush=True)

def fork(end) -> None:
    pid = os.fork()
    if pid == 0:
        in_child()
        end(0)
    assert os.waitpid(pid, 0)[1] == 0

fork(sys.exit)  # through atexit, as a child of gunicorn ends
thread = threading.Thread(target=fork, args=[os._exit])  # in a thread, sys.exit ends that thread alone
thread.start()
thread.join()
process = multiprocessing.get_context("fork").Process(target=in_child)
process.start()
process.join()
for n in range(3):
    print("parent", double.sync.enqueue(n).state())
"""
    printed = (await run_script(url, script, tmp_path, warnings="")).splitlines()
    assert printed == ["child PENDING PENDING"] * 3 + ["parent PENDING"] * 3


@proves("D3")
async def test_ctrl_c_interrupts_a_wait_and_the_next_call_works(url: str, tmp_path: Path) -> None:
    script = """
handle = double.sync.enqueue(1)

def where(frame):
    return [] if frame is None else [frame.f_code.co_name, *where(frame.f_back)]

def interrupt():
    # Once it waits: Python drops a KeyboardInterrupt that is raised in a callback, such as one of an import.
    while (names := where(sys._current_frames()[threading.main_thread().ident]))[0] != "wait" or "call" not in names:
        time.sleep(0.01)
    os.kill(os.getpid(), signal.SIGINT)

signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell ignores it for what it starts in the background
threading.Thread(target=interrupt).start()
try:
    handle.result()
except KeyboardInterrupt:
    print("interrupted", handle.state())
"""
    assert await run_script(url, script, tmp_path) == "interrupted PENDING\n"


@proves("D3")
async def test_a_failed_job_raises_in_the_thread_that_waits(world: World, url: str) -> None:
    app, double, _ = make_app(url)
    handle = await asyncio.to_thread(double.sync.enqueue, 1)
    worker = await world.worker()
    await worker.run_one(Failed(AttemptError("exception", "ValueError: no", facts={"type": "ValueError"})))
    with pytest.raises(NotSucceeded, match="ValueError: no"):
        await asyncio.to_thread(handle.result)
    await asyncio.to_thread(app.client.sync.close)


@proves("D3")
def test_what_type_checkers_see_of_sync_is_what_it_has() -> None:
    assert sync_types.WRITTEN.read_text() == sync_types.written()
    for name, method in inspect.getmembers(Client, inspect.isfunction):
        if not name.startswith("_") and name not in {"of_loop", "forget_connections", "close_all"}:
            assert f"def {name}(" in sync_types.WRITTEN.read_text(), method


def test_a_proxy_is_pickled_as_what_it_stands_for() -> None:
    assert pickle.loads(pickle.dumps(Blocking("text"))) == Blocking("text")
    assert isinstance(Handle.sync, property)
