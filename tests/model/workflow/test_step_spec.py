"""The spec of a step: its own settings, else those of the workflow that are for attempts."""

from msgspec import Raw

from ondot.model.gates import Limits
from ondot.model.job import JobSpec
from ondot.model.retry import Retry
from ondot.model.target import FunctionTarget, HttpTarget
from ondot.model.workflow.spec import StepSpec, WorkflowTarget
from ondot.model.workflow.step_spec import step_job_spec
from tests.proves import proves

FEW = Retry(max_retries=1)
MANY = Retry(max_retries=9)


def workflow_of(**steps: StepSpec) -> JobSpec:
    return JobSpec(
        name="nightly",
        target=WorkflowTarget(steps=steps),
        payload=Raw(b'{"day": 1}'),
        pool="batch",
        priority="low",
        labels={"team": "bi", "env": "prod"},
        retry=FEW,
        timeout_s=3600,
        limits=Limits(concurrency=1),
        start_deadline_s=5,
        cancel_grace_s=3,
        key="nightly",
    )


@proves("W1")
def test_a_step_inherits_what_is_for_attempts_and_nothing_that_is_for_runs() -> None:
    spec = step_job_spec(workflow_of(a=StepSpec(target=FunctionTarget(name="f"))), 0)
    assert (spec.pool, spec.priority, spec.retry, spec.cancel_grace_s) == ("batch", "low", FEW, 3)
    assert (spec.labels, bytes(spec.payload)) == ({"team": "bi", "env": "prod"}, b'{"day": 1}')
    assert (spec.timeout_s, spec.limits, spec.start_deadline_s, spec.key) == (None, None, None, None)
    assert spec.name == "nightly"


@proves("W1")
def test_what_a_step_says_itself_wins() -> None:
    step = StepSpec(
        target=HttpTarget(url="https://example.com"),
        pool="gpu",
        priority="high",
        retry=MANY,
        timeout_s=7,
        labels={"env": "test"},
        payload=Raw(b"[]"),
        limits=Limits(key="k", key_concurrency=1),
        secrets=("stripe",),
    )
    spec = step_job_spec(workflow_of(a=StepSpec(target=FunctionTarget(name="f")), b=step), 1)
    assert (spec.pool, spec.priority, spec.retry, spec.timeout_s) == ("gpu", "high", MANY, 7)
    assert (spec.labels, bytes(spec.payload)) == ({"team": "bi", "env": "test"}, b"[]")
    assert (spec.limits, spec.secrets) == (Limits(key="k", key_concurrency=1), ("stripe",))
