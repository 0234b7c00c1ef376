"""The results of steps above a step, as an attempt of it gets them (W4): JSON texts, decoded when they are read."""

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec
from msgspec import Struct


class StepResults(Struct, frozen=True):
    """`texts`: by step. `refused`: why some have none: too large, or cut. `nearest`: there are more steps above than
    these, and only so many are read; 0: these are all."""

    texts: dict[str, str] = {}
    refused: dict[str, str] = {}
    nearest: int = 0


class Results(Mapping[str, Any]):
    """`ctx.results`: the results of the steps above this one, by name; of a step that was skipped, its default."""

    def __init__(self, results: StepResults | None) -> None:
        self._results = results or StepResults()
        self._is_step = results is not None
        self._decoded: dict[str, Any] = {}

    def __getitem__(self, step: str) -> Any:
        if step not in self._decoded:
            if step in self._results.refused:
                raise LookupError(self._results.refused[step])
            if step not in self._results.texts:
                raise KeyError(self._explain(step))
            self._decoded[step] = msgspec.json.decode(self._results.texts[step])
        return self._decoded[step]

    def __iter__(self) -> Iterator[str]:
        return iter([*self._results.texts, *self._results.refused])

    def __len__(self) -> int:
        return len(self._results.texts) + len(self._results.refused)

    def __contains__(self, step: object) -> bool:
        return step in self._results.texts or step in self._results.refused

    def _explain(self, step: str) -> str:
        if not self._is_step:
            return f"There is no result of {step!r}: this attempt is no step of a workflow."
        if self._results.nearest:
            return (
                f"There is no result of {step!r} among the nearest {self._results.nearest} steps above this one, and"
                " only those are read. Refer to it in the payload of the step, if it is further up."
            )
        known = ", ".join(self) or "none"
        return f"There is no result of {step!r}: the steps above this one are: {known}."
