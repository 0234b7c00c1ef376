"""What every target promises, run on each of them: with a real server, a real process, a real function."""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from typing import Any, get_args

import msgspec
import pytest
from aiohttp import web
from redis import Redis as SyncClient
from started import free_port

from brokers import Redis
from ondot import Context, Ondot
from ondot.app import open_targets
from ondot.model.addresses import EVERYWHERE
from ondot.model.broker import RedisPlace
from ondot.model.completion import encode_error
from ondot.model.execution import Outcome
from ondot.model.outcome import Cancelled, Failed, Succeeded
from ondot.model.target import AttemptTarget, FunctionTarget, GrpcTarget, HttpTarget, PublishTarget, ShellTarget
from ondot.ports.target import CallReport, Cancel, Target
from ondot.sdk.handler import Handler
from ondot.settings import load_settings
from ondot.targets.function.child import ChildCaller
from ondot.targets.function.target import FunctionCaller
from ondot.targets.grpc.target import GrpcCaller
from ondot.targets.http.target import HttpCaller
from ondot.targets.publish.publishers import OpenPublishers
from ondot.targets.publish.target import PublishCaller
from ondot.targets.shell import ShellCaller
from tests.conformance.calls import EXECUTION, FIRE_AT, JOB, PATIENCE_S, Recorder, a_call, failure_of, gone, result_of
from tests.grpc_shop.server import SERVICE, Shop, open_shop
from tests.proves import proves
from tests.receiver import Receiver, open_receiver


class Rig(ABC):
    """One target with four things to call."""

    target: Target[Any]
    succeeds: Any
    fails: Any
    hangs: Any
    complains: Any
    """Fails, and says NUL and broken UTF-8."""

    @abstractmethod
    def facts(self, report: CallReport) -> dict[str, str]:
        """What `succeeds` received about the attempt: execution, job, attempt, fencing_token, fire_at, payload."""

    @abstractmethod
    async def begun(self, recorder: Recorder) -> None: ...

    @abstractmethod
    async def ended(self, recorder: Recorder) -> None:
        """Returns when what `hangs` began has ended."""


class HttpRig(Rig):
    def __init__(self, receiver: Receiver) -> None:
        self.target = HttpCaller(reach=EVERYWHERE)
        self.succeeds = HttpTarget(url=f"{receiver.url}/good")
        self.fails = HttpTarget(url=f"{receiver.url}/bad")
        self.hangs = HttpTarget(url=f"{receiver.url}/hang")
        self.complains = HttpTarget(url=f"{receiver.url}/complain")
        self._receiver = receiver
        self._begun = asyncio.Event()
        self._ended = asyncio.Event()
        receiver.answering = self._answer

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        match request.path:
            case "/bad":
                return web.Response(status=500, text="the disk is full")
            case "/complain":
                return web.Response(status=500, body=b"a\0b\xff")
            case "/hang":
                self._begun.set()
                try:
                    await asyncio.Event().wait()
                finally:
                    self._ended.set()
        return web.json_response({"fine": True})

    def facts(self, report: CallReport) -> dict[str, str]:
        received = self._receiver.received[-1]
        return {
            "execution": received.headers["webhook-id"],
            "job": received.headers["ondot-job-id"],
            "attempt": received.headers["ondot-attempt"],
            "fencing_token": received.headers["ondot-fencing-token"],
            "fire_at": received.headers["ondot-fire-at"],
            "payload": received.body.decode(),
            "of": " ".join(
                received.headers.get(name, "None")
                for name in ("ondot-run-id", "ondot-step", "ondot-item", "ce-ondothops")
            ),
        }

    async def begun(self, recorder: Recorder) -> None:
        await self._begun.wait()

    async def ended(self, recorder: Recorder) -> None:
        await self._ended.wait()


class FunctionRig(Rig):
    def __init__(self) -> None:
        self._begun = asyncio.Event()
        self._ended = asyncio.Event()

        async def good(ctx: Context, **arguments: Any) -> dict[str, str]:
            return {
                "execution": str(ctx.execution_id),
                "job": str(ctx.job_id),
                "attempt": str(ctx.attempt),
                "fencing_token": str(ctx.fencing_token),
                "fire_at": ctx.fire_at.isoformat().replace("+00:00", "Z"),
                "payload": msgspec.json.encode(arguments).decode(),
                "of": f"{ctx.run_id} {ctx.step} {ctx.item} {ctx.hops}",
            }

        async def bad(**_: Any) -> None:
            raise OSError("the disk is full")

        async def complain() -> None:
            raise ValueError("a\0b\udcff")

        async def hang() -> None:
            self._begun.set()
            try:
                await asyncio.Event().wait()
            finally:
                self._ended.set()

        handlers: dict[str, Handler[..., Any]] = {
            function.__name__: Handler(function) for function in (good, bad, complain, hang)
        }
        self.target = FunctionCaller(handlers)
        self.succeeds, self.fails, self.complains, self.hangs = (FunctionTarget(name=name) for name in handlers)

    def facts(self, report: CallReport) -> dict[str, str]:
        facts: dict[str, str] = result_of(report)
        return facts

    async def begun(self, recorder: Recorder) -> None:
        await self._begun.wait()

    async def ended(self, recorder: Recorder) -> None:
        await self._ended.wait()


class ChildRig(Rig):
    def __init__(self) -> None:
        self.target = ChildCaller("tests.conformance.child_app:app", ends_within_s=0.5)
        names = ("good", "bad", "complain", "hang")
        self.succeeds, self.fails, self.complains, self.hangs = (FunctionTarget(name=name) for name in names)

    def facts(self, report: CallReport) -> dict[str, str]:
        facts: dict[str, str] = result_of(report)
        return facts

    async def begun(self, recorder: Recorder) -> None:
        await recorder.line("began")

    async def ended(self, recorder: Recorder) -> None:
        await gone(int((await recorder.line("began")).split()[1]))


class ShellRig(Rig):
    FACTS = (
        'echo "execution=$ONDOT_EXECUTION_ID"; echo "job=$ONDOT_JOB_ID"; echo "attempt=$ONDOT_ATTEMPT";'
        'echo "fencing_token=$ONDOT_FENCING_TOKEN"; echo "fire_at=$ONDOT_FIRE_AT"; echo "payload=$(cat)";'
        'echo "of=${ONDOT_RUN_ID-None} ${ONDOT_STEP-None} ${ONDOT_ITEM-None} ${ONDOT_HOPS-None}"'
    )

    def __init__(self) -> None:
        self.target = ShellCaller(allow=True, kill_after_s=0.2)
        self.succeeds = ShellTarget(command=("sh", "-c", self.FACTS))
        self.fails = ShellTarget(command=("sh", "-c", "echo the disk is full >&2; exit 3"))
        # It hangs with a child that hangs, and neither listens to TERM.
        self.hangs = ShellTarget(command=("sh", "-c", "trap '' TERM; sleep 1000 & echo began $$ $!; wait; wait"))
        self.complains = ShellTarget(command=("sh", "-c", r"printf 'a\0b\377' >&2; exit 1"))

    def facts(self, report: CallReport) -> dict[str, str]:
        lines: list[str] = result_of(report)["stdout"].splitlines()
        return dict(line.split("=", 1) for line in lines)

    async def begun(self, recorder: Recorder) -> None:
        await recorder.line("began")

    async def ended(self, recorder: Recorder) -> None:
        for pid in (await recorder.line("began")).split()[1:]:
            await gone(int(pid))


class GrpcRig(Rig):
    def __init__(self, shop: Shop) -> None:
        self.target = GrpcCaller(reach=EVERYWHERE)
        self._shop = shop
        self.succeeds = GrpcTarget(address=shop.url, method=f"{SERVICE}/Place", tls=False)
        self.fails = GrpcTarget(address=shop.url, method=f"{SERVICE}/Fail", tls=False)
        self.hangs = GrpcTarget(address=shop.url, method=f"{SERVICE}/Hang", tls=False)
        message = "a\0b\ufffd".encode().hex()
        self.complains = msgspec.structs.replace(self.fails, headers={"x-message": message})

    def facts(self, report: CallReport) -> dict[str, str]:
        received, result = self._shop.seen[-1], result_of(report)
        return {
            "execution": received["webhook-id"],
            "job": received["ondot-job-id"],
            "attempt": received["ondot-attempt"],
            "fencing_token": received["ondot-fencing-token"],
            "fire_at": received["ondot-fire-at"],
            "payload": result["request"],
            "of": " ".join(
                received.get(name, "None") for name in ("ondot-run-id", "ondot-step", "ondot-item", "ce-ondothops")
            ),
        }

    async def begun(self, recorder: Recorder) -> None:
        await self._shop.begun.wait()

    async def ended(self, recorder: Recorder) -> None:
        await self._shop.ended.wait()


class PublishRig(Rig):
    """A real Redis takes messages; one of our own never answers, or answers with an error."""

    def __init__(self, redis: Redis, port: int) -> None:
        self.target = PublishCaller(OpenPublishers(), reach=EVERYWHERE)
        self._redis = redis
        self._begun = asyncio.Event()
        self._ended = asyncio.Event()
        self.succeeds = self._to(redis.url, "out")
        self.fails, self.hangs, self.complains = (
            self._to(f"redis://127.0.0.1:{port}", name) for name in ("fails", "hangs", "complains")
        )

    @staticmethod
    def _to(url: str, stream: str) -> PublishTarget:
        return PublishTarget(place=RedisPlace(stream=stream), address=url)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65_536):
            if b"hangs" in data:
                self._begun.set()
            elif b"XADD" in data:
                writer.write(b"-ERR the disk is full\r\n" if b"fails" in data else b"-ERR a\0b\xff\r\n")
            else:  # the greeting
                writer.write(b"+OK\r\n" * data.count(b"CLIENT"))
        self._ended.set()
        writer.close()

    def facts(self, report: CallReport) -> dict[str, str]:
        result = result_of(report)
        with SyncClient.from_url(self._redis.url, decode_responses=True) as client:
            [(_, received)] = client.xrange("out", result["id"], result["id"])
        return {
            "execution": received["webhook-id"],
            "job": received["ondot-job-id"],
            "attempt": received["ondot-attempt"],
            "fencing_token": received["ondot-fencing-token"],
            "fire_at": received["ondot-fire-at"],
            "payload": received["payload"],
            "of": " ".join(
                received.get(name, "None") for name in ("ondot-run-id", "ondot-step", "ondot-item", "ce-ondothops")
            ),
        }

    async def begun(self, recorder: Recorder) -> None:
        await self._begun.wait()

    async def ended(self, recorder: Recorder) -> None:
        await self._ended.wait()


@asynccontextmanager
async def publish_rig() -> AsyncIterator[Rig]:
    with Redis.running() as redis:
        port = free_port()
        rig = PublishRig(redis, port)
        async with await asyncio.start_server(rig.serve, "127.0.0.1", port):
            yield rig
            await rig.target.close()


@asynccontextmanager
async def grpc_rig() -> AsyncIterator[Rig]:
    async with open_shop() as shop:
        yield GrpcRig(shop)


@asynccontextmanager
async def http_rig() -> AsyncIterator[Rig]:
    async with open_receiver() as receiver:
        yield HttpRig(receiver)


@asynccontextmanager
async def made_by(rig: type[Rig]) -> AsyncIterator[Rig]:
    yield rig()


RIGS: dict[str, tuple[type[AttemptTarget], Callable[[], AbstractAsyncContextManager[Rig]]]] = {
    "http": (HttpTarget, http_rig),
    "grpc": (GrpcTarget, grpc_rig),
    "publish": (PublishTarget, publish_rig),
    "function": (FunctionTarget, partial(made_by, FunctionRig)),
    "function in a child": (FunctionTarget, partial(made_by, ChildRig)),
    "shell": (ShellTarget, partial(made_by, ShellRig)),
}
"""Every implementation, with its kind."""


@pytest.fixture(params=RIGS)
async def rig(request: pytest.FixtureRequest) -> AsyncIterator[Rig]:
    async with RIGS[request.param][1]() as rig:
        yield rig
        await rig.target.close()


async def test_every_kind_that_a_worker_can_call_is_in_the_list() -> None:
    async with open_targets(load_settings(), Ondot(), 1, None) as targets:
        assert set(targets) == set(get_args(AttemptTarget)) == {kind for kind, _ in RIGS.values()}


@proves("E3")
async def test_a_success_is_reported_with_a_result_in_json(rig: Rig) -> None:
    report = await rig.target.call(rig.succeeds, a_call())
    assert result_of(report) is not None


@proves("E3", "E11")
async def test_the_payload_and_the_facts_of_the_attempt_arrive(rig: Rig) -> None:
    report = await rig.target.call(rig.succeeds, a_call(payload={"region": "eu", "n": 1}))
    assert rig.facts(report) == {
        "execution": str(EXECUTION),
        "job": str(JOB),
        "attempt": "3",
        "fencing_token": "3",
        "fire_at": FIRE_AT.isoformat().replace("+00:00", "Z"),
        "payload": '{"region":"eu","n":1}',
        "of": "None None None None",
    }


@proves("W1", "S11")
async def test_a_step_knows_its_run_and_how_many_events_led_to_those_that_it_sends(rig: Rig) -> None:
    call = msgspec.structs.replace(a_call(payload={}), run_id=EXECUTION, step="load", item_no=7, hops=3)
    report = await rig.target.call(rig.succeeds, call)
    assert rig.facts(report)["of"] == f"{EXECUTION} load 7 3"


@proves("E4")
async def test_a_failure_is_reported_as_retryable_with_its_output(rig: Rig) -> None:
    report = await rig.target.call(rig.fails, a_call())
    assert isinstance(report, Failed)
    assert report.outcome is Outcome.FAILED
    assert report.retryable
    assert report.error.message
    assert "\n" not in report.error.message
    assert "the disk is full" in f"{report.error.message} {report.error.detail}"


@proves("E7")
async def test_a_call_that_does_not_end_in_time_is_ended_and_reported_as_timed_out(rig: Rig) -> None:
    recorder = Recorder()
    report = await rig.target.call(rig.hangs, a_call(recorder, timeout_s=1))
    failed = failure_of(report, "timeout")
    assert failed.outcome is Outcome.TIMED_OUT
    assert failed.retryable
    assert "timeout of 1 s" in failed.error.message
    async with asyncio.timeout(PATIENCE_S):
        await rig.ended(recorder)


@proves("E7")
async def test_a_task_that_is_cancelled_ends_its_call_and_ends_with_the_cancellation(rig: Rig) -> None:
    recorder = Recorder()
    calling = asyncio.ensure_future(rig.target.call(rig.hangs, a_call(recorder, timeout_s=100)))
    async with asyncio.timeout(PATIENCE_S):
        await rig.begun(recorder)
        calling.cancel()
        with pytest.raises(asyncio.CancelledError):
            await calling
        await rig.ended(recorder)


@proves("E7")
async def test_a_task_that_is_cancelled_before_its_call_starts_ends_with_the_cancellation(rig: Rig) -> None:
    calling = asyncio.ensure_future(rig.target.call(rig.hangs, a_call(timeout_s=100)))
    calling.cancel()
    with pytest.raises(asyncio.CancelledError):
        await calling


@proves("E8")
async def test_a_call_that_is_cancelled_while_it_runs_is_ended_and_reported_as_cancelled(rig: Rig) -> None:
    recorder, cancel = Recorder(), Cancel(grace_s=0.3)
    calling = asyncio.ensure_future(rig.target.call(rig.hangs, a_call(recorder, timeout_s=100, cancel=cancel)))
    async with asyncio.timeout(PATIENCE_S):
        await rig.begun(recorder)
        cancel.request()
        report = await calling
        await rig.ended(recorder)
    assert isinstance(report, Cancelled), report
    assert report.message


@proves("E8")
async def test_a_call_that_is_cancelled_before_it_starts_is_not_made(rig: Rig) -> None:
    recorder, cancel = Recorder(), Cancel()
    cancel.request()
    report = await rig.target.call(rig.succeeds, a_call(recorder, cancel=cancel))
    assert report == Cancelled("It was cancelled before the call began.")
    assert recorder.lines == []


@proves("E8")
async def test_a_cancel_after_the_end_changes_nothing(rig: Rig) -> None:
    cancel = Cancel()
    report = await rig.target.call(rig.succeeds, a_call(cancel=cancel))
    cancel.request()
    assert isinstance(report, Succeeded)


@proves("E8")
async def test_a_task_that_is_cancelled_during_the_grace_of_a_cancel_ends_with_the_cancellation(rig: Rig) -> None:
    recorder, cancel = Recorder(), Cancel(grace_s=100)
    calling = asyncio.ensure_future(rig.target.call(rig.hangs, a_call(recorder, timeout_s=100, cancel=cancel)))
    async with asyncio.timeout(PATIENCE_S):
        await rig.begun(recorder)
        cancel.request()
        calling.cancel()
        with pytest.raises(asyncio.CancelledError):
            await calling
        await rig.ended(recorder)


@proves("E3")
async def test_many_calls_run_at_once_and_one_that_hangs_holds_up_no_other(rig: Rig) -> None:
    recorder = Recorder()
    hanging = asyncio.ensure_future(rig.target.call(rig.hangs, a_call(recorder, timeout_s=100)))
    async with asyncio.timeout(PATIENCE_S):
        await rig.begun(recorder)
        reports = await asyncio.gather(*(rig.target.call(rig.succeeds, a_call(timeout_s=30)) for _ in range(40)))
        assert [type(report) for report in reports] == [Succeeded] * 40
        hanging.cancel()
        with pytest.raises(asyncio.CancelledError):
            await hanging


@proves("E3")
async def test_characters_that_cannot_be_stored_are_replaced_in_the_report(rig: Rig) -> None:
    report = await rig.target.call(rig.complains, a_call())
    assert isinstance(report, Failed)
    text = f"{report.error.message} {report.error.detail}"
    assert "\0" not in text
    assert "a\N{REPLACEMENT CHARACTER}b" in text
    assert encode_error(report.error)


async def test_a_target_that_is_closed_twice_or_was_never_called_closes_quietly(rig: Rig) -> None:
    await rig.target.close()
    await rig.target.close()


async def test_no_call_is_stuck_when_all_have_ended(rig: Rig) -> None:
    assert isinstance(await rig.target.call(rig.succeeds, a_call()), Succeeded)
    assert rig.target.stuck == 0
