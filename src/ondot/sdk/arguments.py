"""Arguments and results of a function by annotation (D2): JSON on the way, what the annotation says on arrival.

    day: date                  travels as "2030-01-31" and arrives as a date
    order: Order               a pydantic model, dataclass, Struct, TypedDict or NamedTuple arrives as one
    amount                     without an annotation, or with `Any`, it is plain JSON

A value that does not fit raises `ArgumentError` before anything is sent; it names the path inside the argument, such as
`order.lines[2].price`. Only what the caller passes is sent: defaults apply in the worker. `*files` is sent as a list by
its name, and each of `**others` by its own. Annotations are read when the function is registered, or at first use if
they name something that is defined further down. `codecs` knows how one type travels.
"""

import functools
import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from types import SimpleNamespace
from typing import Any, Final, Generic, NoReturn, ParamSpec, Unpack, get_args, get_origin, get_type_hints

from ondot.sdk.codecs import ANYTHING, Codec, Misfit, UnknownCodec, Unsendable, UnsendableCodec, codec_of, spell

P = ParamSpec("P")

MAX_SHOWN: Final = 60
_VARIABLE: Final = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


class ArgumentError(TypeError):
    """An argument does not fit the function, or its result does not fit the annotation.

    `argument` is its name, `path` leads to the part that does not fit (`order.lines[2].price`), `expected` is the
    annotation. They are None if the call as a whole does not fit: an argument is missing, or there is none of its name.
    """

    def __init__(
        self,
        message: str,
        *,
        function: str | None = None,
        argument: str | None = None,
        path: str | None = None,
        expected: str | None = None,
    ) -> None:
        super().__init__(message)
        self.function = function
        self.argument = argument
        self.path = path
        self.expected = expected


class BadArguments(ArgumentError):
    """Raised in a worker by the call of a function whose payload does not fit."""


class Arguments(Generic[P]):
    """The checked arguments of one call, of `handler.args(…)`, for `enqueue_many`."""

    __slots__ = ("function", "payload")

    def __init__(self, function: str, payload: dict[str, Any]) -> None:
        self.function: Final = function
        self.payload: Final = payload

    def __repr__(self) -> str:
        return f"<Arguments of {self.function}>"


class FunctionTypes:
    """The codecs of a function's arguments and of its result."""

    def __init__(
        self, name: str, parameters: Iterable[inspect.Parameter], returns: Any, namespace: dict[str, Any]
    ) -> None:
        """`parameters` without the context; `namespace`: where annotations that are text are read.

        Raises ArgumentError for an argument without a default whose type cannot travel as JSON.
        """
        self.name: Final = name
        self._parameters: Final = tuple(_expand(parameters, namespace))
        self._returns: Final = returns
        self._namespace: Final = namespace
        self._rest: Final = next((p.name for p in self._parameters if p.kind is p.VAR_KEYWORD), None)
        self._expected: dict[str, Any] = {}
        self._codecs: dict[str, Codec] | None = None
        """Of the arguments that are not plain JSON; None: annotations name something that is not defined yet."""
        self._of_rest: Codec | None = None
        self._result: Codec = ANYTHING
        with suppress(NameError):
            self._read(is_last_chance=False)

    def encode(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """The payload of these arguments, by name. Raises ArgumentError."""
        codecs = self._known()
        payload = {}
        for name, value in given.items():
            codec = codecs.get(name, self._of_rest) or ANYTHING
            if type(value) in codec.sent_as_is:
                payload[name] = value
                continue
            try:
                payload[name] = codec.encode(value)
            except Misfit as misfit:
                raise self._error(name, misfit, f"{value!r:.{MAX_SHOWN}}") from None
        return payload

    def decode(self, payload: dict[str, Any]) -> dict[str, Any]:
        """The arguments of this payload. Raises ArgumentError, which shows no values: a worker stores it."""
        codecs = self._known()
        arguments = payload
        for name, value in payload.items():
            codec = codecs.get(name, self._of_rest)
            if codec is None or type(value) in codec.read_as_is:
                continue
            if arguments is payload:
                arguments = dict(payload)
            try:
                arguments[name] = codec.decode(value)
            except Misfit as misfit:
                raise self._error(name, misfit, type(value).__name__) from None
        return arguments

    def fits(self, payload: dict[str, Any]) -> bool:
        """Whether all arguments arrive as JSON has them, for certain: most do, and need no decoding."""
        codecs = self._codecs
        if codecs is None:
            codecs = self._known()
        for name, value in payload.items():
            codec = codecs.get(name, self._of_rest)
            if codec is not None and type(value) not in codec.read_as_is:
                return False
        return True

    def encode_result(self, value: Any) -> bytes:
        """As JSON text. Raises TypeError or ValueError if it cannot be."""
        self._known()
        return self._result.encode_result(value)

    def decode_result(self, value: Any) -> Any:
        """The result that a worker stored as JSON, as annotated. Raises ArgumentError."""
        self._known()
        if type(value) in self._result.read_as_is:
            return value
        try:
            return self._result.decode(value)
        except Misfit as misfit:
            expected = spell(self._returns)
            place = f" at `result{misfit.path}`" if misfit.path else ""
            raise ArgumentError(
                f"{self.name} returns {expected}, and what the worker stored does not fit{place}: "
                f"{misfit.reason or f'got {type(value).__name__}'}.",
                function=self.name,
                path=f"result{misfit.path}",
                expected=expected,
            ) from None

    def encoded_defaults(self) -> dict[str, Any]:
        """Defaults as they would travel; those that cannot are left out."""
        codecs = self._known()
        found = {}
        for parameter in self._parameters:
            if parameter.default is not parameter.empty:
                with suppress(Misfit):
                    found[parameter.name] = codecs.get(parameter.name, ANYTHING).encode(parameter.default)
        return found

    def schema(self) -> dict[str, Any]:
        """The JSON Schema (draft 2020-12) of the payload. It has no `pattern`, and refers to nothing outside it."""
        codecs = self._known()
        defaults = self.encoded_defaults()
        properties: dict[str, Any] = {}
        definitions: dict[str, Any] = {}
        required = []
        others: Any = False
        for parameter in self._parameters:
            name = parameter.name
            codec = (self._of_rest if name == self._rest else codecs.get(name)) or ANYTHING
            if isinstance(codec, UnsendableCodec):
                continue
            schema = _schema_of(codec, definitions)
            if name == self._rest:
                others = schema or True
                continue
            if parameter.kind is not parameter.VAR_POSITIONAL and parameter.default is parameter.empty:
                required.append(name)
            properties[name] = schema | ({"default": defaults[name]} if name in defaults else {})
        whole = {
            "$schema": "https://json-schema.org/draft/2020-12/schema",
            "type": "object",
            "properties": properties,
            "required": required,
            "additionalProperties": others,
        }
        return whole | ({"$defs": definitions} if definitions else {})

    # Reading annotations ----------------------------------------------------------------------------------------------

    def _known(self) -> dict[str, Codec]:
        if self._codecs is None:
            self._read(is_last_chance=True)
            assert self._codecs is not None
        return self._codecs

    def _read(self, *, is_last_chance: bool) -> None:
        """Raises NameError for a name that is not defined; at the last chance, such an annotation stays text."""
        codecs: dict[str, Codec] = {}
        expected: dict[str, Any] = {}
        for parameter in self._parameters:
            annotation = evaluate(parameter.annotation, self._namespace, is_last_chance=is_last_chance)
            codec = self._codec(parameter, annotation, is_last_chance=is_last_chance)
            if codec is not ANYTHING:
                codecs[parameter.name] = codec
                expected[parameter.name] = annotation
        self._result = self._codec_of_result(is_last_chance=is_last_chance)
        self._of_rest = None if self._rest is None else codecs.pop(self._rest, None)
        self._expected = expected
        self._codecs = codecs

    def _codec(self, parameter: inspect.Parameter, annotation: Any, *, is_last_chance: bool) -> Codec:
        is_list = parameter.kind is parameter.VAR_POSITIONAL and annotation is not Any
        try:
            return codec_of(list[annotation] if is_list else annotation)
        except NameError:
            if not is_last_chance:
                raise
            return UnknownCodec(spell(annotation))
        except Unsendable as error:
            reason = f"{spell(annotation)} cannot travel as JSON ({error})"
            if parameter.default is not parameter.empty or parameter.kind in _VARIABLE:
                return UnsendableCodec(reason)
            message = (
                f"{self.name}: argument `{parameter.name}`: {reason}. Use a dataclass, a pydantic model or a Struct, or"
                " leave the annotation out."
            )
            raise ArgumentError(
                message, function=self.name, argument=parameter.name, expected=spell(annotation)
            ) from None

    def _codec_of_result(self, *, is_last_chance: bool) -> Codec:
        returns = evaluate(self._returns, self._namespace, is_last_chance=is_last_chance)
        try:
            return ANYTHING if returns is NoReturn else codec_of(returns)
        except NameError:
            if not is_last_chance:
                raise
        except Unsendable:
            pass  # it may still return what JSON has
        return ANYTHING

    def _error(self, name: str, misfit: Misfit, got: str) -> ArgumentError:
        annotation = self._expected.get(name, self._expected.get(self._rest or ""))
        expected = None if annotation is None else spell(annotation)
        takes = "" if expected is None else f" takes {expected},"
        if misfit.path:
            text = f"argument `{name}`{takes} and `{name}{misfit.path}` does not fit: {misfit.reason}"
        else:
            text = f"argument `{name}`{takes} got {got}{f': {misfit.reason}' if misfit.reason else ''}"
        return ArgumentError(
            f"{self.name}: {text.removesuffix('.')}.",
            function=self.name,
            argument=name,
            path=f"{name}{misfit.path}",
            expected=expected,
        )


def _expand(parameters: Iterable[inspect.Parameter], namespace: dict[str, Any]) -> Iterator[inspect.Parameter]:
    """The parameters, with the keys of a TypedDict instead of `**others: Unpack[…]`."""
    for parameter in parameters:
        annotation = evaluate(parameter.annotation, namespace)
        if parameter.kind is not parameter.VAR_KEYWORD or get_origin(annotation) is not Unpack:
            yield parameter
            continue
        (keys,) = get_args(annotation)
        for name, hint in get_type_hints(keys).items():
            default = parameter.empty if name in keys.__required_keys__ else ...
            yield inspect.Parameter(name, parameter.KEYWORD_ONLY, annotation=hint, default=default)


def evaluate(annotation: Any, namespace: dict[str, Any], *, is_last_chance: bool = True) -> Any:
    """What an annotation names; `Any` for none. One that cannot be read stays text; sooner, it raises NameError."""
    if annotation is inspect.Parameter.empty:
        return Any
    holder = SimpleNamespace(__annotations__={"one": annotation})
    try:
        return get_type_hints(holder, namespace, include_extras=True)["one"]
    except NameError:
        if not is_last_chance:
            raise
    except (SyntaxError, AttributeError, TypeError):
        pass
    return annotation if isinstance(annotation, str) else str(annotation)


def namespace_of(function: Callable[..., Any]) -> dict[str, Any]:
    """The names that the annotations of a function may use."""
    inner: Any = inspect.unwrap(function)
    while isinstance(inner, functools.partial):
        inner = inspect.unwrap(inner.func)
    found = getattr(inner, "__globals__", None) or getattr(type(inner).__call__, "__globals__", None)
    return found or {}


def _schema_of(codec: Codec, definitions: dict[str, Any]) -> dict[str, Any]:
    """Its schema. What it refers to is added to the definitions, under another name where one is taken."""
    schema, own = codec.schema("#/$defs/{name}")
    taken = {name for name in own if name in definitions and definitions[name] != without_patterns(own[name])}
    number = 2
    while taken:
        schema, own = codec.schema(f"#/$defs/{{name}}-{number}")
        own = {f"{name}-{number}": definition for name, definition in own.items()}
        taken = {name for name in own if name in definitions}
        number += 1
    definitions.update({name: without_patterns(definition) for name, definition in own.items()})
    return dict(without_patterns(schema))


def without_patterns(schema: Any) -> Any:
    """A schema without `pattern`: a server evaluates no expressions of others."""
    match schema:
        case dict():
            return {
                key: {name: without_patterns(one) for name, one in inner.items()}
                if key in {"properties", "$defs"} and isinstance(inner, dict)
                else inner
                if key in {"default", "const", "enum", "examples"}
                else without_patterns(inner)
                for key, inner in schema.items()
                if key not in {"pattern", "patternProperties"}
            }
        case list():
            return [without_patterns(one) for one in schema]
    return schema
