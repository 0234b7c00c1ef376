"""The facts of an attempt, as calls that leave the worker carry them: in headers of HTTP, in metadata of gRPC (E11).

A receiver recognises a repeated call by `webhook-id`, which is the execution's id, and a late one by the fencing token.
"""

import secrets
from datetime import UTC

from ondot.model.own_events import HOPS
from ondot.ports.target import Call
from ondot.telemetry.trace import new_traceparent


def facts_of(call: Call) -> dict[str, str]:
    facts = {
        "webhook-id": str(call.execution_id),
        "ondot-job-id": str(call.job_id),
        "ondot-fire-at": call.fire_at.astimezone(UTC).isoformat().replace("+00:00", "Z"),
        "ondot-attempt": str(call.attempt_no),
        "ondot-fencing-token": str(call.fencing_token),
        # One trace for an execution or a run, one span for an attempt.
        "traceparent": call.traceparent or new_traceparent(call.run_id or call.execution_id, secrets.token_hex(8)),
    }
    if call.tracestate is not None:
        facts["tracestate"] = call.tracestate
    if call.run_id is not None:
        facts["ondot-run-id"] = str(call.run_id)
        facts["ondot-step"] = call.step or ""
        if call.item_no is not None:
            facts["ondot-item"] = str(call.item_no)
    if call.hops is not None:
        facts[f"ce-{HOPS}"] = str(call.hops)
    return facts
