"""A workflow as people write it: read, checked, rendered and patched."""

from datetime import UTC, datetime
from typing import Any

import pytest

from ondot.document.merge_patch import base_of
from ondot.document.parse import job_spec, new_job_spec, patched_spec
from ondot.document.render import render_spec
from ondot.model.errors import InvalidBody, InvalidGraph, TooLarge
from ondot.model.job import JobSpec, decode_spec, encode_spec, fill_in_schedule, is_same_spec
from ondot.model.secret import Hidden
from ondot.model.target import FunctionTarget, HttpTarget, ShellTarget
from ondot.model.workflow.spec import Approve, MapSpec, StepSpec, SubWorkflow, Tolerate, Wait, WorkflowTarget
from tests.proves import proves

NOW = datetime(2030, 1, 1, tzinfo=UTC)

NIGHTLY: dict[str, Any] = {
    "name": "nightly",
    "schedule": {"cron": "0 2 * * *", "timezone": "Europe/Berlin"},
    "timeout": "4h",
    "steps": {
        "list": {"function": "list_files"},
        "process": {
            "depends_on": ["list"],
            "function": "process",
            "map": {"over": {"$from": "list.result.files"}, "concurrency": 50, "tolerate": {"percent": 1}},
        },
        "upload": {"depends_on": ["process"], "map": {"each": "process"}, "url": "https://example.com/upload"},
        "report": {
            "depends_on": ["upload"],
            "function": "report",
            "payload": {"n": {"$from": "upload.count"}},
            "if": {"steps": {"list": {"result": {"total": [{"numeric": [">", 0]}]}}}},
        },
        "page": {"depends_on": ["report"], "when": "failure", "url": "https://example.com/page"},
        "cleanup": {"depends_on": ["report"], "when": "ended", "finally": True, "command": ["rm", "-rf", "scratch"]},
    },
}

EVERYTHING: dict[str, Any] = {
    "a": {
        "url": "https://example.com",
        "retryPolicy": {"max_attempts": 3},
        "timeout_s": 30,
        "pool": "gpu",
        "priority": "HIGH",
        "labels": {"someTeam": "bi"},
        "concurrencyKey": "c",
        "key_rate": "5/1m",
        "concurrency": 7,
        "rate": {"limit": 10, "per": "1m"},
        "order_key": "o",
        "payload": {"camelCase": 1, "x": {"$from": "payload.y"}},
        "default": {"camelCase": 2},
    },
    "camelCaseName": {"wait": "1h", "depends_on": ["a"]},
    "paid": {"wait": {"event": {"type": "paid", "filter": {"data": {"camelCase": [1]}}}, "timeout": "1d"}},
    "ok": {"approve": {"by": "admin", "timeout": "2d"}},
    "anyone": {"approve": {}},
    "child": {"workflow": "other", "payload": [1], "map": {"over": [1, 2], "tolerate": {"count": 1}}},
    "join": {"depends_on": ["a", "child"], "when": "no_failure", "handles": True},
    "shell": {"target": {"shell": {"command": ["ls"]}}, "finally": True, "retry": {"max_retries": 1}},
}


def spec_of(steps: dict[str, Any], **others: Any) -> JobSpec:
    return job_spec({"name": "n", "steps": steps, **others}, NOW)


def workflow_of(spec: JobSpec) -> WorkflowTarget:
    assert isinstance(spec.target, WorkflowTarget)
    return spec.target


def refuse(steps: Any, **others: Any) -> InvalidBody:
    with pytest.raises(InvalidBody) as refusal:
        job_spec({"name": "n", "steps": steps, **others}, NOW)
    return refusal.value


@proves("W1")
def test_the_nightly_example_is_read_with_its_steps_in_their_order() -> None:
    spec = job_spec(NIGHTLY, NOW)
    steps = workflow_of(spec).steps
    assert list(steps) == ["list", "process", "upload", "report", "page", "cleanup"]
    assert steps["list"] == StepSpec(target=FunctionTarget(name="list_files"))
    assert steps["upload"].target == HttpTarget(url="https://example.com/upload")
    assert steps["upload"].map == MapSpec(each="process")
    assert steps["cleanup"].target == ShellTarget(command=("rm", "-rf", "scratch"))
    assert (steps["cleanup"].is_final, steps["cleanup"].when) == (True, "ended")
    assert (spec.timeout_s, spec.recurs) == (14_400, True)


@proves("W1")
def test_top_level_steps_are_short_for_a_target() -> None:
    steps = {"a": {"function": "f"}}
    long = {"target": {"workflow": {"steps": steps, "on_failure": "fail", "blocked_for": "1h"}}}
    short = {"steps": steps, "onFailure": "fail", "blockedFor": "1h"}
    assert encode_spec(job_spec({"name": "n", **long}, NOW)) == encode_spec(job_spec({"name": "n", **short}, NOW))
    assert workflow_of(job_spec({"name": "n", **short}, NOW)).blocked_for_s == 3600


def test_every_field_of_a_step_is_read() -> None:
    steps = workflow_of(spec_of(EVERYTHING)).steps
    a = steps["a"]
    assert a.retry is not None
    assert a.limits is not None
    assert a.limits.key_rate is not None
    assert (a.retry.max_retries, a.timeout_s, a.pool, a.priority) == (2, 30, "gpu", "high")
    assert (a.limits.key, a.limits.key_rate.limit, a.limits.key_concurrency, a.limits.order_key) == ("c", 5, None, "o")
    assert a.labels == {"someTeam": "bi"}
    assert bytes(a.payload or b"") == b'{"camelCase":1,"x":{"$from":"payload.y"}}'
    assert bytes(a.default or b"") == b'{"camelCase":2}'
    assert steps["camelCaseName"].target == Wait(for_s=3600)
    event = steps["paid"].target
    assert isinstance(event, Wait)
    assert (bytes(event.event or b""), event.timeout_s) == (
        b'{"type":"paid","filter":{"data":{"camelCase":[1]}}}',
        86_400,
    )
    assert steps["ok"].target == Approve(by="admin", timeout_s=172_800)
    assert steps["anyone"].target == Approve()
    assert steps["child"].target == SubWorkflow(key="other")
    assert steps["child"].map is not None
    assert steps["child"].map.tolerate == Tolerate(count=1)
    assert steps["join"] == StepSpec(depends_on=("a", "child"), when="no_failure", handles=True)


@proves("W1")
@pytest.mark.parametrize("body", [NIGHTLY, {"name": "n", "steps": EVERYTHING}])
def test_a_workflow_that_was_read_can_be_sent_again_and_stored(body: dict[str, Any]) -> None:
    spec = job_spec(body, NOW)
    assert encode_spec(job_spec(render_spec(spec), NOW)) == encode_spec(spec)
    assert encode_spec(decode_spec(encode_spec(spec))) == encode_spec(spec)
    assert is_same_spec(spec, decode_spec(encode_spec(spec)))
    assert encode_spec(new_job_spec(body, NOW)) == encode_spec(spec)


@proves("W2")
@pytest.mark.parametrize(
    ("steps", "pointer", "words"),
    [
        ({"a": {"dependsOn": ["b"]}, "b": {"depends_on": ["a"]}}, "/steps/a/dependsOn/0", "a → b → a"),
        ({"a": {"depends_on": ["lst"]}, "list": {}}, "/steps/a/depends_on/0", "There is no step `lst`"),
        (
            {"a": {"function": "f", "payload": {"x": [{"$from": "b.result"}]}}, "b": {"function": "g"}},
            "/steps/a/payload/x/0",
            "`b` is not above `a`",
        ),
        ({"a": {"function": "f", "payload": {"$from": "zz.result"}}}, "/steps/a/payload", "no step `zz`"),
        (
            {"b": {"function": "g"}, "a": {"depends_on": ["b"], "function": "f", "payload": {"$from": "b.count"}}},
            "/steps/a/payload",
            "`b` is no mapped step",
        ),
        ({"a": {"function": "f", "payload": {"$from": "item"}}}, "/steps/a/payload", "only in a step with `map`"),
        (
            {"b": {"function": "g"}, "a": {"function": "f", "map": {"over": {"$from": "b.result"}}}},
            "/steps/a/map/over",
            "`b` is not above `a`",
        ),
        ({"b": {}, "a": {"function": "f", "map": {"each": "b"}}}, "/steps/a/map/each", "add it to `depends_on`"),
        (
            {"b": {}, "a": {"depends_on": ["b"], "function": "f", "map": {"each": "b"}}},
            "/steps/a/map/each",
            "is no mapped step",
        ),
        (
            {
                "b": {"function": "f", "map": {"over": [1]}},
                "a": {"depends_on": ["b"], "function": "f", "when": "ended", "map": {"each": "b"}},
            },
            "/steps/a/map/each",
            "so `when` cannot be `ended`",
        ),
        (
            {"b": {}, "a": {"function": "f", "if": {"steps": {"b": {"result": [1]}}}}},
            "/steps/a/if/steps/b",
            "`b` is not above `a`",
        ),
        ({"a": {"function": "f", "if": {"x": [1]}}}, "/steps/a/if", "looks at `payload` and `steps` only"),
        ({"a": {"function": "f", "if": {"steps": {"b": [1]}}}}, "/steps/a/if", "name a step and its result"),
        ({f"s{i}": {} for i in range(10_001)}, "/steps", "at most 10,000 steps, got 10,001"),
    ],
)
def test_a_wrong_graph_is_a_400_with_a_pointer(steps: dict[str, Any], pointer: str, words: str) -> None:
    refusal = refuse(steps)
    assert isinstance(refusal, InvalidGraph)
    [fault] = refusal.faults
    assert fault.pointer == pointer
    assert words in fault.message


@proves("W2")
@pytest.mark.parametrize(
    ("step", "pointer", "words"),
    [
        (7, "", "must be an object"),
        (None, "", "must be an object"),
        ({"functon": "f"}, "/functon", "did you mean `function`?"),
        ({"cron": "* * * * *"}, "/cron", "no schedule of its own"),
        ({"url": "x"}, "/url", "`steps.a.url` must be an address"),
        ({"url": "http://x", "function": "f"}, "/target", "got `http` and `function`"),
        ({"url": "http://x", "wait": "1h"}, "/wait", "does one thing"),
        ({"wait": "soon"}, "/wait/for", "duration"),
        ({"wait": {}}, "/wait", "takes a time"),
        ({"wait": {"event": {"filter": {}}}}, "/wait/event", "with a `type`"),
        ({"wait": {"event": {"type": "x", "filter": {"a": [{"regex": "x"}]}}}}, "/wait/event/filter/a/0", "regex"),
        ({"wait": "1h", "payload": 3}, "/payload", "`a` is `wait`"),
        ({"timeout": "1h"}, "/timeout", "a join"),
        ({"map": {"over": [1]}}, "/map", "a join"),
        ({"approve": {"by": "boss"}}, "/approve/by", "operator"),
        ({"function": "f", "map": {}}, "/map", "exactly one of `over`"),
        ({"function": "f", "map": {"over": 3}}, "/map/over", "must be a list"),
        ({"function": "f", "map": {"over": {"$from": "b.count"}}}, "/map/over", "needs a list"),
        ({"function": "f", "map": {"over": [], "tolerate": {}}}, "/map/tolerate", "`count` and `percent`"),
        ({"function": "f", "map": {"over": [], "concurrency": 0}}, "/map/concurrency", "at least 1"),
        ({"function": "f", "if": {"payload": {"x": [{"nope": 1}]}}}, "/if/payload/x/0", "nope"),
        ({"function": "f", "if": 3}, "/if", "object"),
        ({"when": "failure"}, "/when", "has none"),
        ({"when": "sometimes"}, "/when", '"success"'),
        ({"finally": True, "handles": True}, "/handles", "cannot handle"),
        ({"function": "f", "concurrency": 0}, "/concurrency", "at least 1"),
        ({"function": "f", "overlap": "skip"}, "/overlap", "is about runs"),
        ({"function": "f", "key_rate": "1/s"}, "/key_rate", "give `concurrency_key` too"),
        ({"function": "f", "retry": {"backoff": "listed"}}, "/retry/delays", "Give `delays`"),
        ({"steps": {"b": {}}}, "/target/workflow", "no field `workflow`"),
        ({"function": "f", "payload": {"$secret": "UPPER"}}, "/payload", "takes the name of a secret"),
    ],
)
def test_a_wrong_step_is_a_422_with_a_pointer_to_what_was_written(step: object, pointer: str, words: str) -> None:
    refusal = refuse({"a": step})
    assert not isinstance(refusal, InvalidGraph)
    assert refusal.faults[0].pointer == f"/steps/a{pointer}"
    assert words in refusal.faults[0].message


@pytest.mark.parametrize("name", ["a b", "a.b", "payload", "", "x" * 64, "ä"])
def test_a_name_that_a_reference_cannot_spell_is_rejected(name: str) -> None:
    assert "cannot be the name of a step" in refuse({name: {"function": "f"}}).message


@pytest.mark.parametrize("steps", [[], {}, None, 7, "x"])
def test_steps_that_are_no_object_are_rejected(steps: object) -> None:
    body = {"name": "n", "target": {"workflow": {"steps": steps}}}
    with pytest.raises(InvalidBody) as refusal:
        job_spec(body, NOW)
    assert refusal.value.faults[0].pointer == "/target/workflow/steps"


def test_a_workflow_and_another_target_exclude_each_other() -> None:
    assert "exactly one of http, function, shell, workflow" in refuse({"a": {}}, url="http://x").message


def test_many_wrong_steps_and_parents_are_reported_up_to_twenty_without_comparing_all_names() -> None:
    assert len(refuse({f"s{i}": {"nope": 1} for i in range(10_000)}).faults) == 20
    wrong = {f"s{i}": {"depends_on": [f"t{i}-{j}" for j in range(10)]} for i in range(10_000)}
    assert len(refuse(wrong).faults) == 20


def test_a_payload_of_a_step_has_the_bound_of_a_payload() -> None:
    with pytest.raises(TooLarge) as refusal:
        job_spec({"name": "n", "steps": {"a": {"function": "f", "payload": "x" * 1_048_577}}}, NOW)
    assert refusal.value.facts["pointer"] == "/steps/a/payload"


@proves("W5")
def test_a_workflow_of_ten_thousand_steps_and_a_hundred_thousand_edges_is_accepted() -> None:
    steps: dict[str, Any] = {
        f"s{i}": {"depends_on": [f"s{j}" for j in range(max(0, i - 10), i)]} for i in range(10_000)
    }
    steps["s9999"] |= {"function": "f", "payload": {"$from": "s9000.result"}, "depends_on": ["s9998"]}
    steps["s9000"] |= {"function": "f"}
    assert len(workflow_of(job_spec({"name": "n", "steps": steps}, NOW)).steps) == 10_000


def patch(spec: JobSpec, changes: dict[str, Any]) -> dict[str, Any]:
    stored = fill_in_schedule(decode_spec(encode_spec(spec)), None, NOW)  # type: ignore[arg-type]
    steps: dict[str, Any] = base_of(patched_spec(stored, changes, NOW))["target"]["workflow"]["steps"]
    return steps


@proves("W1")
def test_a_patch_changes_one_step_and_leaves_the_others() -> None:
    spec = job_spec(NIGHTLY, NOW)
    before = base_of(spec)["target"]["workflow"]["steps"]
    after = patch(spec, {"steps": {"report": {"timeout": "5m", "payload": None}, "new": {"function": "g"}}})
    assert after["report"] == {**{k: v for k, v in before["report"].items() if k != "payload"}, "timeout": 300}
    assert after["new"] == {"target": {"function": "g"}}
    assert all(after[name] == before[name] for name in before if name != "report")


def test_a_patched_step_that_calls_something_else_loses_what_it_called() -> None:
    spec = job_spec(NIGHTLY, NOW)
    assert patch(spec, {"steps": {"page": {"function": "page"}}})["page"]["target"] == {"function": "page"}
    waiting = patch(spec, {"steps": {"page": {"wait": "1h"}}})["page"]
    assert (waiting["wait"], "target" in waiting) == (3600, False)


def test_a_patch_removes_a_step_with_null_and_rejects_an_unknown_one() -> None:
    spec = job_spec(NIGHTLY, NOW)
    assert "page" not in patch(spec, {"steps": {"page": None}})
    for changes in ({"pge": None}, {"page": {"nope": None}}, {"list": None}):
        with pytest.raises(InvalidBody):
            patch(spec, {"steps": changes})


def test_a_patch_can_turn_a_job_into_a_workflow_and_back() -> None:
    plain = job_spec({"name": "n", "url": "https://example.com", "every": "1h"}, NOW)
    assert patch(plain, {"steps": {"a": {"function": "f"}}}) == {"a": {"target": {"function": "f"}}}
    stored = fill_in_schedule(job_spec(NIGHTLY, NOW), None, NOW)  # type: ignore[arg-type]
    assert patched_spec(stored, {"function": "f"}, NOW).target == FunctionTarget(name="f")


@proves("T5")
def test_secrets_of_steps_are_found_with_those_of_headers_and_of_the_payload_that_a_step_inherits() -> None:
    spec = spec_of(
        {
            "own": {"function": "f", "payload": {"key": {"$secret": "own"}}},
            "header": {"target": {"http": {"url": "https://x", "headers": {"authorization": {"$secret": "head"}}}}},
            "plain": {"function": "f", "payload": 1},
            "token": {"target": {"http": {"url": "https://x", "headers": {"authorization": "t"}}}, "payload": 1},
        },
        payload={"key": {"$secret": "job"}},
    )
    steps = workflow_of(spec).steps
    assert {name: step.secrets for name, step in steps.items()} == {
        "own": ("own",),
        "header": ("head", "job"),
        "plain": None,
        "token": (),
    }
    assert spec.secrets == ("head", "job", "own")
    assert spec_of({"a": {"function": "f"}}).secrets is None


@proves("T5")
def test_credentials_of_a_step_are_masked_and_kept_for_the_same_step_and_address_only() -> None:
    def body(value: str, url: str = "https://x", name: str = "a") -> dict[str, Any]:
        return {
            "name": "n",
            "every": "1h",
            "steps": {name: {"target": {"http": {"url": url, "headers": {"authorization": value}}}}},
        }

    stored = job_spec(body("token"), NOW)
    steps = workflow_of(stored).steps
    target = steps["a"].target
    assert isinstance(target, HttpTarget)
    assert render_spec(stored)["target"]["workflow"]["steps"]["a"]["target"]["http"]["headers"] == {
        "authorization": "•••"
    }
    kept = workflow_of(job_spec(body("•••"), NOW, current=stored)).steps["a"].target
    assert isinstance(kept, HttpTarget)
    assert kept.headers == {"authorization": "token"}
    for wrong in (body("•••", url="https://y"), body("•••", name="b")):
        with pytest.raises(InvalidBody):
            job_spec(wrong, NOW, current=stored)
    with pytest.raises(InvalidBody):
        job_spec(body("•••"), NOW)
    assert not isinstance(target.headers["authorization"], Hidden)
