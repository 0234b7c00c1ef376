"""Chooses where a function runs (E6, P13): in the worker, or in a child process once it lost workers or blocked a loop.

A function becomes a suspect by degrees. After one lost worker, which may have had any cause, it runs as before; after
two in a child process with a few others, after three alone. A function that blocked a worker's loop runs alone in a
child at once, whichever execution it is for: there it holds up nothing else, and can be ended by force.
"""

from collections.abc import Sequence

from ondot.model.retry import SUSPECT_FROM
from ondot.model.target import FunctionTarget
from ondot.ports.target import Call, CallReport, End, Interrupt, Target
from ondot.targets.function.child import STARTS_WITHIN_S, ChildCaller
from ondot.targets.function.target import FunctionCaller


class Functions(Target[FunctionTarget]):
    def __init__(self, in_worker: FunctionCaller, in_child: ChildCaller | None = None) -> None:
        """`in_child`: None if there is no app that a child could import; all functions run in the worker then."""
        self._in_worker = in_worker
        self._in_child = in_child
        self._blocking: frozenset[str] = frozenset()
        """Functions that have lately blocked a loop, of this worker or of another."""

    @property
    def stuck(self) -> int:
        return self._in_worker.stuck

    async def call(self, spec: FunctionTarget, call: Call) -> CallReport:
        is_blocking = spec.name in self._blocking
        is_suspect = is_blocking or call.losses >= SUSPECT_FROM
        if self._in_child is None or not is_suspect or not self._in_worker.has(spec):
            return await self._in_worker.call(spec, call)
        # It would hold up the other calls of its child, and they would be lost when it is ended by force.
        return await self._in_child.call(spec, call, is_alone=is_blocking)

    def startup_s(self, spec: FunctionTarget, call: Call) -> float:
        """A child process imports the whole app first."""
        is_in_child = call.losses >= SUSPECT_FROM or spec.name in self._blocking
        return STARTS_WITHIN_S if is_in_child and self._in_child is not None else 0.0

    def secrets_of(self, spec: FunctionTarget) -> Sequence[str]:
        return self._in_worker.secrets_of(spec)

    def reads_results(self, spec: FunctionTarget) -> bool:
        return self._in_worker.reads_results(spec)

    def can_begin(self, spec: FunctionTarget) -> bool:
        return (self._in_child is None or spec.name not in self._blocking) and self._in_worker.can_begin(spec)

    def begin(self, spec: FunctionTarget, call: Call, end: End) -> Interrupt | None:
        return self._in_worker.begin(spec, call, end)

    def find_running(self) -> tuple[str, Call] | None:
        return self._in_worker.find_running()

    def isolate(self, functions: frozenset[str]) -> None:
        self._blocking = functions

    async def close(self) -> None:
        if self._in_child is not None:
            await self._in_child.close()
        await self._in_worker.close()
