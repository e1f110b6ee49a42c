"""Messages of Chakra's schema (mlcommons/chakra, `schema/protobuf/et_def.proto`) as records.

A file is one `GlobalMetadata` and then `Node`s, each behind its length as a varint. Attributes of
any name and type are kept with their type, since readers of a wrong integer type read 0.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from enum import IntEnum
from functools import lru_cache
from typing import Any, Final

from msgspec import Struct, field

from chopper_core.extensions.chakra.wire import (
    BYTES,
    FIXED32,
    FIXED64,
    VARINT,
    WireError,
    bytes_field,
    fields_of,
    packed_field,
    packed_fixed,
    packed_varints,
    signed,
    unzigzag,
    varint,
    varint_field,
)

Value = int | float | bool | str | bytes | list[Any]


class NodeType(IntEnum):
    """`NodeType` of the schema."""

    INVALID = 0
    METADATA = 1
    MEM_LOAD = 2
    MEM_STORE = 3
    COMP = 4
    COMM_SEND = 5
    COMM_RECV = 6
    COMM_COLL = 7


NODE_TYPE: Final = "node_type"
"""The attribute of an activity with its type, where a kernel table doesn't show it."""
PAIRWISE: Final = (NodeType.COMM_SEND, NodeType.COMM_RECV)
COMMUNICATION: Final = (*PAIRWISE, NodeType.COMM_COLL)


class CommType(IntEnum):
    """`CollectiveCommType` of the schema."""

    ALL_REDUCE = 0
    REDUCE = 1
    ALL_GATHER = 2
    GATHER = 3
    SCATTER = 4
    BROADCAST = 5
    ALL_TO_ALL = 6
    REDUCE_SCATTER = 7
    REDUCE_SCATTER_BLOCK = 8
    BARRIER = 9


class Attribute(Struct, frozen=True):
    """A typed value: `type` is the schema's name of it, such as `int64` or `string_list`."""

    type: str
    value: Value


class Node(Struct):
    """A node of the graph; times in µs as the schema has them, 0 where the file gives none."""

    id: int = 0
    name: str = ""
    type: int = NodeType.INVALID
    ctrl_deps: list[int] = field(default_factory=list)
    data_deps: list[int] = field(default_factory=list)
    start_us: int = 0
    duration_us: int = 0
    inputs: Mapping[str, str] = field(default_factory=dict)
    """`values`, `shapes`, `types` as the text of Python lists."""
    outputs: Mapping[str, str] = field(default_factory=dict)
    attributes: dict[str, Attribute] = field(default_factory=dict)

    def get(self, name: str) -> Any:
        """The value of an attribute; None without it."""
        found = self.attributes.get(name)
        return None if found is None else found.value


class Metadata(Struct):
    """The first message of a file."""

    version: str = ""
    attributes: dict[str, Attribute] = field(default_factory=dict)

    def get(self, name: str) -> Any:
        """The value of an attribute; None without it."""
        found = self.attributes.get(name)
        return None if found is None else found.value


class _Scalar(Struct, frozen=True):
    """How a type is on the wire: an integer's decoder and encoder, or a `struct` code."""

    wire: int
    code: str = ""
    decode: Callable[[int], Any] = int
    encode: Callable[[int], int] = int


def _zigzag(value: int) -> int:
    return value << 1 if value >= 0 else (-value << 1) - 1


_SCALARS: Final[Mapping[str, _Scalar]] = {
    "double": _Scalar(FIXED64, "d"),
    "float": _Scalar(FIXED32, "f"),
    "int32": _Scalar(VARINT, decode=lambda value: signed(value, 32)),
    "int64": _Scalar(VARINT, decode=lambda value: signed(value, 64)),
    "uint32": _Scalar(VARINT, decode=lambda value: value & 0xFFFFFFFF),
    "uint64": _Scalar(VARINT),
    "sint32": _Scalar(VARINT, decode=unzigzag, encode=_zigzag),
    "sint64": _Scalar(VARINT, decode=unzigzag, encode=_zigzag),
    "fixed32": _Scalar(FIXED32, "I"),
    "fixed64": _Scalar(FIXED64, "Q"),
    "sfixed32": _Scalar(FIXED32, "i"),
    "sfixed64": _Scalar(FIXED64, "q"),
    "bool": _Scalar(VARINT, decode=bool),
    "string": _Scalar(BYTES),
    "bytes": _Scalar(BYTES),
}
"""In the order of the schema: field 3 is `double_val`, 4 `double_list`, 5 `float_val` …"""
_FIRST_FIELD: Final = 3
_MAX_MEMO_BYTES: Final = 64
_LIST: Final = "_list"
_FIELDS: Final[Mapping[str, int]] = {
    name + suffix: _FIRST_FIELD + 2 * place + (suffix == _LIST)
    for place, name in enumerate(_SCALARS)
    for suffix in ("", _LIST)
}
_TYPES: Final = {number: name for name, number in _FIELDS.items()}
_IO: Final = {1: "values", 2: "shapes", 3: "types"}


def decode_metadata(data: bytes) -> Metadata:
    """Decode a `GlobalMetadata`; raises WireError."""
    metadata = Metadata()
    for number, wire, value in fields_of(data):
        if number == 1 and wire == BYTES:
            metadata.version = _text(value)
        elif number == 2 and wire == BYTES:
            _add_attribute(metadata.attributes, value)
    return metadata


def decode_node(data: bytes) -> Node:
    """Decode a `Node`; raises WireError. Fields that the schema lacks are skipped."""
    node = Node()
    for number, wire, value in fields_of(data):
        if wire == VARINT and isinstance(value, int):
            match number:
                case 1:
                    node.id = value
                case 3:
                    node.type = value
                case 4:
                    node.ctrl_deps.append(value)
                case 5:
                    node.data_deps.append(value)
                case 6:
                    node.start_us = value
                case 7:
                    node.duration_us = value
        elif wire == BYTES and isinstance(value, bytes):
            match number:
                case 2:
                    node.name = _text(value)
                case 4:
                    node.ctrl_deps += packed_varints(value)
                case 5:
                    node.data_deps += packed_varints(value)
                case 8:
                    node.inputs = _io(value)
                case 9:
                    node.outputs = _io(value)
                case 10:
                    _add_attribute(node.attributes, value)
    return node


def encode_metadata(metadata: Metadata) -> bytes:
    """Encode a `GlobalMetadata`."""
    version = bytes_field(1, metadata.version.encode()) if metadata.version else b""
    return version + _encoded_attributes(2, metadata.attributes)


def encode_node(node: Node) -> bytes:
    """Encode a `Node`; fields with their default are left out, as proto3 does."""
    parts = [varint_field(1, node.id) if node.id else b""]
    parts += [bytes_field(2, _utf8(node.name)) if node.name else b""]
    parts += [varint_field(3, node.type) if node.type else b""]
    parts += [packed_field(4, node.ctrl_deps), packed_field(5, node.data_deps)]
    parts += [varint_field(6, node.start_us) if node.start_us else b""]
    parts += [varint_field(7, node.duration_us) if node.duration_us else b""]
    for number, io in ((8, node.inputs), (9, node.outputs)):
        if io:
            texts = (bytes_field(at, _utf8(io[key])) for at, key in _IO.items() if io.get(key))
            parts.append(bytes_field(number, b"".join(texts)))
    return b"".join([*parts, _encoded_attributes(10, node.attributes)])


def delimited(message: bytes) -> bytes:
    """A message behind its length."""
    return varint(len(message)) + message


def _text(value: int | bytes) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else ""


def _utf8(text: str) -> bytes:
    return text.encode("utf-8", "replace")


def _io(data: bytes) -> dict[str, str]:
    return {
        _IO[number]: _text(value)
        for number, wire, value in fields_of(data)
        if wire == BYTES and number in _IO
    }


def _add_attribute(attributes: dict[str, Attribute], data: int | bytes) -> None:
    assert isinstance(data, bytes)
    name, attribute = _attribute(data) if len(data) <= _MAX_MEMO_BYTES else _decode_attribute(data)
    attributes[name] = attribute


@lru_cache(maxsize=1 << 14)
def _attribute(data: bytes) -> tuple[str, Attribute]:
    """A decoded attribute; most are equal on thousands of nodes."""
    return _decode_attribute(data)


def _decode_attribute(data: bytes) -> tuple[str, Attribute]:
    name, found = "", None
    for number, wire, value in fields_of(data):
        if number == 1:
            name = _text(value)
        elif number in _TYPES:
            found = Attribute(_TYPES[number], _decoded(_TYPES[number], wire, value))
    # In proto3 an attribute whose value is a default still has its field, since it is a oneof.
    return name, found or Attribute("", b"")


def _decoded(kind: str, wire: int, value: int | bytes) -> Value:
    name = kind.removesuffix(_LIST)
    if name != kind:
        return _decoded_list(name, value if isinstance(value, bytes) else b"")
    return _decoded_one(name, wire, value)


def _decoded_one(name: str, wire: int, value: int | bytes) -> Value:
    scalar = _SCALARS[name]
    if wire != scalar.wire:
        raise WireError(f"has an attribute of type {name} in another encoding")
    if isinstance(value, int):
        number: Value = scalar.decode(value)
        return number
    if scalar.code:
        unpacked: Value = struct.unpack(f"<{scalar.code}", value)[0]
        return unpacked
    return _text(value) if name == "string" else value


def _decoded_list(name: str, data: bytes) -> list[Any]:
    scalar = _SCALARS[name]
    values: list[Any] = []
    for number, wire, value in fields_of(data):
        if number != 1:
            continue
        if wire == BYTES and scalar.wire != BYTES and isinstance(value, bytes):
            if scalar.code:
                values += packed_fixed(value, scalar.code)
            else:
                values += map(scalar.decode, packed_varints(value))
        else:
            values.append(_decoded_one(name, wire, value))
    return values


def _encoded_attributes(number: int, attributes: Mapping[str, Attribute]) -> bytes:
    return b"".join(
        bytes_field(number, _encoded_name(name) + _encoded(each))
        for name, each in attributes.items()
    )


@lru_cache(maxsize=1 << 10)
def _encoded_name(name: str) -> bytes:
    return bytes_field(1, _utf8(name))


def _encoded(attribute: Attribute) -> bytes:
    if not attribute.type:
        return b""
    number = _FIELDS[attribute.type]
    name = attribute.type.removesuffix(_LIST)
    if name == attribute.type:
        return _encoded_one(number, name, attribute.value)
    values = attribute.value if isinstance(attribute.value, list) else []
    scalar = _SCALARS[name]
    if scalar.code:
        content = struct.pack(f"<{len(values)}{scalar.code}", *values)
        return bytes_field(number, bytes_field(1, content) if values else b"")
    if scalar.wire == VARINT:
        return bytes_field(number, packed_field(1, map(scalar.encode, values)))
    return bytes_field(number, b"".join(_encoded_one(1, name, value) for value in values))


def _encoded_one(number: int, name: str, value: Any) -> bytes:
    scalar = _SCALARS[name]
    if scalar.code:
        return varint(number << 3 | scalar.wire) + struct.pack(f"<{scalar.code}", value)
    if scalar.wire == VARINT:
        return varint_field(number, scalar.encode(value))
    return bytes_field(number, _utf8(value) if name == "string" else value)
