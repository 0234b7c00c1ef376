"""How values of one type travel as JSON (D2), and how they are read again.

`msgspec` does what it can do alone. Pydantic does the rest: its models, constraints by `Field`, and unions that msgspec
cannot read, such as `date | datetime`; it is loaded only then. A codec checks a value before it is sent: what arrives
must be of the annotated type, so a `str` for a `date`, "seven" for an `int` and NaN, which JSON does not have, raise
`Misfit`. Reading accepts what JSON can say: "2030-01-31" for a `date`, 7 for a `float`.
"""

import re
import typing
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from math import isfinite
from pathlib import Path, PurePath
from types import NoneType, UnionType
from typing import Any, Final
from uuid import UUID

import msgspec

SCALARS: Final[frozenset[type]] = frozenset({str, int, bool, NoneType})
"""Types whose values are JSON as they are; a float may be NaN."""
_JSON: Final[frozenset[type]] = frozenset({str, int, float, bool, NoneType, list, dict})
_NOT_JSON: Final = (date, datetime, time, timedelta, UUID, Decimal, bytes)
"""Kept as they are while a value is checked: text must not pass for one of them, nor one of them for text."""
_NOTHING: Final[frozenset[type]] = frozenset()
_AT: Final = re.compile(r"(?s)(.*) - at (?:`key` in )?`\$(.*)`")
_GOT: Final = re.compile(r"Expected `[^`]*`, got `[^`]*`")


class Misfit(Exception):
    """A value does not fit its type. `path` leads to the part that does not: `.lines[2].price`; empty: all of it."""

    def __init__(self, reason: str, path: str = "") -> None:
        super().__init__(reason)
        self.reason = reason
        self.path = path


class Unsendable(Exception):
    """No codec exists for a type."""


class Codec:
    """Of values without an annotation, or annotated `Any`: plain JSON."""

    sent_as_is: frozenset[type] = SCALARS
    """Values of exactly these types need no encoding."""
    read_as_is: frozenset[type] = _JSON
    """JSON of exactly these types needs no decoding."""

    def encode(self, value: Any) -> Any:
        """The value as JSON. Raises Misfit."""
        if type(value) in SCALARS:
            return value
        try:
            encoded = msgspec.to_builtins(value, str_keys=True)
        except (TypeError, ValueError, RecursionError) as error:
            raise Misfit(f"it is sent as JSON, and cannot be: {error}") from None
        _reject_not_finite(encoded)
        return encoded

    def decode(self, value: Any) -> Any:
        """The value that JSON stands for. Raises Misfit."""
        return value

    def encode_result(self, value: Any) -> bytes:
        """What a function returned, as JSON text. Not checked: its work is done. Raises TypeError or ValueError."""
        return _RESULTS.encode(value)

    def schema(self, ref: str) -> tuple[dict[str, Any], dict[str, Any]]:
        """Its JSON Schema, and the definitions that it refers to; `ref` is the place of `{name}`."""
        return {}, {}


class UnknownCodec(Codec):
    """Of an annotation that cannot be read: it names something that exists only for type checkers."""

    def __init__(self, annotation: str) -> None:
        self._annotation = annotation

    def encode(self, value: Any) -> Any:
        if (kind := _first_not_json(value)) is not None:
            raise Misfit(
                f"the annotation {self._annotation!r} cannot be read while the program runs, so a {kind.__name__} would"
                " arrive as something else; import its type outside `if TYPE_CHECKING:`"
            )
        return super().encode(value)


class UnsendableCodec(Codec):
    """Of a type that JSON cannot carry, of an argument that has a default."""

    sent_as_is = read_as_is = _NOTHING

    def __init__(self, reason: str) -> None:
        self._reason = reason

    def encode(self, value: Any) -> Any:
        raise Misfit(self._reason)

    decode = encode


class MsgspecCodec(Codec):
    def __init__(self, annotation: Any) -> None:
        """Raises Unsendable if msgspec alone cannot read this type."""
        try:
            msgspec.json.Decoder(annotation)
            info = msgspec.inspect.type_info(annotation)
        except (TypeError, ValueError) as error:
            raise Unsendable(str(error)) from None
        parts = list(_parts(info))
        for part in parts:
            if isinstance(part, msgspec.inspect.CustomType) and part.cls not in _PATHS:
                raise Unsendable(f"{part.cls!r} is no type that can travel as JSON")
        self._type = annotation
        self._may_hold_floats = any(isinstance(part, _FLOATS) for part in parts)
        self.read_as_is = _as_is(info)
        self.sent_as_is = self.read_as_is & SCALARS

    def encode(self, value: Any) -> Any:
        try:
            checked = msgspec.to_builtins(value, builtin_types=_NOT_JSON, enc_hook=_encode_other)
            msgspec.convert(checked, self._type, builtin_types=_NOT_JSON, dec_hook=_decode_other)
            encoded = msgspec.to_builtins(value, str_keys=True, enc_hook=_encode_other)
        except msgspec.ValidationError as error:
            raise _misfit(error) from None
        except (TypeError, ValueError, RecursionError) as error:
            raise Misfit(f"it is sent as JSON, and cannot be: {error}") from None
        if self._may_hold_floats:
            _reject_not_finite(encoded)
        return encoded

    def decode(self, value: Any) -> Any:
        try:
            return msgspec.convert(value, self._type, str_keys=True, dec_hook=_decode_other)
        except msgspec.ValidationError as error:
            raise _misfit(error) from None

    def schema(self, ref: str) -> tuple[dict[str, Any], dict[str, Any]]:
        (schema,), definitions = msgspec.json.schema_components(
            [_with_formats(self._type)], schema_hook=_schema_of, ref_template=ref
        )
        return schema, definitions


class PydanticCodec(Codec):
    sent_as_is = read_as_is = _NOTHING

    def __init__(self, annotation: Any, *, has_models: bool) -> None:
        """`has_models`: the program's own use of pydantic decides; otherwise what arrives must equal what is sent."""
        from pydantic import ConfigDict, PydanticSchemaGenerationError, PydanticUserError, TypeAdapter

        config = ConfigDict(ser_json_bytes="base64", val_json_bytes="base64", arbitrary_types_allowed=False)
        try:
            try:
                self._adapter: TypeAdapter[Any] = TypeAdapter(annotation, config=config)
            except PydanticUserError as error:
                if error.code != "type-adapter-config-unused":
                    raise
                self._adapter = TypeAdapter(annotation)
            if not self._adapter.pydantic_complete:
                self._adapter.rebuild(raise_errors=True)
        except PydanticSchemaGenerationError as error:
            raise Unsendable(str(error).partition("\n")[0].partition(". Set `arbitrary_types")[0]) from None
        self._has_models = has_models

    def encode(self, value: Any) -> Any:
        from pydantic import ValidationError
        from pydantic_core import PydanticSerializationError

        try:
            instance = self._adapter.validate_python(value)
            text = self._adapter.dump_json(instance, by_alias=True, round_trip=True, warnings="none")
            arrives = self._adapter.validate_json(text)
        except ValidationError as error:
            raise _misfit_of_model(error) from None
        except (PydanticSerializationError, RecursionError) as error:
            raise Misfit(f"it is sent as JSON, and cannot be: {error}") from None
        if not self._has_models and arrives != value:
            raise Misfit(f"JSON does not distinguish the types of this union, and it would arrive as {arrives!r:.60}")
        return msgspec.json.decode(text)

    def decode(self, value: Any) -> Any:
        from pydantic import ValidationError

        try:
            return self._adapter.validate_json(msgspec.json.encode(value))
        except ValidationError as error:
            raise _misfit_of_model(error) from None

    def encode_result(self, value: Any) -> bytes:
        return self._adapter.dump_json(value, by_alias=True, round_trip=True, warnings="none")

    def schema(self, ref: str) -> tuple[dict[str, Any], dict[str, Any]]:
        schema = self._adapter.json_schema(ref_template=ref.replace("{name}", "{model}"))
        definitions = schema.pop("$defs", {})
        return schema, definitions


ANYTHING: Final = Codec()


def codec_of(annotation: Any) -> Codec:
    """The codec of an annotation. Raises Unsendable if there is none, and NameError if a name in it is not defined."""
    if annotation in (Any, object):
        return ANYTHING
    if isinstance(annotation, str):
        return UnknownCodec(annotation)
    has_models = any(map(_is_of_pydantic, _hints(annotation, {})))
    if not has_models:
        try:
            return MsgspecCodec(annotation)
        except Unsendable:
            pass
    return PydanticCodec(annotation, has_models=has_models)


def spell(annotation: Any) -> str:
    """An annotation as a reader would write it."""
    if isinstance(annotation, type) and not typing.get_args(annotation):
        return annotation.__qualname__.rpartition("<locals>.")[2]
    return re.sub(r"\b(?:\w+\.|<locals>\.)+(?=\w)", "", str(annotation))


# What msgspec does not know -------------------------------------------------------------------------------------------

_PATHS: Final = frozenset({Path, PurePath, type(Path())})
_KNOWN: Final = [
    (kind, msgspec.inspect.type_info(annotation))
    for kind, annotations in {
        str: (str,),
        int: (int,),
        float: (float,),
        bool: (bool,),
        NoneType: (None,),
        list: (list, list[Any]),
        dict: (dict, dict[str, Any]),
    }.items()
    for annotation in annotations
]
"""Types that JSON has itself, each as msgspec describes it."""
_FLOATS: Final = (msgspec.inspect.FloatType, msgspec.inspect.AnyType)


def _encode_other(value: Any) -> Any:
    if isinstance(value, PurePath):
        return str(value)
    raise TypeError(f"a {type(value).__name__} cannot travel as JSON")


def _decode_other(kind: type, value: Any) -> Any:
    if kind in _PATHS:
        if isinstance(value, str):
            return kind(value)
        raise ValueError(f"Expected `path`, got `{type(value).__name__}`")
    raise NotImplementedError


def _encode_result_part(value: Any) -> Any:
    """A model inside a result whose function has no annotation that says so."""
    if callable(dump := getattr(value, "model_dump", None)):
        return dump(mode="json", by_alias=True, round_trip=True)
    return _encode_other(value)


_RESULTS: Final = msgspec.json.Encoder(enc_hook=_encode_result_part)


_FORMATS: Final[dict[Any, Any]] = {
    datetime: typing.Annotated[datetime, msgspec.Meta(extra_json_schema={"format": "date-time"})],
    time: typing.Annotated[time, msgspec.Meta(extra_json_schema={"format": "time"})],
}
"""msgspec names the format only of those that must have a time zone."""


def _with_formats(annotation: Any) -> Any:
    """The same type, whose schema names the formats of instants. Not inside classes: their fields are the program's."""
    arguments, origin = typing.get_args(annotation), typing.get_origin(annotation)
    if annotation in _FORMATS:
        return _FORMATS[annotation]
    if not arguments or origin in {typing.Annotated, typing.Literal} or any(isinstance(one, list) for one in arguments):
        return annotation
    inner = tuple(map(_with_formats, arguments))
    if inner == arguments:
        return annotation
    return typing.Union[inner] if origin in {typing.Union, UnionType} else origin[inner]  # noqa: UP007


def _schema_of(kind: type) -> dict[str, Any]:
    if kind in _PATHS:
        return {"type": "string", "format": "path"}
    raise NotImplementedError


# Reading types --------------------------------------------------------------------------------------------------------


def _parts(info: msgspec.inspect.Type) -> Iterator[object]:
    """The description of a type and of everything in it."""
    seen: set[int] = set()
    ahead: list[object] = [info]
    while ahead:
        part = ahead.pop()
        if isinstance(part, tuple):
            ahead.extend(part)
        elif isinstance(part, (msgspec.inspect.Type, msgspec.inspect.Field)) and id(part) not in seen:
            seen.add(id(part))
            yield part
            ahead.extend(getattr(part, name) for name in part.__struct_fields__)


def _as_is(info: msgspec.inspect.Type) -> frozenset[type]:
    """The types of JSON that fit as they are, whatever their values."""
    if isinstance(info, msgspec.inspect.UnionType):
        return frozenset[type]().union(*map(_as_is, info.types))
    return frozenset(kind for kind, known in _KNOWN if known == info)


def _hints(annotation: Any, seen: dict[int, Any]) -> Iterator[Any]:
    """An annotation, and everything that it names: arguments, metadata, fields. Each once: `seen` keeps them alive, so
    that no id is used twice."""
    if id(annotation) in seen:
        return
    seen[id(annotation)] = annotation
    yield annotation
    inner = [*typing.get_args(annotation), *getattr(annotation, "__metadata__", ())]
    if (origin := typing.get_origin(annotation)) is not None:
        inner.append(origin)
    if isinstance(annotation, type) and (
        is_dataclass(annotation) or hasattr(annotation, "__struct_fields__") or issubclass(annotation, (dict, tuple))
    ):
        inner += _field_hints(annotation)
    for one in inner:
        if not isinstance(one, (str, int, bytes, bool, NoneType)):
            yield from _hints(one, seen)


def _field_hints(kind: type) -> list[Any]:
    if is_dataclass(kind) and all(not isinstance(field.type, str) for field in fields(kind)):
        return [field.type for field in fields(kind)]
    return list(typing.get_type_hints(kind, include_extras=True).values())


def _is_of_pydantic(hint: Any) -> bool:
    """A model, a class that pydantic knows how to read, or a constraint of pydantic's kind."""
    if isinstance(hint, type):
        return hasattr(hint, "__get_pydantic_core_schema__") or hasattr(hint, "__pydantic_core_schema__")
    return type(hint).__module__.partition(".")[0] in {"pydantic", "annotated_types"}


# Errors ---------------------------------------------------------------------------------------------------------------


def _misfit(error: msgspec.ValidationError) -> Misfit:
    text = str(error)
    found = _AT.fullmatch(text)
    reason, path = (found[1], found[2].replace("[...]", "[…]")) if found else (text, "")
    return Misfit("" if _GOT.fullmatch(reason) and not path else reason.replace("`", ""), path)


def _misfit_of_model(error: Any) -> Misfit:
    """The first of pydantic's errors; a tag in its path, such as the name of a union's member, is no part of it."""
    first = error.errors(include_url=False, include_input=False)[0]
    path = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in first["loc"])
    return Misfit(first["msg"], path)


def _reject_not_finite(value: Any, path: str = "") -> None:
    """JSON has no NaN and no infinity: they would arrive as null."""
    match value:
        case float():
            if not isfinite(value):
                raise Misfit(f"JSON has no {value}", path)
        case dict():
            for key, inner in value.items():
                if type(inner) not in SCALARS:
                    _reject_not_finite(inner, f"{path}.{key}")
        case list() | tuple():
            for index, inner in enumerate(value):
                if type(inner) not in SCALARS:
                    _reject_not_finite(inner, f"{path}[{index}]")


def _first_not_json(value: Any) -> type | None:
    """The type of the first part that is more than plain JSON."""
    kind = type(value)
    if kind not in _JSON:
        return kind
    inner: Any = value.values() if kind is dict else value if kind is list else ()
    found = (_first_not_json(one) for one in inner)
    return next((one for one in found if one is not None), None)
