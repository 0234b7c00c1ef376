"""Workflows in Python (W1, W2): a function describes the steps once, when the module is imported.

    @app.workflow(cron="0 2 * * *", timezone="Europe/Berlin")
    def nightly(w: Workflow, region: str = "eu") -> None:
        files = w.step(list_files, region=region)
        done = w.map(process, over=files.result["files"], concurrency=50, tolerate="1%")
        w.step(report, after=done, n=done.count)

The function runs no step: it gets a `Workflow`, which records what is called with what. Arguments of the workflow and
results of steps are values that are known later (`values`). A step that gets a value of another step comes after it;
`after` names further ones. Everything is checked where it is written: arguments against the signature of the function,
the graph by the same code as the server's. An error names the line.
"""

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Literal, TypeVar

import msgspec

from ondot.model.job import Priority
from ondot.sdk.handler import Handler
from ondot.sdk.options import Duration, fill, names_in, seconds_of, templates, with_keys_filled
from ondot.sdk.values import Condition, MapHandle, StepHandle, Value, is_known_later, read_values

R = TypeVar("R")
When = Literal["success", "no_failure", "failure", "ended"]
After = StepHandle[Any] | Sequence[StepHandle[Any]]
Tolerated = int | str | Mapping[str, Any]

OF_A_STEP: Final = (
    "retry",
    "timeout",
    "pool",
    "priority",
    "labels",
    "concurrency_key",
    "key_concurrency",
    "key_rate",
    "order_key",
)
"""Options of a function that its steps have too."""
MOST_SEARCHED: Final = 1_000


class Workflow:
    """Records the steps of one workflow."""

    def __init__(self, name: str) -> None:
        self.name: Final = name
        self.steps: Final[dict[str, dict[str, Any]]] = {}
        self.lines: Final[dict[str, str]] = {}
        """Where each step is written."""

    @property
    def payload(self) -> Value:
        """The arguments of the run: `w.payload["region"]`."""
        return Value(("payload",))

    @property
    def item(self) -> Value:
        """In arguments of `map`: the item."""
        return Value(("item",))

    @property
    def index(self) -> Value:
        """In arguments of `map`: the position of the item, from 0."""
        return Value(("index",))

    def step(
        self,
        function: Handler[..., R],
        /,
        *,
        after: After = (),
        name: str | None = None,
        when: When | None = None,
        if_: Condition | Mapping[str, Any] | None = None,
        finally_: bool = False,
        handles: bool = False,
        default: Any = None,
        retries: int | None = None,
        timeout: Duration | None = None,
        pool: str | None = None,
        priority: Priority | None = None,
        args: Mapping[str, Any] | None = None,
        **arguments: Any,
    ) -> StepHandle[R]:
        """Call a function with these arguments. `args`: those that are named like an option of a step.

        `when`: which ends of the steps before it let it run. `if_`: a condition; if it does not hold, the step is
        skipped. `finally_`: it runs once, when the run ends. `handles`: its success handles the failures above it.
        `default`: its result if it is skipped.
        """
        given = {**arguments, **(args or {})}
        step = self._of_function(function, retries, timeout, pool, priority)
        given = self._bind(function, given)
        step |= {"when": when, "finally": finally_ or None, "handles": handles or None, "default": default}
        handle: StepHandle[R] = StepHandle(self._name(name, function.name), self, _line())
        self._add(handle, step, after, given, if_)
        return handle

    def map(
        self,
        function: Handler[..., R],
        /,
        *,
        over: Value | Sequence[Any] | None = None,
        each: MapHandle[Any] | None = None,
        concurrency: int | None = None,
        tolerate: Tolerated | None = None,
        after: After = (),
        name: str | None = None,
        when: When | None = None,
        if_: Condition | Mapping[str, Any] | None = None,
        handles: bool = False,
        retries: int | None = None,
        timeout: Duration | None = None,
        pool: str | None = None,
        priority: Priority | None = None,
        args: Mapping[str, Any] | None = None,
        **arguments: Any,
    ) -> MapHandle[R]:
        """Call a function once for each item: `over` a list, or `each` item of another map as soon as that has ended.

        The item is the first argument that is not given; or name it yourself: `file=w.item["path"]`. `tolerate`: how
        many items may fail, as a number or as "1%".
        """
        if (over is None) == (each is None):
            raise self._error("`map` takes one of `over`, a list, and `each`, another map.")
        given = {**arguments, **(args or {})}
        if not _names_item(given):
            given = {self._first_free(function, given): self.item, **given}
        step = self._of_function(function, retries, timeout, pool, priority)
        given = self._bind(function, given)
        spec: dict[str, Any] = {"concurrency": concurrency, "tolerate": _tolerate(tolerate)}
        handle: MapHandle[R] = MapHandle(self._name(name, function.name), self, _line())
        if each is not None:
            spec["each"] = each.name
            after = [*_listed(after), each]
        step |= {"when": when, "handles": handles or None}
        self._add(handle, step, after, given, if_, over=over, map_=_given(spec))
        return handle

    def http(
        self,
        name: str,
        url: str,
        payload: Any = None,
        *,
        method: str | None = None,
        headers: Mapping[str, Any] | None = None,
        after: After = (),
        **options: Any,
    ) -> StepHandle[Any]:
        """Call an address. `options` as the fields of a step: `when`, `if_`, `finally_`, `timeout`, `retry`, …"""
        target = _given({"url": url, "method": method, "headers": dict(headers) if headers else None})
        return self._plain(name, {"target": {"http": target}}, after, payload, options)

    def grpc(
        self,
        name: str,
        address: str,
        method: str,
        payload: Any = None,
        *,
        metadata: Mapping[str, Any] | None = None,
        tls: bool | Mapping[str, Any] | None = None,
        descriptor_set: str | None = None,
        after: After = (),
        **options: Any,
    ) -> StepHandle[Any]:
        """Call a unary method of a gRPC server, for example `"shop.v1.Orders/Place"`."""
        target = _given(
            {
                "address": address,
                "method": method,
                "metadata": dict(metadata) if metadata else None,
                "tls": dict(tls) if isinstance(tls, Mapping) else tls,
                "descriptor_set": descriptor_set,
            }
        )
        return self._plain(name, {"target": {"grpc": target}}, after, payload, options)

    def command(
        self, name: str, command: Sequence[str], payload: Any = None, *, after: After = (), **options: Any
    ) -> StepHandle[Any]:
        """Run a program; the payload is its standard input."""
        return self._plain(name, {"target": {"shell": {"command": list(command)}}}, after, payload, options)

    def join(self, name: str, *, after: After, **options: Any) -> StepHandle[None]:
        """A step that calls nothing: a place where branches meet."""
        return self._plain(name, {}, after, None, options)

    def wait(
        self,
        for_: Duration | None = None,
        *,
        event: Mapping[str, Any] | None = None,
        timeout: Duration | None = None,
        after: After = (),
        name: str = "wait",
        **options: Any,
    ) -> StepHandle[Any]:
        """Wait for a time, or for an event; the event is the step's result. It occupies no worker."""
        if (for_ is None) == (event is None):
            raise self._error('`wait` takes one of a time, such as "1h", and `event`.')
        wait: Any = seconds_of("for_", for_) if for_ is not None else {"event": dict(event or {})}
        if timeout is not None:
            if for_ is not None:
                raise self._error("`timeout` is for an event; a time ends by itself.")
            wait["timeout"] = seconds_of("timeout", timeout)
        return self._plain(self._name(None, name), {"wait": wait}, after, None, options)

    def approve(
        self,
        *,
        by: str = "operator",
        timeout: Duration | None = None,
        after: After = (),
        name: str = "approve",
        **options: Any,
    ) -> StepHandle[Any]:
        """Wait for a person of at least this role."""
        limit = None if timeout is None else seconds_of("timeout", timeout)
        approve = _given({"by": by, "timeout": limit})
        return self._plain(self._name(None, name), {"approve": approve}, after, None, options)

    def sub(
        self,
        workflow: Any,
        /,
        *,
        after: After = (),
        name: str | None = None,
        args: Mapping[str, Any] | None = None,
        when: When | None = None,
        if_: Condition | Mapping[str, Any] | None = None,
        **arguments: Any,
    ) -> StepHandle[Any]:
        """Run another workflow, by the object or by the key of its job; its arguments are the payload."""
        key = workflow if isinstance(workflow, str) else getattr(workflow, "key", None)
        if not isinstance(key, str):
            raise self._error(f"`sub` takes a workflow or the key of its job, got {workflow!r:.60}.")
        if not isinstance(workflow, str) and getattr(workflow, "timing", None) is None:
            raise self._error(
                f"{workflow.name} has no job of its own that a step could run: give it a schedule or an event, such as"
                f' @app.workflow(event={{"type": "start.{workflow.name}"}}).'
            )
        given = {**arguments, **(args or {})}
        default = getattr(workflow, "name", key.rpartition(":")[2])
        options = {"when": when, "if_": if_}
        return self._plain(self._name(name, default), {"workflow": key}, after, given or None, options)

    def _plain(
        self, name: str, step: dict[str, Any], after: After, payload: Any, options: Mapping[str, Any]
    ) -> StepHandle[Any]:
        handle: StepHandle[Any] = StepHandle(name, self, _line())
        if name in self.steps:
            raise self._error(f"There is a step {name!r} already ({self.lines[name]}); give this one another name.")
        fields = {key.removesuffix("_"): value for key, value in options.items() if key != "if_" and value is not None}
        if "timeout" in fields:
            fields["timeout"] = seconds_of("timeout", fields["timeout"])
        if "retries" in fields:
            fields["retry"] = {"max_retries": fields.pop("retries")}
        self._add(handle, {**step, **fields}, after, payload, options.get("if_"))
        return handle

    def _add(
        self,
        handle: StepHandle[Any],
        step: dict[str, Any],
        after: After,
        payload: Any,
        if_: Condition | Mapping[str, Any] | None,
        *,
        over: Any = None,
        map_: dict[str, Any] | None = None,
    ) -> None:
        try:
            sent, needed, owners = read_values(payload)
            listed, of_list, owners_of_list = read_values(over)
            sent = msgspec.to_builtins(sent, str_keys=True) if sent is not None else None
            listed = msgspec.to_builtins(listed, str_keys=True) if listed is not None else None
        except (TypeError, ValueError, RecursionError) as error:
            raise self._error(f"step {handle.name}: arguments are sent as JSON, and these cannot be: {error}") from None
        before = _listed(after)
        for one in before:
            if not isinstance(one, StepHandle):
                raise self._error(f"step {handle.name}: `after` takes steps of this workflow, got {one!r:.60}.")
        owners |= owners_of_list | {id(one._owner) for one in before}
        if owners - {id(self)}:
            raise self._error(f"step {handle.name} names a step of another workflow.")
        parents = list(dict.fromkeys(one.name for one in before))
        if isinstance(if_, Condition):
            needed, if_ = needed | if_.steps, if_.pattern
        # A value of a step that is above anyway adds no edge: `when` looks at the steps that are named in `after`.
        parents += [name for name in self.steps if name in needed | of_list and not self._is_above(name, parents)]
        if map_ is not None:
            step["map"] = map_ if over is None else {"over": listed, **map_}
        fields = {"depends_on": parents or None, **step, "if": if_, "payload": sent}
        self.steps[handle.name] = _given(fields)
        self.lines[handle.name] = handle._line

    def _is_above(self, name: str, steps: Sequence[str]) -> bool:
        """Whether a step is one of these or above one of them, as far as a short search finds it."""
        seen = dict.fromkeys(steps)
        ahead = list(steps)
        for one in ahead:
            if one == name:
                return True
            if len(seen) > MOST_SEARCHED:
                return False
            above = [parent for parent in self.steps[one].get("depends_on", ()) if parent not in seen]
            seen.update(dict.fromkeys(above))
            ahead += above
        return False

    def _of_function(
        self,
        function: Handler[..., Any],
        retries: int | None,
        timeout: Duration | None,
        pool: str | None,
        priority: Priority | None,
    ) -> dict[str, Any]:
        """The call of a function, with the options that the function has and those of this step."""
        if not isinstance(function, Handler):
            raise self._error(f"A step calls a function of the app: decorate {function!r:.60} with @app.job.")
        options = {key: value for key, value in function.fields.items() if key in OF_A_STEP}
        for option, template in templates(options):
            if names_in(template):
                raise self._error(
                    f"{function.name} has the key {template!r} for `{option}`, which a step cannot fill from arguments:"
                    " register the function for the workflow with another name, and a key without them."
                )
        options = with_keys_filled(options, lambda _, template: fill(template, {}))
        if retries is not None:
            options["retry"] = {**options.get("retry", {}), "max_retries": retries}
        own = {
            "timeout": None if timeout is None else seconds_of("timeout", timeout),
            "pool": pool,
            "priority": priority,
        }
        return {"target": {"function": function.name}, **options, **_given(own)}

    def _bind(self, function: Handler[..., Any], given: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments as they travel; values that are known later stay as they are."""
        try:
            return function.check_step(given, is_known_later)
        except TypeError as error:
            raise self._error(str(error)) from None

    def _first_free(self, function: Handler[..., Any], given: Mapping[str, Any]) -> str:
        free = [name for name in function.parameters.names if name not in given]
        if not free:
            raise self._error(f"{function.name} has no argument left for the item: give one of them w.item.")
        return free[0]

    def _name(self, given: str | None, default: str) -> str:
        if given is not None:
            if given in self.steps:
                raise self._error(f"There is a step {given!r} already ({self.lines[given]}); choose another name.")
            return given
        name, number = default.replace(".", "_"), 1
        while name in self.steps:
            number += 1
            name = f"{default}-{number}"
        return name

    def _error(self, message: str) -> TypeError:
        return TypeError(f"{self.name}, {_line()}: {message}")


def _line() -> str:
    """The line of the caller that is not of this module."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__") == __name__:
        frame = frame.f_back
    return f"{frame.f_code.co_filename.rpartition('/')[2]} line {frame.f_lineno}"


def _listed(after: After) -> list[StepHandle[Any]]:
    return [after] if isinstance(after, StepHandle) else list(after)


def _given(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}


def _tolerate(tolerate: Tolerated | None) -> dict[str, Any] | None:
    match tolerate:
        case None:
            return None
        case bool():
            raise TypeError(f'`tolerate` is a number of items or a part of them, such as 3 or "1%", got {tolerate!r}.')
        case int():
            return {"count": tolerate}
        case str() if tolerate.endswith("%"):
            try:
                return {"percent": float(tolerate[:-1])}
            except ValueError:
                pass
        case Mapping():
            return dict(tolerate)
    raise TypeError(f'`tolerate` is a number of items or a part of them, such as 3 or "1%", got {tolerate!r:.60}.')


def _names_item(value: object) -> bool:
    match value:
        case Value():
            return repr(value).startswith(("<item", "<index"))
        case Mapping():
            return any(map(_names_item, value.values()))
        case list() | tuple():
            return any(map(_names_item, value))
    return False


def describe(function: Callable[..., None], name: str, parameters: Sequence[str]) -> Workflow:
    """Have a function describe its workflow; its own arguments are those of the run."""
    workflow = Workflow(name)
    function(workflow, **{parameter: workflow.payload[parameter] for parameter in parameters})
    if not workflow.steps:
        raise TypeError(f"{name} describes no steps: call w.step(function).")
    return workflow
