"""Kinds of damage: of bytes, of values in JSON, CSV and SQLite, of a whole file's form; each
repeatable by its seed."""

from __future__ import annotations

import gzip
import json
import os
import re
import socket
import sqlite3
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random
from typing import Any, Final

ODD: Final[Sequence[Any]] = (
    None, True, False, 0, -1, 1, 2**31, -(2**31) - 1, 2**63 - 1, 2**63, -(2**63), 2**64, 10**30,
    0.5, -0.0, 1e308, 1e-320, float("nan"), float("inf"), float("-inf"), "", " ", "0", "-1",
    "nan", "1e999", "\x00", "\x1b[31m", "\u202eabc", "\ud800", "=1+1", "[red]", "x" * 5000, [], {},
    [[]], [None], [1, "a", None], {"": {}}, {"id": []}, "é" * 3, "9" * 400, "ncclDevKernel",
)  # fmt: skip
"""Values of every type where others belong."""
_BITS: Final = 8
_JSON_DEPTH: Final = 40


def of_bytes(path: Path, random: Random) -> None:
    """Flip bits, cut, repeat, insert and move pieces; sometimes inside of the gzip."""
    data = path.read_bytes()
    inside = path.suffix == ".gz" and random.random() < 0.7
    data = gzip.decompress(data) if inside else data
    for _ in range(random.choice((1, 1, 2, 5, 30))):
        data = random.choice(_BYTES)(data, random)
    path.write_bytes(gzip.compress(data, mtime=0) if inside else data)


def _place(data: bytes, random: Random) -> tuple[int, int]:
    begin = random.randrange(len(data) + 1)
    return begin, min(begin + random.choice((0, 1, 2, 10, 100, 5000)), len(data))


def _flipped(data: bytes, random: Random) -> bytes:
    if not data:
        return data
    at = random.randrange(len(data))
    return data[:at] + bytes([data[at] ^ 1 << random.randrange(_BITS)]) + data[at + 1 :]


def _removed(data: bytes, random: Random) -> bytes:
    begin, end = _place(data, random)
    return data[:begin] + data[end:]


def _ended(data: bytes, random: Random) -> bytes:
    return data[: random.randrange(len(data) + 1)]


def _repeated(data: bytes, random: Random) -> bytes:
    begin, end = _place(data, random)
    return data[:end] + data[begin:end] * random.choice((1, 2, 20)) + data[end:]


def _inserted(data: bytes, random: Random) -> bytes:
    begin, _ = _place(data, random)
    odd = random.choice((random.randbytes(8), b"\x00" * 20, b'"', b"{", b"[", b",", b"\n", b"\xff"))
    return data[:begin] + odd + data[begin:]


def _moved(data: bytes, random: Random) -> bytes:
    begin, end = _place(data, random)
    rest = data[:begin] + data[end:]
    at = random.randrange(len(rest) + 1)
    return rest[:at] + data[begin:end] + rest[at:]


_BYTES: Final = (_flipped, _removed, _ended, _repeated, _inserted, _moved)


def of_json(path: Path, random: Random) -> None:
    """Replace, remove, repeat and rename values of a JSON document."""
    packed = path.suffix == ".gz"
    data = path.read_bytes()
    document = json.loads(gzip.decompress(data) if packed else data)
    for _ in range(random.choice((1, 1, 2, 5, 30))):
        document = _other(document, random, _JSON_DEPTH)
    text = json.dumps(document).encode("utf-8", "surrogatepass")
    path.write_bytes(gzip.compress(text, mtime=0) if packed else text)


def _other(value: Any, random: Random, depth: int) -> Any:
    """The value with one change somewhere in it."""
    if depth == 0 or not isinstance(value, (dict, list)) or not value or random.random() < 0.03:
        return random.choice(ODD)
    if isinstance(value, list):
        at = random.randrange(len(value))
        match random.randrange(12):
            case 0:
                return [*value[:at], *value[at + 1 :]]
            case 1:
                return [*value[:at], *[value[at]] * random.choice((2, 50)), *value[at + 1 :]]
            case 2:
                return random.sample(value, len(value))
        return [*value[:at], _other(value[at], random, depth - 1), *value[at + 1 :]]
    key = random.choice(list(value))
    match random.randrange(12):
        case 0:
            return {name: each for name, each in value.items() if name != key}
        case 1:
            return {name + "x" * (name == key): each for name, each in value.items()}
        case 2:
            return value | {key: value[random.choice(list(value))]}
    return value | {key: _other(value[key], random, depth - 1)}


def of_cells(path: Path, random: Random) -> None:
    """Replace, remove, repeat and swap cells and lines of a CSV."""
    lines = [line.split(",") for line in path.read_text(encoding="utf-8").split("\n")]
    for _ in range(random.choice((1, 1, 2, 5, 30))):
        row = random.randrange(len(lines))
        cell = random.randrange(len(lines[row]))
        match random.randrange(8):
            case 0:
                del lines[row][cell]
                lines[row] = lines[row] or [""]
            case 1:
                lines[row].insert(cell, _text(random))
            case 2:
                lines.insert(random.randrange(len(lines)), list(lines[row]))
            case 3:
                other = random.randrange(len(lines))
                lines[row], lines[other] = lines[other], lines[row]
            case 4:
                for each in lines:
                    if cell < len(each):
                        each[cell] = _text(random)
            case _:
                lines[row][cell] = _text(random)
    text = "\n".join(map(",".join, lines))
    path.write_bytes(text.encode("utf-8", "surrogatepass"))


def _text(random: Random) -> str:
    odd = random.choice(ODD)
    return odd if isinstance(odd, str) else json.dumps(odd)


def of_rows(path: Path, random: Random) -> None:
    """Replace and remove values and rows of a database, and take tables and columns away."""
    with sqlite3.connect(path) as db:
        tables = [
            name
            for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
            if not name.startswith("sqlite_")
        ]
        for _ in range(random.choice((1, 1, 2, 5, 30))):
            table = random.choice(tables)
            columns = [row[1] for row in db.execute(f'PRAGMA table_info("{table}")')]
            if not columns:
                continue
            column, odd = random.choice(columns), random.choice(ODD)
            odd = json.dumps(odd) if isinstance(odd, (list, dict)) else odd
            if isinstance(odd, int) and not -(2**63) <= odd < 2**63:
                odd = float(odd)
            if isinstance(odd, str) and not odd.isascii():
                odd = odd.encode("utf-8", "surrogatepass")
            where = "" if random.random() < 0.1 else "WHERE rowid % 3 = 1"
            statement = {
                0: f'DELETE FROM "{table}" {where}',
                1: f'DROP TABLE "{table}"',
                2: f'ALTER TABLE "{table}" RENAME COLUMN "{column}" TO "odd"',
            }.get(random.randrange(20), f'UPDATE OR IGNORE "{table}" SET "{column}" = ? {where}')
            try:
                db.execute(statement, (odd,) if "?" in statement else ())
            except sqlite3.Error:
                continue
            if statement.startswith("DROP"):
                tables.remove(table)
            if not tables:
                break
    db.close()


def of_form(path: Path, random: Random) -> None:
    """Write the whole in another encoding, packing, unit or shape, or put no file in its place."""
    data = path.read_bytes()
    if random.random() < 0.1:
        path.unlink()
        random.choice(_PLACES)(path)
        return
    is_packed = path.suffix == ".gz"
    data = gzip.decompress(data) if is_packed else data
    for _ in range(random.choice((1, 1, 2))):
        data = random.choice(_FORMS)(data, random)
    if is_packed or random.random() < 0.2:
        data = random.choice(_PACKED)(data, random)
    path.write_bytes(data)


def _encoded(data: bytes, random: Random) -> bytes:
    text = data.decode("utf-8", "replace")
    names = ("utf-16", "utf-16-le", "utf-16-be", "utf-32", "utf-8-sig", "latin-1", "utf-7")
    return text.encode(random.choice(names), "replace")


def _ended_otherwise(data: bytes, random: Random) -> bytes:
    return data.replace(b"\n", random.choice((b"\r\n", b"\r", b"\n\n", b"\0\n", b"\x0b\x85", b"")))


def _zeroed(data: bytes, random: Random) -> bytes:
    begin, end = _place(data, random)
    zeros = bytes(random.choice((1, 4096, 1 << 20)))
    return random.choice((data + zeros, zeros + data, data[:begin] + zeros + data[end:]))


def _headed(data: bytes, random: Random) -> bytes:
    """Headings twice, without end, or of names without end."""
    first, end, rest = data.partition(b"\n")
    heads = first.split(b",")
    at = random.randrange(len(heads))
    match random.randrange(4):
        case 0:
            heads[at] = random.choice(heads)
        case 1:
            heads[at] += b"x" * random.choice((300, 1 << 18))
        case 2:
            heads += [b"c"] * random.choice((2, 300, 20_000))
        case _:
            heads[at] = random.choice((b"", b'"', b"\0", b"\xff", b" ", b"\x1b[2J"))
    return b",".join(heads) + end + rest


def _nested(data: bytes, random: Random) -> bytes:
    begin, _ = _place(data, random)
    opening = random.choice((b"[", b'{"a":', b'"', b"(", b"- ", b"a: "))
    return data[:begin] + opening * random.choice((60, 3000, 100_000)) + data[begin:]


def _scaled(data: bytes, random: Random) -> bytes:
    """All numbers of so many digits in another unit, negative, or beyond all integers."""
    change = random.choice((b"%b000", b"-%b", b"%b000000", b"%b.5", b"%be300", b"9%b9999999999"))
    digits = random.choice((1, 3, 5, 9))
    pattern = re.compile(rb"(?<![\w.])\d{%d,}(?![\w.])" % digits)
    return pattern.sub(lambda match: change % match[0], data)


def _emptied(data: bytes, random: Random) -> bytes:
    return random.choice((b"", b"\n", b" ", b"\xef\xbb\xbf", b"\xff\xfe", data[:1]))


def _members(data: bytes, random: Random) -> bytes:
    """Several members of gzip, whole, cut, empty, or with something between or after them."""
    at = random.randrange(len(data) + 1)
    first, second, none = (gzip.compress(each, mtime=0) for each in (data[:at], data[at:], b""))
    cut = first[: random.randrange(len(first) + 1)]
    half = second[: len(second) // 2]
    return random.choice(
        (first + second, first + none + second, cut, cut + second, first + half, first + data[at:],
         first + b"\0" * 512 + second, first + b"garbage")
    )  # fmt: skip


def _packed_twice(data: bytes, _random: Random) -> bytes:
    return gzip.compress(gzip.compress(data, mtime=0), mtime=0)


def _linked(path: Path) -> None:
    path.symlink_to(path.name)


def _bound(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(str(path))


_FORMS: Final = (_encoded, _ended_otherwise, _zeroed, _headed, _nested, _scaled, _emptied)
_PACKED: Final = (_members, _members, _packed_twice)
_PLACES: Final[Sequence[Callable[[Path], object]]] = (
    Path.mkdir, os.mkfifo, _linked, _bound, lambda path: path.symlink_to("/dev/zero"),
    lambda path: path.symlink_to("gone"), lambda path: path.symlink_to("/proc/self/mem"),
)  # fmt: skip


_OF_SUFFIX: Final[dict[str, Callable[[Path, Random], None]]] = {
    ".json": of_json,
    ".gz": of_json,
    ".csv": of_cells,
    ".txt": of_cells,
    ".log": of_cells,
    ".db": of_rows,
    ".rpd": of_rows,
    ".sqlite": of_rows,
}


def damage(path: Path, random: Random) -> None:
    """Damage a file in a way that suits its format, or its bytes whatever it is."""
    suited = None if ".et" in path.suffixes else _OF_SUFFIX.get(path.suffix)
    kind = random.random()
    if kind < 0.25:
        of_form(path, random)
    else:
        (suited if suited and kind < 0.75 else of_bytes)(path, random)
