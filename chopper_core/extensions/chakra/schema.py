"""Messages of Chakra's schema (mlcommons/chakra, `schema/protobuf/et_def.proto`) as records.

A file is one `GlobalMetadata` and then `Node`s, each behind its length as a varint. Attributes of
any name and type are kept with their type, since readers of a wrong integer type read 0.

Of protobuf's wire format there is as much as Chakra traces use: fields, varints, packed numbers
(https://protobuf.dev/programming-guides/encoding/). Own code, since the generated module of
upstream takes longer to import than a trace takes to read, and pins a version of protobuf.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import IntEnum
from functools import lru_cache
from itertools import chain
from typing import Any, Final

from msgspec import Struct, field, json

from chopper_core.util.errors import DataError

VARINT: Final = 0
FIXED64: Final = 1
BYTES: Final = 2
FIXED32: Final = 5
_FIXED_BYTES: Final = {FIXED64: 8, FIXED32: 4}
_MAX_VARINT_BYTES: Final = 10
_MASK64: Final = (1 << 64) - 1


class WireError(ValueError):
    """Bytes that are not a valid message; the text completes a sentence about them."""


def varint_at(data: bytes, at: int) -> tuple[int, int]:
    """Return the unsigned number at a place, and the place behind it."""
    if at < len(data) and data[at] < 0x80:
        return data[at], at + 1
    value = shift = 0
    for end in range(at, min(at + _MAX_VARINT_BYTES, len(data))):
        byte = data[end]
        if byte < 0x80:
            return (value | byte << shift) & _MASK64, end + 1
        value |= (byte & 0x7F) << shift
        shift += 7
    raise WireError("has a number without an end")


def schema_fields(data: bytes) -> Iterator[tuple[int, int, int | bytes]]:
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


def varint(value: int) -> bytes:
    """Encode a number; a negative one as 64-bit two's complement."""
    value &= _MASK64
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def bytes_field(number: int, value: bytes) -> bytes:
    """Encode a field of wire type bytes: text, a message, or packed numbers."""
    return varint(number << 3 | BYTES) + delimited(value)


def delimited(message: bytes) -> bytes:
    return varint(len(message)) + message


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
MEMORY: Final = (NodeType.MEM_LOAD, NodeType.MEM_STORE)
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


TYPE_OF: Final[Mapping[type, str]] = {bool: "bool", int: "int64", float: "double", str: "string"}


def typed(value: Any) -> Attribute:
    """A value with the type that it has in an `.et`; of any other shape its JSON."""
    values = value if isinstance(value, list) else [value]
    found = {type(each) for each in values}
    is_large = any(type(each) is int and not -(2**63) <= each < 2**63 for each in values)
    if len(found) != 1 or (kind := TYPE_OF.get(found.pop())) is None or is_large:
        return Attribute("string", json.encode(value).decode())
    return Attribute(f"{kind}_list" if isinstance(value, list) else kind, value)


class NodeFields(Struct):
    """A node's own fields; times in µs as the schema has them, 0 where the file gives none."""

    # In the order of the schema.
    id: int = 0
    name: str = ""
    type: int = NodeType.INVALID
    ctrl_deps: list[int] = field(default_factory=list)
    data_deps: list[int] = field(default_factory=list)
    start_us: int = 0
    duration_us: int = 0


class Node(NodeFields):
    """A node of the graph."""

    inputs: Mapping[str, str] = field(default_factory=dict)
    """`values`, `shapes`, `types` as the text of Python lists."""
    outputs: Mapping[str, str] = field(default_factory=dict)
    attributes: dict[str, Attribute] = field(default_factory=dict)

    def get(self, name: str) -> Any:
        found = self.attributes.get(name)
        return None if found is None else found.value


class Metadata(Struct):
    """The first message of a file."""

    version: str = ""
    attributes: dict[str, Attribute] = field(default_factory=dict)

    def get(self, name: str) -> Any:
        found = self.attributes.get(name)
        return None if found is None else found.value


class _Scalar(Struct, frozen=True):
    """How a type is on the wire: its number or bytes from the value, and the other way."""

    wire: int
    decode: Callable[[Any], Any] = int
    encode: Callable[[Any], Any] = int


def _signed(bits: int) -> _Scalar:
    top = 1 << (bits - 1)
    return _Scalar(VARINT, lambda value: ((value + top) & ((1 << bits) - 1)) - top)


def _fixed(wire: int, code: str) -> _Scalar:
    one = struct.Struct(f"<{code}")
    return _Scalar(wire, lambda data: one.unpack(data)[0], one.pack)


_ZIGZAG: Final = _Scalar(
    VARINT,
    lambda value: (value >> 1) ^ -(value & 1),
    lambda value: value << 1 if value >= 0 else (-value << 1) - 1,
)
_STRING: Final = _Scalar(
    BYTES,
    lambda data: data.decode("utf-8", "replace"),
    lambda text: text.encode("utf-8", "replace"),
)
_SCALARS: Final[Mapping[str, _Scalar]] = {
    "double": _fixed(FIXED64, "d"),
    "float": _fixed(FIXED32, "f"),
    "int32": _signed(32),
    "int64": _signed(64),
    "uint32": _Scalar(VARINT, lambda value: value & 0xFFFFFFFF),
    "uint64": _Scalar(VARINT),
    "sint32": _ZIGZAG,
    "sint64": _ZIGZAG,
    "fixed32": _fixed(FIXED32, "I"),
    "fixed64": _fixed(FIXED64, "Q"),
    "sfixed32": _fixed(FIXED32, "i"),
    "sfixed64": _fixed(FIXED64, "q"),
    "bool": _Scalar(VARINT, bool),
    "string": _STRING,
    "bytes": _Scalar(BYTES, bytes, bytes),
}
"""In the order of the schema: field 3 is `double_val`, 4 `double_list`, 5 `float_val` …"""
_FIRST_FIELD: Final = 3
_MAX_MEMO_BYTES: Final = 64
_MISFITS: Final = (
    AttributeError,
    LookupError,
    TypeError,
    ValueError,
    OverflowError,
    struct.error,
)
"""Errors of a value that its type can't hold."""
_LIST: Final = "_list"
_FIELDS: Final[Mapping[str, int]] = {
    name + suffix: _FIRST_FIELD + 2 * place + (suffix == _LIST)
    for place, name in enumerate(_SCALARS)
    for suffix in ("", _LIST)
}
_TYPES: Final = {number: name for name, number in _FIELDS.items()}
_NODE: Final = dict(enumerate(Node.__struct_fields__, 1))
"""Number of each field of a node → its name here."""
_NUMBERS: Final = ("id", "type", "start_us", "duration_us")
_DEPS: Final = ("ctrl_deps", "data_deps")
_IO: Final = {1: "values", 2: "shapes", 3: "types"}


def decode_metadata(data: bytes) -> Metadata:
    metadata = Metadata()
    for number, wire, value in schema_fields(data):
        if number == 1 and wire == BYTES:
            metadata.version = _STRING.decode(value)
        elif number == 2 and wire == BYTES:
            _add_attribute(metadata.attributes, value)
    return metadata


def decode_node(data: bytes, unknown: set[int] | None = None) -> Node:
    """Decode a `Node`; raises WireError. Fields that the schema lacks are skipped, and their
    numbers added to `unknown`."""
    node = Node()
    for number, wire, value in schema_fields(data):
        name = _NODE.get(number)
        if name is None and unknown is not None:
            unknown.add(number)
        if name == "attributes" and wire == BYTES:
            _add_attribute(node.attributes, value)
        elif wire == VARINT and name in _NUMBERS:
            setattr(node, name, value)
        elif name in _DEPS:
            getattr(node, name).extend(_repeated("uint64", wire, value))
        elif wire != BYTES or not isinstance(value, bytes):
            continue
        elif name == "name":
            node.name = _STRING.decode(value)
        elif name in ("inputs", "outputs"):
            texts = (each for each in schema_fields(value) if each[1] == BYTES and each[0] in _IO)
            setattr(node, name, {_IO[at]: _STRING.decode(text) for at, _, text in texts})
    return node


def _add_attribute(attributes: dict[str, Attribute], data: Any) -> None:
    read = _known_attribute if len(data) <= _MAX_MEMO_BYTES else _attribute
    name, attribute = read(data)
    attributes[name] = attribute


def _attribute(data: bytes) -> tuple[str, Attribute]:
    # In proto3 an attribute whose value is a default still has its field, since it is a oneof.
    name, found = "", Attribute("", b"")
    for number, wire, value in schema_fields(data):
        kind = _TYPES.get(number, "")
        if number == 1 and wire == BYTES:
            name = _STRING.decode(value)
        elif kind.endswith(_LIST):
            parts = schema_fields(value) if isinstance(value, bytes) else ()
            of = kind.removesuffix(_LIST)
            lists = (_repeated(of, how, part) for at, how, part in parts if at == 1)
            found = Attribute(kind, [*chain.from_iterable(lists)])
        elif kind:
            found = Attribute(kind, _decoded(kind, wire, value))
    return name, found


_known_attribute: Final = lru_cache(maxsize=1 << 14)(_attribute)
"""Most attributes are equal on thousands of nodes."""


def _decoded(kind: str, wire: int, value: int | bytes) -> Any:
    if wire != _SCALARS[kind].wire:
        raise WireError(f"has an attribute of type {kind} in another encoding")
    return _SCALARS[kind].decode(value)


def _repeated(kind: str, wire: int, value: Any) -> Iterator[Any]:
    """The values in one field of a list: one of them, or numbers behind each other."""
    own = _SCALARS[kind].wire
    if wire != BYTES or own == BYTES:
        yield _decoded(kind, wire, value)
    elif own == VARINT:
        at = 0
        while at < len(value):
            number, at = varint_at(value, at)
            yield _SCALARS[kind].decode(number)
    else:
        size = _FIXED_BYTES[own]
        if len(value) % size:
            raise WireError(f"has {len(value):,} bytes where numbers of {size} bytes are expected")
        for at in range(0, len(value), size):
            yield _SCALARS[kind].decode(value[at : at + size])


def encode_metadata(metadata: Metadata) -> bytes:
    version = _encoded(1, "string", metadata.version) if metadata.version else b""
    return version + _encoded_attributes(2, metadata.attributes)


def encode_node(node: Node) -> bytes:
    """Encode a `Node`; fields with their default are left out, as proto3 does."""
    parts = []
    for number, name in _NODE.items():
        value = getattr(node, name)
        if not value:
            continue
        if name == "attributes":
            parts.append(_encoded_attributes(number, value))
        elif name in ("inputs", "outputs"):
            texts = (
                _encoded(at, "string", value[key]) for at, key in _IO.items() if value.get(key)
            )
            parts.append(bytes_field(number, b"".join(texts)))
        elif name in _DEPS:
            parts.append(_encoded_list(number, "uint64", value))
        else:
            parts.append(_encoded(number, "string" if name == "name" else "uint64", value))
    return b"".join(parts)


def _encoded_attributes(number: int, attributes: Mapping[str, Attribute]) -> bytes:
    return b"".join(
        bytes_field(number, _encoded(1, "string", name) + _encoded_value(each))
        for name, each in attributes.items()
    )


def _encoded_value(attribute: Attribute) -> bytes:
    kind: str = attribute.type
    value: Any = attribute.value
    if not kind:
        return b""
    try:
        if kind.endswith(_LIST):
            return bytes_field(_FIELDS[kind], _encoded_list(1, kind.removesuffix(_LIST), value))
        return _encoded(_FIELDS[kind], kind, value)
    except _MISFITS as error:
        raise DataError(f"An attribute of type {kind} can't be {str(value)[:40]!r}.") from error


def _encoded(number: int, kind: str, value: Any) -> bytes:
    return varint(number << 3 | _SCALARS[kind].wire) + _payload(kind, value)


def _encoded_list(number: int, kind: str, values: Sequence[Any]) -> bytes:
    if _SCALARS[kind].wire == BYTES:
        return b"".join(_encoded(number, kind, value) for value in values)
    packed = b"".join(_payload(kind, value) for value in values)
    return bytes_field(number, packed) if packed else b""


def _payload(kind: str, value: Any) -> bytes:
    scalar = _SCALARS[kind]
    content: Any = scalar.encode(value)
    if scalar.wire == VARINT:
        return varint(content)
    return delimited(content) if scalar.wire == BYTES else content
