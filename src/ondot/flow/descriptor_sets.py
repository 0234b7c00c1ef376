"""①d Descriptor sets of gRPC targets in a written job (E3): they must have the method, and the payload must fit.

A fault that each attempt would have is rejected when the job is written. A payload that is known only later is checked
at the attempt: that of an event, of a step, or one with secrets. Without a set only the server knows its methods.
"""

import asyncio
from collections.abc import Iterator, Sequence

from ondot.descriptors import BadTypes, Misfit, read_set
from ondot.model.errors import Fault, InvalidBody
from ondot.model.job import JobSpec
from ondot.model.secret import may_refer
from ondot.model.target import GrpcTarget
from ondot.model.workflow.spec import WorkflowTarget


async def check_descriptor_sets(specs: Sequence[JobSpec]) -> None:
    """Raises InvalidBody, or Misconfigured if this process does not have the extra `grpc`."""
    for spec in specs:
        if isinstance(spec.target, GrpcTarget | WorkflowTarget):
            for place, target in _list_targets(spec):
                if target.descriptor_set is not None:
                    await asyncio.to_thread(_check, spec, place, target)


def _list_targets(spec: JobSpec) -> Iterator[tuple[str, GrpcTarget]]:
    if isinstance(spec.target, GrpcTarget):
        yield "/target/grpc", spec.target
    elif isinstance(spec.target, WorkflowTarget):
        for name, step in spec.target.steps.items():
            if isinstance(step.target, GrpcTarget):
                yield f"/target/workflow/steps/{name}/target/grpc", step.target


def _check(spec: JobSpec, place: str, target: GrpcTarget) -> None:
    payload = bytes(spec.payload)
    try:
        method = read_set(target.descriptor_set or "").find(target.method)
        if spec.target is target and not spec.starts_by_event and not may_refer(payload):
            method.encode(payload)
    except BadTypes as fault:
        raise _rejection(f"{place}/descriptor_set", f"`descriptor_set`: {fault}") from None
    except Misfit as fault:
        raise _rejection("/payload", str(fault)) from None


def _rejection(pointer: str, message: str) -> InvalidBody:
    return InvalidBody(message, faults=(Fault(pointer, message),))
