"""What a caller's key says about the jobs that it may write (T1): its pools, and the scopes `shell` and
`private-targets`."""

from collections.abc import Iterable, Sequence

from msgspec import structs

from ondot.model.access import Caller, Right
from ondot.model.errors import Fault, InvalidBody
from ondot.model.job import JobSpec, replace_remote_targets
from ondot.model.target import RemoteTarget, ShellTarget
from ondot.model.workflow.spec import WorkflowTarget
from ondot.model.workflow.step_spec import list_attempt_specs


def check_jobs(caller: Caller, specs: Iterable[JobSpec]) -> None:
    """Refuse jobs that the caller may not write: those of pools beyond its key's, which are unknown to it, and shell
    commands without the scope."""
    if caller.pools is None and Right.SHELL in caller.rights:
        return
    for spec in specs:
        _check_pool(caller, spec.pool, "/pool")
        if isinstance(spec.target, WorkflowTarget):
            for name, step in list_attempt_specs(spec):
                _check_pool(caller, step.pool, f"/target/workflow/steps/{name}/pool")
                if isinstance(step.target, ShellTarget):
                    caller.require(Right.SHELL)
        elif isinstance(spec.target, ShellTarget):
            caller.require(Right.SHELL)


def _check_pool(caller: Caller, pool: str, pointer: str) -> None:
    if not caller.sees(pool):
        known = ", ".join(sorted(caller.pools or ()))
        fault = f"Unknown pool {pool!r}. Use one of: {known}; or ask an owner of the installation to grant it."
        raise InvalidBody(fault, (Fault(pointer, fault),), pool=pool)


def limit_reach(caller: Caller, specs: Sequence[JobSpec]) -> Sequence[JobSpec]:
    """The specs as they are stored: without the scope `private-targets` their calls never reach a private address,
    whatever the worker allows. The writer of a version decides, so that a patch cannot borrow the right of another."""
    if Right.PRIVATE_TARGETS in caller.rights:
        return specs
    return [replace_remote_targets(spec, _only_public) for spec in specs]


def _only_public(target: RemoteTarget) -> RemoteTarget:
    return structs.replace(target, only_public=True)
