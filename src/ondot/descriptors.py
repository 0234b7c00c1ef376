"""Types of protobuf that are known only at run time (E3): JSON to the request of a gRPC method, and its reply to JSON.

The types come from a server's reflection or from a descriptor set in a job. Both are foreign data, so they are bounded
by their readers, and every fault in them ends as `BadTypes`. JSON follows protobuf's own mapping: `int64` as text,
`bytes` as base64, names in lowerCamelCase or as in the .proto file. A payload that does not fit raises `Misfit` with
the path of the value.
"""

import base64
import binascii
import json
import re
from collections.abc import Iterable, Iterator
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, Final

from ondot.extras import needs_extra

if TYPE_CHECKING:
    from google.protobuf.descriptor import Descriptor, FieldDescriptor, MethodDescriptor
    from google.protobuf.descriptor_pool import DescriptorPool
    from google.protobuf.message import Message

MAX_DEPTH: Final = 90
"""Of messages inside messages. The parser of protobuf ends at 100."""
NAMES_SHOWN: Final = 10
LONGEST_SHOWN: Final = 40

_PREFIX: Final = re.compile(r"Failed to parse (\w+) field: ")
_INTEGER: Final = re.compile(r"-?[0-9]{1,20}", re.ASCII)
_OWN_JSON: Final = "google.protobuf."
"""Types with a JSON form of their own: instants, durations, wrappers, Any, Struct."""


class BadTypes(Exception):
    """The types cannot be used, or do not have the method; the message is a sentence."""


class Misfit(Exception):
    """The payload does not fit the type of the request; the message is a sentence with the path of the value."""


class Method:
    """A unary method, with the types of its request and its reply."""

    def __init__(self, pool: "DescriptorPool", descriptor: "MethodDescriptor") -> None:
        from google.protobuf.message_factory import GetMessageClass

        self._pool = pool
        self._input = descriptor.input_type
        self._request: type[Message] = GetMessageClass(descriptor.input_type)
        self._reply: type[Message] = GetMessageClass(descriptor.output_type)
        self.reply_type: Final = descriptor.output_type.full_name

    def encode(self, payload: bytes) -> bytes:
        """The request of a payload in JSON; null is a request without any field. Raises Misfit."""
        from google.protobuf.json_format import ParseDict, ParseError

        value = json.loads(payload)
        value = {} if value is None else value
        for fault in _find_misfits(self._input, value, "payload"):
            raise Misfit(fault)
        request = self._request()
        try:
            ParseDict(value, request, descriptor_pool=self._pool)
            encoded: bytes = request.SerializeToString()
        except (ParseError, ValueError, TypeError, AttributeError, RecursionError) as error:
            raise Misfit(_clean(str(error))) from None
        return encoded

    def decode(self, reply: bytes) -> str:
        """A reply as JSON. Raises BadTypes if it cannot be read, or has no form in JSON."""
        from google.protobuf.json_format import MessageToDict
        from google.protobuf.message import DecodeError

        message = self._reply()
        try:
            message.ParseFromString(reply)
            # With fields that have their default: a step that refers to `count` must find the 0.
            read = MessageToDict(message, always_print_fields_with_no_presence=True, descriptor_pool=self._pool)
            return json.dumps(read, ensure_ascii=False, separators=(",", ":"))
        except (DecodeError, ValueError, TypeError, KeyError, RecursionError) as error:
            raise BadTypes(f"The reply cannot be read as {self.reply_type}: {error}") from None


class Types:
    """The files of a descriptor set, or of a server's reflection, with all that they import."""

    def __init__(self, files: Iterable[bytes]) -> None:
        """Raises BadTypes."""
        with needs_extra("grpc", "The target grpc"):
            from google.protobuf.descriptor_pool import DescriptorPool
        self._pool = DescriptorPool()
        for file in _in_order(files):
            try:
                self._pool.AddSerializedFile(file)
            except (TypeError, ValueError, RecursionError) as error:
                raise BadTypes(f"The types cannot be read: {error}") from None

    def find(self, method: str) -> Method:
        """`method` as pkg.Service/Method. Raises BadTypes if it is unknown or not unary."""
        service_name, _, method_name = method.partition("/")
        try:
            service = self._pool.FindServiceByName(service_name)
        except KeyError:
            raise BadTypes(f"There is no service {service_name}.") from None
        found = service.methods_by_name.get(method_name)
        if found is None:
            known = [each.name for each in service.methods]
            close = get_close_matches(method_name, known, n=1)
            advice = f"Did you mean {close[0]}?" if close else f"It has: {', '.join(known[:NAMES_SHOWN]) or 'none'}."
            raise BadTypes(f"The service {service_name} has no method {method_name}. {advice}")
        if found.client_streaming or found.server_streaming:
            raise BadTypes(f"{method} is a streaming method, and ondot makes unary calls only. Call a unary method.")
        return Method(self._pool, found)


def read_set(text: str) -> Types:
    """The types of a descriptor set in base64. Raises BadTypes."""
    with needs_extra("grpc", "The target grpc"):
        from google.protobuf.descriptor_pb2 import FileDescriptorSet
        from google.protobuf.message import DecodeError
    advice = "Make one with `protoc --include_imports --descriptor_set_out=set.bin …` and `base64 -w0 set.bin`."
    try:
        files = FileDescriptorSet.FromString(base64.b64decode(text, validate=True)).file
    except (binascii.Error, ValueError, DecodeError):
        raise BadTypes(f"It is not the base64 of a FileDescriptorSet. {advice}") from None
    if not files:
        raise BadTypes(f"It has no files. {advice}")
    return Types(file.SerializeToString() for file in files)


def _in_order(files: Iterable[bytes]) -> Iterator[bytes]:
    """Each file after those that it imports, as a pool needs them. Raises BadTypes."""
    from google.protobuf.descriptor_pb2 import FileDescriptorProto
    from google.protobuf.message import DecodeError

    try:
        parsed = [(FileDescriptorProto.FromString(file), file) for file in files]
    except DecodeError:
        raise BadTypes("The types cannot be read: a file is no FileDescriptorProto.") from None
    waiting = {file.name: (set(file.dependency), text) for file, text in parsed}
    missing = {name for imports, _ in waiting.values() for name in imports} - waiting.keys()
    known = set(missing)
    for name in missing:
        if (text := _find_own(name)) is None:
            raise BadTypes(f"The file {name[:100]} is missing, which another one imports: add all imports.")
        yield text
    while waiting:
        ready = [name for name, (imports, _) in waiting.items() if imports <= known]
        if not ready:
            raise BadTypes(f"The files import each other in a circle: {min(waiting)[:100]}.")
        for name in ready:
            known.add(name)
            yield waiting.pop(name)[1]


def is_own_file(name: str) -> bool:
    """Whether it is the file of a well-known type, which many sets and servers leave out."""
    return name.startswith("google/protobuf/")


def _find_own(name: str) -> bytes | None:
    if not is_own_file(name):
        return None
    from google.protobuf import (
        any_pb2,
        descriptor_pb2,
        duration_pb2,
        empty_pb2,
        field_mask_pb2,
        struct_pb2,
        timestamp_pb2,
        wrappers_pb2,
    )

    # None of these imports another file.
    modules = any_pb2, descriptor_pb2, duration_pb2, empty_pb2, field_mask_pb2, struct_pb2, timestamp_pb2, wrappers_pb2
    return next((bytes(module.DESCRIPTOR.serialized_pb) for module in modules if module.DESCRIPTOR.name == name), None)


# Does a payload fit? -------------------------------------------------------------------------------------------------
# protobuf's parser would accept bytes that are not base64, and its messages have no paths.


def _find_misfits(kind: "Descriptor", value: object, path: str, depth: int = 0) -> Iterator[str]:
    if kind.full_name.startswith(_OWN_JSON):
        return
    if not isinstance(value, dict):
        yield f"{path} must be an object with the fields of {kind.full_name}, got {_describe(value)}."
        return
    if depth > MAX_DEPTH:
        yield f"{path[:200]}… is too deep: messages may be inside each other {MAX_DEPTH} times."
        return
    fields = {each.json_name: each for each in kind.fields} | {each.name: each for each in kind.fields}
    for name, inner in value.items():
        field = fields.get(name)
        if name.startswith("[") and field is None:
            continue  # an extension, which protobuf's parser finds or rejects
        if field is None:
            yield _describe_unknown(kind, str(name), path)
        elif inner is not None:
            yield from _find_in_field(field, inner, f"{path}.{name}", depth)


def _find_in_field(field: "FieldDescriptor", value: object, path: str, depth: int) -> Iterator[str]:
    entry = field.message_type
    if entry is not None and entry.GetOptions().map_entry:
        if not isinstance(value, dict):
            yield f"{path} must be an object, because the field is a map, got {_describe(value)}."
            return
        for key, inner in value.items():
            yield from _find_in_value(entry.fields_by_name["value"], inner, f"{path}[{json.dumps(key)[:80]}]", depth)
    elif field.is_repeated:
        if not isinstance(value, list):
            yield f"{path} must be a list, because the field is repeated, got {_describe(value)}."
            return
        for number, inner in enumerate(value):
            yield from _find_in_value(field, inner, f"{path}[{number}]", depth)
    else:
        yield from _find_in_value(field, value, path, depth)


def _find_in_value(field: "FieldDescriptor", value: object, path: str, depth: int) -> Iterator[str]:
    if field.message_type is not None:
        yield from _find_misfits(field.message_type, value, path, depth + 1)
    elif (expected := _expected(field, value)) is not None:
        yield f"{path} must be {expected}, got {_describe(value)}."


def _expected(field: "FieldDescriptor", value: object) -> str | None:
    """What a value of this scalar must be; None if it is that."""
    if field.enum_type is not None:
        names = [each.name for each in field.enum_type.values]
        is_known = value in names if isinstance(value, str) else isinstance(value, int) and not isinstance(value, bool)
        return None if is_known or field.enum_type.full_name.startswith(_OWN_JSON) else _list_names(names)
    match field.cpp_type:
        case field.CPPTYPE_BOOL:
            return None if isinstance(value, bool) else "true or false"
        case field.CPPTYPE_STRING if field.type == field.TYPE_BYTES:
            return None if isinstance(value, str) and _is_base64(value) else "bytes as base64"
        case field.CPPTYPE_STRING:
            return None if isinstance(value, str) else "text"
        case field.CPPTYPE_FLOAT | field.CPPTYPE_DOUBLE:
            is_number = isinstance(value, int | float) and not isinstance(value, bool)
            return None if is_number or (isinstance(value, str) and _is_float(value)) else "a number"
        case _:
            return _expected_integer(field, value)


def _expected_integer(field: "FieldDescriptor", value: object) -> str | None:
    bits = 64 if field.cpp_type in {field.CPPTYPE_INT64, field.CPPTYPE_UINT64} else 32
    is_signed = field.cpp_type in {field.CPPTYPE_INT32, field.CPPTYPE_INT64}
    least, most = (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if is_signed else (0, 2**bits - 1)
    number: object = value
    if (isinstance(value, str) and _INTEGER.fullmatch(value)) or (isinstance(value, float) and value.is_integer()):
        number = int(value)
    if isinstance(number, int) and not isinstance(number, bool) and least <= number <= most:
        return None
    return f"a whole number from {least:,} to {most:,}" + (", as a number or as text" if bits == 64 else "")


def _is_base64(value: str) -> bool:
    try:
        base64.b64decode(value.translate({45: 43, 95: 47}) + "=" * (-len(value) % 4), validate=True)
    except (binascii.Error, ValueError):
        return False
    return True


def _is_float(value: str) -> bool:
    try:
        float(value)
    except ValueError:
        return False
    return True


def _list_names(names: list[str]) -> str:
    return f"one of {', '.join(names[:NAMES_SHOWN])}{', …' if len(names) > NAMES_SHOWN else ''}"


def _describe_unknown(kind: "Descriptor", name: str, path: str) -> str:
    known = [each.json_name for each in kind.fields]
    close = get_close_matches(name[:64], known, n=1)
    fields = ", ".join(known[:NAMES_SHOWN]) + (", …" if len(known) > NAMES_SHOWN else "")
    advice = f"did you mean {close[0]}?" if close else f"it has: {fields}." if known else "it has no fields."
    return f"{path}: {kind.full_name} has no field {json.dumps(name[:64], ensure_ascii=False)}; {advice}"


def _describe(value: Any) -> str:
    match value:
        case dict():
            return "an object"
        case list():
            return f"a list of {len(value)}"
        case str() if len(value) > LONGEST_SHOWN:
            # Not its beginning: it may be a secret, and only a whole one is found and masked.
            return f"a text of {len(value):,} characters"
        case _:
            return json.dumps(value, ensure_ascii=False)[: LONGEST_SHOWN * 8]


def _clean(message: str) -> str:
    """A message of protobuf's parser as a sentence that begins with the path."""
    path = "payload"
    while found := _PREFIX.match(message):
        path, message = f"{path}.{found[1]}", message[found.end() :]
    return f"{path[:300]}: {' '.join(message.split())[:300].rstrip('.')}."
