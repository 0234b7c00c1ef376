"""Workflows in Python: described at import, checked with the line of the fault, sent as the document of the API."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ondot import Context, Ondot, Workflow
from ondot.document.parse import job_spec
from ondot.model.errors import InvalidBody, InvalidGraph, InvalidSchedule
from ondot.model.ids import EPOCH
from ondot.model.workflow.spec import WorkflowTarget
from ondot.sdk.client import Client
from ondot.sdk.handler import Handler
from tests.proves import proves

app = Ondot()


@app.job(retries=2, timeout="5m", pool="io")
async def list_files(ctx: Context, region: str = "eu") -> dict[str, Any]:
    return {"files": [region], "total": 1}


@app.job
async def process(ctx: Context, file: str) -> str:
    return file


@app.job
def report(n: int = 0) -> str:
    return str(n)


def steps_of(workflow: Any) -> dict[str, Any]:
    steps: dict[str, Any] = workflow.target["workflow"]["steps"]
    return steps


@proves("W1", "W4", "W9")
def test_a_function_describes_the_document_of_its_workflow() -> None:
    @Ondot().workflow(cron="0 2 * * *", timezone="Europe/Berlin", timeout="4h", blocked_for="1d")
    def nightly(w: Workflow, region: str = "eu") -> None:
        files = w.step(list_files, region=region)
        done = w.map(process, over=files.result["files"], concurrency=50, tolerate="1%")
        again = w.map(process, each=done)
        summary = w.step(report, after=again, n=done.count, if_=files.result["total"] > 0)
        w.step(report, after=summary, when="failure", handles=True, name="page")
        w.command("cleanup", ["rm", "-rf", "scratch"], after=summary, when="ended", finally_=True)

    body = nightly.recurring_body()
    assert body is not None
    assert body["key"] == "workflow:nightly"
    assert body["payload"] == {"region": "eu"}
    steps = steps_of(nightly)
    assert steps["list_files"] == {
        "target": {"function": "list_files"},
        "retry": {"max_retries": 2},
        "timeout": "5m",
        "pool": "io",
        "payload": {"region": {"$from": "payload.region"}},
    }
    assert steps["process"]["map"] == {
        "over": {"$from": "list_files.result.files"},
        "concurrency": 50,
        "tolerate": {"percent": 1.0},
    }
    assert steps["process"]["payload"] == {"file": {"$from": "item"}}
    assert steps["process-2"]["map"] == {"each": "process"}
    assert steps["report"]["depends_on"] == ["process-2"]
    assert steps["report"]["if"] == {"steps": {"list_files": {"result": {"total": [{"numeric": [">", 0]}]}}}}
    spec = job_spec(body, EPOCH)
    assert isinstance(spec.target, WorkflowTarget)
    assert list(spec.target.steps) == ["list_files", "process", "process-2", "report", "page", "cleanup"]
    assert spec.target.blocked_for_s == 86_400
    assert spec.timeout_s == 4 * 3600


@proves("W8")
def test_steps_that_call_nothing_and_other_targets_are_steps_too() -> None:
    one = Ondot()

    @one.workflow(key="inner-key", every="1h")
    def inner(w: Workflow) -> None:
        w.step(report)

    @one.workflow
    def outer(w: Workflow, order: int) -> None:
        first = w.http("call", "https://example.com/x", {"order": order}, retries=1, timeout="10s")
        paused = w.wait("1h", after=first)
        event = w.wait(event={"type": "paid"}, timeout="1d", after=first)
        approved = w.approve(by="admin", timeout="2d", after=paused)
        met = w.join("met", after=[event, approved], when="no_failure")
        w.sub(inner, after=met, order=order)

    steps = steps_of(outer)
    assert steps["call"] == {
        "target": {"http": {"url": "https://example.com/x"}},
        "retry": {"max_retries": 1},
        "timeout": 10,
        "payload": {"order": {"$from": "payload.order"}},
    }
    assert steps["wait"] == {"depends_on": ["call"], "wait": 3600}
    assert steps["wait-2"]["wait"] == {"event": {"type": "paid"}, "timeout": 86_400}
    assert steps["approve"]["approve"] == {"by": "admin", "timeout": 172_800}
    assert steps["met"] == {"depends_on": ["wait-2", "approve"], "when": "no_failure"}
    assert steps["inner"]["workflow"] == "inner-key"
    assert outer.recurring_body() is None
    assert [body["key"] for body in one.schedules()] == ["inner-key"]
    assert outer.body(order=7)["payload"] == {"order": 7}
    with pytest.raises(TypeError, match="missing a required argument: 'order'"):
        outer.body()  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="unexpected keyword argument 'colour'"):
        outer.body(order=7, colour="red")  # type: ignore[call-arg]


@proves("W4")
def test_a_function_without_arguments_does_not_get_those_of_the_run() -> None:
    @Ondot().workflow
    def flow(w: Workflow, region: str = "eu") -> None:
        w.step(report)

    assert steps_of(flow)["report"]["payload"] == {}


def first_line(function: Any) -> int:
    line: int = function.__code__.co_firstlineno
    return line


@proves("W2", "W9")
def test_errors_name_the_line_of_the_step() -> None:
    def wrong_argument(w: Workflow) -> None:
        w.step(process, file="a", colour="red")

    def wrong_part(w: Workflow) -> None:
        files = w.step(list_files)
        w.step(report, after=files, n=Workflow("x").payload["n"], default=files, retries=-1)

    def of_another(w: Workflow) -> None:
        w.step(report, n=other.result)

    def no_function(w: Workflow) -> None:
        w.step(len)  # type: ignore[arg-type]

    def sub_without_job(w: Workflow) -> None:
        w.sub(bare)

    @Ondot().workflow
    def bare(w: Workflow) -> None:
        w.step(report)

    other = Workflow("other").step(report)
    cases: list[tuple[Any, int, str]] = [
        (wrong_argument, 1, "colour"),
        (wrong_part, 2, "max_retries"),
        (of_another, 1, "another workflow"),
        (no_function, 1, "@app.job"),
        (sub_without_job, 1, "no job of its own"),
    ]
    for function, below, words in cases:
        with pytest.raises((TypeError, InvalidBody), match=words) as refusal:
            Ondot().workflow(function)
        assert f"test_workflow.py line {first_line(function) + below}" in str(refusal.value), function.__name__
        assert function.__name__ in str(refusal.value)


@proves("W2")
def test_a_reference_to_a_step_that_is_not_above_is_refused_as_the_server_does() -> None:
    def flow(w: Workflow) -> None:
        w.step(report, if_={"steps": {"later": {"result": {"n": [1]}}}})
        w.step(list_files, name="later")

    with pytest.raises(InvalidGraph, match=r"step report: .*later") as refusal:
        Ondot().workflow(flow)
    assert f"line {first_line(flow) + 1}" in str(refusal.value)


def test_values_of_a_run_cannot_be_computed_with() -> None:
    w = Workflow("w")
    files = w.step(list_files)
    wrongs: tuple[Any, ...] = (
        lambda: f"{files.result}",
        lambda: bool(files.result),
        lambda: list(files.result),
        lambda: len(files.result),
        lambda: str(w.payload),
        lambda: bool(files.result == 1),
    )
    for wrong in wrongs:
        with pytest.raises(TypeError, match="when the workflow runs"):
            wrong()
    both = (files.result["a"] >= 1) & (files.state != "SKIPPED") & (w.payload["region"] == "eu")
    assert both.pattern == {
        "steps": {"list_files": {"result": {"a": [{"numeric": [">=", 1]}]}, "state": [{"anything-but": ["SKIPPED"]}]}},
        "payload": {"region": ["eu"]},
    }


def test_options_of_a_workflow_are_checked_at_import() -> None:
    def flow(w: Workflow) -> None:
        w.step(report)

    for options, error in (
        ({"cron": "61 * * * *"}, InvalidSchedule),
        ({"colour": "red"}, TypeError),
        ({"on_failure": "explode"}, InvalidBody),
        ({"blocked_for": "soon"}, ValueError),
    ):
        with pytest.raises(error, match="flow"):
            Ondot().workflow(**options)(flow)  # type: ignore[call-overload]
    with pytest.raises(TypeError, match="no steps"):
        Ondot().workflow(name="flow")(lambda w: None)


STRICT = """
from ondot import Context, Ondot, Workflow

app = Ondot()

@app.job
async def fetch(ctx: Context, region: str) -> dict[str, int]:
    return {"n": 1}

@app.job
def show(n: int) -> None: ...

@app.workflow(cron="0 2 * * *")
def nightly(w: Workflow, region: str = "eu") -> None:
    got = w.step(fetch, region=region)
    w.step(show, n=got.result["n"], if_=got.result["n"] > 0)

async def main() -> None:
    handle = await nightly.enqueue(region="us")
    results: dict[str, object] = await handle.result(timeout=30)
    print(results)
"""


@proves("W9")
def test_a_workflow_passes_mypy_strict_and_wrong_arguments_do_not(tmp_path: Path) -> None:
    (tmp_path / "good.py").write_text(STRICT)
    (tmp_path / "bad.py").write_text(STRICT.replace('enqueue(region="us")', "enqueue(region=7)"))
    command = [sys.executable, "-m", "mypy", "--strict", "--cache-dir", str(tmp_path / "cache")]
    good = subprocess.run([*command, str(tmp_path / "good.py")], capture_output=True, text=True, check=False)
    assert good.returncode == 0, good.stdout
    bad = subprocess.run([*command, str(tmp_path / "bad.py")], capture_output=True, text=True, check=False)
    assert 'Argument "region"' in bad.stdout


@proves("S11", "W9")
def test_functions_and_workflows_that_events_start_take_their_arguments_from_the_event() -> None:
    one = Ondot()

    @one.job(event={"type": "order.paid", "filter": {"data": {"amount": [{"numeric": [">=", 100]}]}}})
    def thank(order_id: int, event: dict[str, Any], region: str = "eu") -> None: ...

    @one.workflow(event={"type": "order.placed"})
    def fulfil(w: Workflow, order_id: int, region: str = "eu") -> None:
        w.step(report, n=order_id)

    function, workflow = one.schedules()
    assert function["payload"] == {"order_id": {"$from": "event.data.order_id"}, "event": {"$from": "event"}}
    assert function["schedule"]["event"]["type"] == "order.paid"
    assert workflow["payload"] == {"order_id": {"$from": "event.data.order_id"}, "region": "eu"}
    assert fulfil.body(order_id=7)["payload"] == {"order_id": 7, "region": "eu"}
    wrongs: tuple[Any, ...] = ({"type": ""}, {"filter": {}}, {"type": "a", "filter": {"data": [{"numeric": ["~", 1]}]}})
    for wrong in wrongs:
        with pytest.raises(InvalidBody, match="thanks"):
            one.job(name="thanks", event=wrong)(lambda: None)


@proves("W1", "W9")
async def test_enqueue_names_the_jobs_that_it_comes_after() -> None:
    sent: list[dict[str, Any]] = []

    async def submit(body: dict[str, Any]) -> tuple[dict[str, Any], bool]:
        sent.append(body)
        return {"id": f"job-{len(sent)}"}, True

    def later(after: int = 0) -> None: ...

    client = Client("http://127.0.0.1:9", "key")
    handler: Handler[..., Any] = Handler(report.function, client=client, submit=submit)
    first = await handler.enqueue(n=1)
    await handler.options(after=first).enqueue(n=2)
    await handler.options(in_="1h", after=[first, "a-key"]).enqueue()
    takes_after: Handler[..., Any] = Handler(later, client=client, submit=submit)
    await takes_after.enqueue(after=7)
    assert [body.get("depends_on") for body in sent] == [None, ["job-1"], ["job-1", "a-key"], None]
    assert sent[3]["payload"] == {"after": 7}
    with pytest.raises(TypeError, match="`after` takes jobs"):
        handler.options(after=7)
    with pytest.raises(TypeError, match=r"`after` is an option: write report\.options\(after=…\)\.enqueue\(…\)"):
        await handler.enqueue(after=first)
