"""The parameters of a function (E3, D2): which arguments it takes, and how a call passes them.

Arguments travel by name, also those that a caller passes by position: `*files` as a list by its name, each of
`**others` by its own. The first parameter is the context if it is named `ctx` or annotated `Context`; the worker passes
it, and it is no argument.
"""

import inspect
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from typing import Any, Final

from ondot.sdk.arguments import ArgumentError, evaluate
from ondot.sdk.context import Context
from ondot.sdk.options import EnqueueOptions

_POSITIONAL: Final = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
_VARIABLE: Final = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


class Parameters:
    def __init__(self, function: str, signature: inspect.Signature, namespace: dict[str, Any]) -> None:
        """`function`: its name, for errors."""
        self._function: Final = function
        self.signature: Final = signature
        everything = list(signature.parameters.values())
        self.has_context: Final = bool(everything) and _is_context(everything[0], namespace)
        self._context: Final = everything[0] if self.has_context else None
        self.own: Final = everything[1:] if self.has_context else everything
        """Without the context."""
        self.names: Final = [p.name for p in self.own if p.kind not in _VARIABLE]
        self.needed: Final = frozenset(p.name for p in self.own if p.kind not in _VARIABLE and p.default is p.empty)
        self.takes_others: Final = any(p.kind is p.VAR_KEYWORD for p in self.own)
        self._positional: Final = tuple(p.name for p in self.own if p.kind in _POSITIONAL)
        self._rest: Final = next((p.name for p in self.own if p.kind is p.VAR_POSITIONAL), None)
        self._known: Final = frozenset(p.name for p in self.own if p.kind is not p.VAR_KEYWORD)
        self._is_called_by_name: Final = self._rest is None and all(p.kind is not p.POSITIONAL_ONLY for p in self.own)

    @property
    def text(self) -> str:
        """As a reader would write them: "(to, at=None)"."""
        listed = ", ".join(str(p.replace(annotation=p.empty)) for p in self.own)
        return f"({listed})" if listed else "no arguments"

    def name_all(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Mapping[str, Any]:
        """The arguments of a call, by name. Raises ArgumentError if they do not fit."""
        named = kwargs
        if args:
            if self.has_context and isinstance(args[0], Context):
                raise self._misfit("the worker passes the context; leave it out")
            named = dict(zip(self._positional, args, strict=False))
            if kwargs:
                if twice := [name for name in named if name in kwargs]:
                    raise self._misfit(f"multiple values for argument {twice[0]!r}")
                named |= kwargs
            if len(args) > len(self._positional):
                if self._rest is None:
                    raise self._misfit(f"too many positional arguments: {len(args)}")
                named[self._rest] = args[len(self._positional) :]
        self.check_names(named)
        return named

    def check_names(self, named: Mapping[str, Any]) -> None:
        """Raises ArgumentError if an argument is missing, or there is none of a name."""
        if self.needed <= named.keys() <= self._known:
            return
        for name in named:
            if self._context is not None and name == self._context.name:
                raise self._misfit(f"the worker passes `{name}`; it cannot be an argument")
            if name not in self._known and not self.takes_others:
                raise self._misfit(f"got an unexpected keyword argument {name!r}", self._advice(name))
        if missing := [name for name in self.names if name in self.needed and name not in named]:
            raise self._misfit(f"missing a required argument: {missing[0]!r}")

    def arrange(
        self, context: Context | None, arguments: Mapping[str, Any]
    ) -> tuple[tuple[Any, ...], Mapping[str, Any]]:
        """The arguments of the call itself, by position and by name. Their names must fit."""
        if not self._is_called_by_name:
            return self._arrange_by_position(context, arguments)
        if self._context is None:
            return (), arguments
        if self._context.kind in _POSITIONAL:
            return (context,), arguments
        return (), {**arguments, self._context.name: context}

    def _arrange_by_position(
        self, context: Context | None, arguments: Mapping[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        others = dict(arguments)
        whole: OrderedDict[str, Any] = OrderedDict()
        if self._context is not None:
            whole[self._context.name] = context
        for parameter in self.own:
            if parameter.kind is parameter.VAR_POSITIONAL:
                whole[parameter.name] = tuple(others.pop(parameter.name, ()))
            elif parameter.kind is parameter.VAR_KEYWORD:
                whole[parameter.name] = others
            else:
                whole[parameter.name] = others.pop(parameter.name, parameter.default)
        bound = inspect.BoundArguments(self.signature, whole)
        return bound.args, bound.kwargs

    def _advice(self, name: str) -> str:
        """What to write instead of an argument that does not exist."""
        if name in EnqueueOptions.__annotations__:
            return f" `{name}` is an option: write {self._function}.options({name}=…).enqueue(…)."
        close = get_close_matches(name, self._known, n=1)
        return f" Did you mean `{close[0]}`?" if close else ""

    def _misfit(self, fault: str, advice: str = "") -> ArgumentError:
        return ArgumentError(f"{self._function}: {fault}; it takes {self.text}.{advice}", function=self._function)


def payload_of_event(parameters: Iterable[inspect.Parameter]) -> dict[str, Any]:
    """The arguments that an event gives: `event` whole, and fields of its data for those without a default."""
    return {
        parameter.name: {"$from": "event" if parameter.name == "event" else f"event.data.{parameter.name}"}
        for parameter in parameters
        if parameter.kind not in _VARIABLE and (parameter.name == "event" or parameter.default is parameter.empty)
    }


def _is_context(first: inspect.Parameter, namespace: dict[str, Any]) -> bool:
    if first.kind in _VARIABLE:
        return False
    annotation = evaluate(first.annotation, namespace)
    if isinstance(annotation, str):
        return first.name == "ctx" or annotation.rpartition(".")[2] == "Context"
    return first.name == "ctx" or (isinstance(annotation, type) and issubclass(annotation, Context))
