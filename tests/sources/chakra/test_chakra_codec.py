"""The codec of `.et` files: every attribute type both ways, and files that lie about themselves."""

from __future__ import annotations

import gzip
import io
import resource
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chopper_core.extensions.chakra.et import EtFile, write_et
from chopper_core.extensions.chakra.schema import (
    Attribute,
    Metadata,
    Node,
    bytes_field,
    decode_node,
    delimited,
    encode_node,
    varint,
)
from chopper_core.util.errors import DataError
from tests.limited import within
from tests.wording import Wording

_SIGNED32, _SIGNED64 = st.integers(-(2**31), 2**31 - 1), st.integers(-(2**63), 2**63 - 1)
_UNSIGNED32, _UNSIGNED64 = st.integers(0, 2**32 - 1), st.integers(0, 2**64 - 1)
SCALARS: dict[str, st.SearchStrategy[Any]] = {
    "double": st.floats(allow_nan=False),
    "float": st.floats(allow_nan=False, width=32),
    "int32": _SIGNED32,
    "int64": _SIGNED64,
    "uint32": _UNSIGNED32,
    "uint64": _UNSIGNED64,
    "sint32": _SIGNED32,
    "sint64": _SIGNED64,
    "fixed32": _UNSIGNED32,
    "fixed64": _UNSIGNED64,
    "sfixed32": _SIGNED32,
    "sfixed64": _SIGNED64,
    "bool": st.booleans(),
    "string": st.text(st.characters(codec="utf-8"), max_size=40),
    "bytes": st.binary(max_size=40),
}
TYPES = {
    **SCALARS,
    **{f"{name}_list": st.lists(each, max_size=40) for name, each in SCALARS.items()},
}


def attributes() -> st.SearchStrategy[dict[str, Attribute]]:
    one = st.sampled_from(sorted(TYPES)).flatmap(
        lambda kind: TYPES[kind].map(lambda value: Attribute(kind, value))
    )
    return st.dictionaries(st.text(st.characters(codec="utf-8"), min_size=1, max_size=8), one)


def nodes() -> st.SearchStrategy[Node]:
    ids = st.integers(0, 2**64 - 1)
    io_info = st.fixed_dictionaries(
        {}, optional={name: st.text("[]1,", min_size=1) for name in ("values", "shapes", "types")}
    )
    return st.builds(
        Node,
        id=ids,
        name=st.text(st.characters(codec="utf-8"), max_size=20),
        type=st.integers(0, 7),
        ctrl_deps=st.lists(ids, max_size=80),
        data_deps=st.lists(ids, max_size=80),
        start_us=st.integers(0, 2**52),
        duration_us=st.integers(0, 2**52),
        inputs=io_info,
        outputs=io_info,
        attributes=attributes(),
    )


@given(nodes())
def test_a_node_with_any_attributes_is_read_as_it_was_written(node: Node) -> None:
    assert decode_node(encode_node(node)) == node


@pytest.mark.parametrize("kind", sorted(TYPES))
def test_each_attribute_type_is_read_as_it_was_written(kind: str) -> None:
    @settings(max_examples=8)
    @given(TYPES[kind])
    def check(value: Any) -> None:
        node = Node(id=1, attributes={"x": Attribute(kind, value)})
        assert decode_node(encode_node(node)).attributes["x"] == Attribute(kind, value)

    check()


def test_fields_that_the_schema_lacks_are_skipped() -> None:
    data = (
        encode_node(Node(id=7, name="a")) + varint(99 << 3) + varint(5) + bytes_field(98, b"later")
    )
    assert decode_node(data) == Node(id=7, name="a")


@pytest.mark.parametrize("packed", [gzip.compress, bytes], ids=["gzip", "plain"])
def test_a_file_is_read_node_by_node(packed: Any, tmp_path: Path) -> None:
    written = [
        Node(id=number, name=f"n{number}", data_deps=[*range(1, number)]) for number in (1, 2, 3)
    ]
    text = io.BytesIO()
    assert write_et(text, Metadata("1.0.0", {"rank": Attribute("int64", 3)}), written) == 3
    path = tmp_path / "a.3.et"
    path.write_bytes(packed(text.getvalue()))
    with EtFile(path) as file:
        assert list(file) == written
        assert (file.metadata.version, file.metadata.get("rank")) == ("1.0.0", 3)


@pytest.mark.parametrize("size", [256, 384, 512, 640])
def test_a_first_length_that_spells_a_pickle_is_a_length(size: int, tmp_path: Path) -> None:
    empty = Metadata("1.0.0", {"note": Attribute("string", "")})
    text = io.BytesIO()
    write_et(text, empty, ())
    head = len(text.getvalue()) + 1
    metadata = Metadata("1.0.0", {"note": Attribute("string", "x" * (size - head - 1))})
    found = next(
        each for extra in range(-4, 5) if len(each := _encoded(metadata, extra)) == size + 2
    )
    path = tmp_path / "a.0.et"
    path.write_bytes(found + delimited(encode_node(Node(id=1))))
    assert path.read_bytes()[0] == 0x80
    with EtFile(path) as file:
        assert [node.id for node in file] == [1]


def _encoded(metadata: Metadata, extra: int) -> bytes:
    note = metadata.get("note")
    text = io.BytesIO()
    changed = note + "x" * extra if extra >= 0 else note[:extra]
    write_et(text, Metadata("1.0.0", {"note": Attribute("string", changed)}), ())
    return text.getvalue()


def _file(path: Path, *messages: bytes) -> Path:
    path.write_bytes(delimited(b"\x0a\x051.0.0") + b"".join(messages))
    return path


GIB = 1 << 30
HOSTILE = {
    "an empty node": (b"\0" * 100, "is empty, and upstream's readers stop there"),
    "a length beyond the file": (varint(1000) + b"\x08\x01", "claims 1,000 bytes where 2 are left"),
    "a gigabyte's length": (varint(GIB) + b"\x08\x01", "claims 1,073,741,824 bytes, more than"),
    "a length without end": (b"\xff" * 12, "has a length of more than 5 bytes"),
    "a length that is cut": (b"\xff\xff", "ends within its length"),
    "a string beyond its node": (
        delimited(b"\x08\x01\x12" + varint(GIB) + b"abc"),
        "has a field of 1,073,741,824 bytes where 3 are left",
    ),
    "a number without end": (delimited(b"\x08" + b"\xff" * 11), "has a number without an end"),
    "an unknown wire type": (delimited(b"\x0b\x01"), "unknown wire type 3"),
    "packed numbers cut": (delimited(b"\x08\x01\x2a\x02\x01\xff"), "has a number without an end"),
    "floats cut": (
        delimited(
            b"\x08\x01" + bytes_field(10, b"\x0a\x01x" + bytes_field(6, bytes_field(1, b"abc")))
        ),
        "has 3 bytes where numbers of 4 bytes are expected",
    ),
    "a type in another encoding": (
        delimited(b"\x08\x01" + bytes_field(10, b"\x0a\x01x" + bytes_field(9, b"abc"))),
        "has an attribute of type int64 in another encoding",
    ),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_file_that_lies_is_refused_in_a_sentence(
    name: str, tmp_path: Path, wording: Wording
) -> None:
    data, says = HOSTILE[name]
    path = _file(tmp_path / "a.0.et", delimited(encode_node(Node(id=1))), data)
    with within(8 << 20), EtFile(path) as file, pytest.raises(DataError) as refused:
        list(file)
    assert says in str(refused.value)
    wording(str(refused.value), str(path), "node 2")
    assert "\n" not in str(refused.value)


def test_a_real_gigabyte_of_string_is_refused_in_bounded_memory(tmp_path: Path) -> None:
    path = tmp_path / "a.0.et"
    head = b"\x08\x01\x12" + varint(GIB)
    with path.open("wb") as file:
        file.write(delimited(b"\x0a\x051.0.0") + varint(len(head) + GIB) + head)
        file.truncate(file.tell() + GIB)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with EtFile(path) as opened, pytest.raises(DataError, match="more than the 67,108,864"):
        list(opened)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100_000


@pytest.mark.sweep
def test_a_million_dependencies_are_read(tmp_path: Path) -> None:
    wanted = [*range(1, 1_000_001)]
    path = _file(tmp_path / "a.0.et", delimited(encode_node(Node(id=0, data_deps=wanted))))
    with EtFile(path) as file:
        (node,) = file
    assert node.data_deps == wanted
