"""Messages of Chakra's schema (mlcommons/chakra, `schema/protobuf/et_def.proto`) as records.

A file is one `GlobalMetadata` and then `Node`s, each behind its length as a varint. Attributes of
any name and type are kept with their type, since readers of a wrong integer type read 0.

Of protobuf's wire format there is as much as Chakra traces use: fields, varints, packed numbers
(https://protobuf.dev/programming-guides/encoding/). Own code, since the generated module of
upstream takes longer to import than a trace takes to read, and pins a version of protobuf.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator, Mapping
from enum import IntEnum
from functools import lru_cache
from typing import Any, Final

import numpy as np
from msgspec import Struct, field

VARINT: Final = 0
FIXED64: Final = 1
BYTES: Final = 2
FIXED32: Final = 5
_FIXED_BYTES: Final = {FIXED64: 8, FIXED32: 4}
_MAX_VARINT_BYTES: Final = 10
_MASK64: Final = (1 << 64) - 1
_FEW_BYTES: Final = 64
"""Packed numbers up to this size are decoded one by one, more at once."""


class WireError(ValueError):
    """Bytes that are not a valid message; the text completes a sentence about them."""


def varint_at(data: bytes, at: int) -> tuple[int, int]:
    """Return the unsigned number at a place, and the place behind it."""
    if at < len(data) and data[at] < 0x80:
        return data[at], at + 1
    value = shift = 0
    for end in range(at, min(at + _MAX_VARINT_BYTES, len(data))):
        byte = data[end]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & _MASK64, end + 1
        shift += 7
    raise WireError("has a number without an end")


def fields_of(data: bytes) -> Iterator[tuple[int, int, int | bytes]]:
    """Yield number, wire type and value of each field; fixed-width values stay bytes."""
    at = 0
    while at < len(data):
        key, at = varint_at(data, at)
        number, wire = key >> 3, key & 7
        if wire == VARINT:
            value, at = varint_at(data, at)
            yield number, wire, value
            continue
        if wire == BYTES:
            size, at = varint_at(data, at)
        elif wire in _FIXED_BYTES:
            size = _FIXED_BYTES[wire]
        else:
            raise WireError(f"has a field of the unknown wire type {wire}")
        if size > len(data) - at:
            raise WireError(f"has a field of {size:,} bytes where {len(data) - at:,} are left")
        yield number, wire, data[at : at + size]
        at += size


def packed_varints(data: bytes) -> list[int]:
    """Return the unsigned numbers that follow each other."""
    if len(data) <= _FEW_BYTES:
        found, at = [], 0
        while at < len(data):
            value, at = varint_at(data, at)
            found.append(value)
        return found
    octets = np.frombuffer(data, np.uint8)
    ends = np.flatnonzero(octets < 0x80)
    if not len(ends) or ends[-1] != len(octets) - 1:
        raise WireError("has a number without an end")
    starts = np.concatenate([[0], ends[:-1] + 1])
    sizes = ends - starts + 1
    if int(sizes.max()) > _MAX_VARINT_BYTES:
        raise WireError("has a number without an end")
    values = np.zeros(len(ends), np.uint64)
    for place in range(int(sizes.max())):
        there = sizes > place
        part = octets[starts[there] + place].astype(np.uint64) & np.uint64(0x7F)
        values[there] |= part << np.uint64(7 * place)
    numbers: list[int] = values.tolist()
    return numbers


def packed_fixed(data: bytes, code: str) -> list[int | float]:
    """Return the numbers of a `struct` code that follow each other."""
    size = struct.calcsize(f"<{code}")
    if len(data) % size:
        raise WireError(f"has {len(data):,} bytes where numbers of {size} bytes are expected")
    return list(struct.unpack(f"<{len(data) // size}{code}", data))


def signed(value: int, bits: int) -> int:
    """Return the two's complement number of an unsigned one."""
    value &= (1 << bits) - 1
    return value - (1 << bits) if value >> (bits - 1) else value


def unzigzag(value: int) -> int:
    """Return the signed number of a zigzag-encoded one."""
    return (value >> 1) ^ -(value & 1)


def varint(value: int) -> bytes:
    """Encode a number; a negative one as 64-bit two's complement."""
    value &= _MASK64
    if value < 0x80:
        return bytes((value,))
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def varint_field(number: int, value: int) -> bytes:
    """Encode a field of wire type varint."""
    return varint(number << 3 | VARINT) + varint(value)


def bytes_field(number: int, value: bytes) -> bytes:
    """Encode a field of wire type bytes: text, a message, or packed numbers."""
    return varint(number << 3 | BYTES) + varint(len(value)) + value


def packed_field(number: int, values: Iterable[int]) -> bytes:
    """Encode repeated numbers as packed varints; b"" for none."""
    content = b"".join(map(varint, values))
    return bytes_field(number, content) if content else b""


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

    # In the order of the schema.
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
_NODE: Final = dict(enumerate(Node.__struct_fields__, 1))
"""Number of each field of a node → its name here."""
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
        name = _NODE.get(number)
        if wire == BYTES and isinstance(value, bytes):
            match name:
                case "attributes":
                    _add_attribute(node.attributes, value)
                case "name":
                    node.name = _text(value)
                case "inputs" | "outputs":
                    setattr(node, name, _io(value))
                case "ctrl_deps" | "data_deps":
                    getattr(node, name).extend(packed_varints(value))
        elif wire == VARINT and name in ("ctrl_deps", "data_deps"):
            getattr(node, name).append(value)
        elif wire == VARINT and name in ("id", "type", "start_us", "duration_us"):
            setattr(node, name, value)
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
