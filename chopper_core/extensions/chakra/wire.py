"""Protobuf's wire format, as much of it as Chakra traces use: fields, varints, packed numbers.

Source: https://protobuf.dev/programming-guides/encoding/. Own code, since the generated module of
upstream takes longer to import than a trace takes to read, and pins a version of protobuf.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from typing import Final

import numpy as np

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
