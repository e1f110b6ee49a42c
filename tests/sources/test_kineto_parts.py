"""A trace that several processes read part by part gives the tables that one of them reads."""

from __future__ import annotations

import gzip
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from threading import Event
from typing import Any

import pytest
from kineto_oracle import tables_of
from trace_layouts import LAYOUTS, Events

from chopper_core.sources.kineto import parts
from chopper_core.sources.kineto.reader import read as read_trace
from chopper_core.sources.trace import Trace
from chopper_core.tables.bytes import PIECE_BYTES
from chopper_core.tables.losses import Losses
from chopper_core.util.errors import DataError
from chopper_core.util.progress import Cancelled, Progress, silent
from chopper_core.util.shelf import Shelf
from chopper_core.util.workers import read_all
from tests.realdata.conftest import FOLDER as REAL_DATA
from tests.tables.test_compression import COMPRESS

KEYS = {"deviceProperties": [{"id": 0, "name": "MI300X"}], "baseTimeNanoseconds": 1_000}
Work = Callable[[Path, Progress, Shelf], Any]


COUNT = 48
"""Launches of a trace that has a few parts of pieces of less than a thousand bytes."""


def events(count: int, start_us: float = 0.125) -> Events:
    """Launches, kernels far behind them, operators, flows, frames and allocations."""
    found: Events = []
    for number in range(count):
        at = {"pid": 7, "tid": number % 3, "ts": start_us + 10 * number}
        inputs = {"Input Dims": [[number % 11, 4], [4, 4]], "External id": number}
        collective = {"Collective name": "allreduce", "In msg nelems": number % 7}
        memory = {"Bytes": 512, "Device Id": 0, "Device Type": 1, "Addr": number}
        found += [
            {"ph": "X", "cat": "cpu_op", "name": f"aten::mm_{number % 19}", "dur": 9, **at,
             "args": {**inputs, "Sequence number": number}},
            {"ph": "X", "cat": "cuda_runtime", "name": "hipLaunchKernel", "dur": 1, **at,
             "args": {"correlation": number}},
            {"ph": "s", "cat": "fwdbwd", "id": number, "name": "fwdbwd", **at},
            {"ph": "f", "cat": "fwdbwd", "id": max(number - 14, 0), "name": "fwdbwd", **at},
            {"ph": "X", "cat": "python_function", "name": f"nn.Module: Linear_{number % 23}",
             "dur": 2, **at},
            {"ph": "i", "cat": "cpu_instant_event", "name": "[memory]", **at, "args": memory},
            {"ph": "X", "cat": "kernel", "name": f"k{number % 29}", "dur": 1.5, "pid": 2, "tid": 0,
             "ts": at["ts"] + 5, "args": {"correlation": max(number - 32, 0), "device": 2,
             "stream": 3, "grid": [number % 13, 1, 1], "block": [64, 1, 1], **collective}},
            {"ph": "X", "cat": f"other_{number % 5}", "name": "a\\" * (number % 4), **at},
        ]  # fmt: skip
    return found


class PatientShelf(Shelf):
    """One whose owner waits until a worker has taken a text, so that it reads none itself."""

    def __init__(self, text_bytes: int) -> None:
        super().__init__(get_context("fork"), 1, text_bytes)
        self.is_left = Event()

    def lay(self, label: Any, pieces: Sequence[bytes]) -> bool:
        while not (is_laid := super().lay(label, pieces)) and not self.is_left.wait(0.001):
            pass
        return is_laid


class Others:
    """Threads in the place of other processes."""

    def __init__(self, shelf: Shelf, futures: Sequence[Future[Any]]) -> None:
        self.shelf, self._futures = shelf, futures

    def ended(self) -> list[Any]:
        ended = [each for each in self._futures if each.done()]
        return [each.exception() or each.result() for each in ended]

    def have_ended(self) -> bool:
        return all(each.done() for each in self._futures)

    def await_end(self) -> None:
        self.shelf.close()
        self.shelf.given(self.have_ended)


@contextmanager
def first(path: Path, work: Work, _size: int, text_bytes: int) -> Iterator[Any]:
    """Another process that reads all parts but the first one."""
    shelf = PatientShelf(text_bytes)
    with ThreadPoolExecutor(1) as threads:
        future = threads.submit(work, path, silent, shelf)
        future.add_done_callback(lambda _: shelf.is_left.set())
        others = Others(shelf, [future])
        yield others
        others.await_end()


@contextmanager
def meanwhile(path: Path, work: Work, _size: int, text_bytes: int) -> Iterator[Any]:
    """Three others, of which some may find nothing."""
    shelf = Shelf(get_context("fork"), 3, text_bytes)
    with ThreadPoolExecutor(3) as threads:
        futures = [threads.submit(work, path, silent, shelf) for _ in range(3)]
        others = Others(shelf, futures)
        yield others
        others.await_end()


def killed(path: Path, progress: Progress, shelf: Shelf) -> Any:
    shelf.take()
    raise OSError("killed")


def failed(path: Path, progress: Progress, shelf: Shelf) -> Any:
    shelf.take()
    return DataError("too much")


READINGS = ((701, first), (800, meanwhile))
"""The bytes of a piece, and what else reads."""
joined = parts._joined


def whole(trace: Trace) -> dict[str, Any]:
    """All of a trace, with the order of its codes and the types of its columns."""
    found: dict[str, Any] = {}
    for name in trace.__struct_fields__:
        value = getattr(trace, name)
        if hasattr(value, "take"):
            for column in value.__struct_fields__:
                values = getattr(value, column)
                found[f"{name}.{column}"] = (str(values.dtype), values.tolist())
        elif name == "figures":
            found[name] = {column: values.tobytes() for column, values in value.items()}
        else:
            found[name] = repr(value)
    return found


@pytest.fixture
def compare(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., tuple[Trace, list[bool]]]:
    """Read a text in one and in parts: the trace, and for each reading whether parts made it up."""

    def compare(
        text: bytes | Path, readings: Sequence[tuple[int, Any]] = READINGS
    ) -> tuple[Trace, list[bool]]:
        path = tmp_path / "trace.json" if isinstance(text, bytes) else text
        if isinstance(text, bytes):
            path.write_bytes(text)
        made: list[bool] = []

        def note(*given: Any) -> Any:
            found = joined(*given)
            made.append(found is not None)
            return found

        monkeypatch.setattr(parts, "_joined", note)
        monkeypatch.setattr(parts, "LEAST_PIECES", 32)
        for piece_bytes, helped in readings:
            alone = read_trace(path, piece_bytes=piece_bytes)
            expected = whole(alone)
            with monkeypatch.context() as patch:
                patch.setattr(parts, "helped", helped)
                assert whole(read_trace(path, piece_bytes=piece_bytes)) == expected
        return alone, made

    return compare


@pytest.mark.parametrize("layout", LAYOUTS)
def test_parts_of_any_size_are_the_whole(
    compare: Callable[..., tuple[Trace, list[bool]]], layout: str
) -> None:
    text = LAYOUTS[layout](events(COUNT), KEYS).encode()
    trace, made = compare(text)
    assert trace.losses == Losses() and len(trace.activities) == COUNT
    # An event without the key that begins the others is no place to begin at.
    assert layout == "uneven" or made == [True] * len(READINGS)


@pytest.mark.parametrize("ending", COMPRESS)
def test_parts_of_a_compressed_text_are_the_whole(
    compare: Callable[..., tuple[Trace, list[bool]]], ending: str
) -> None:
    text = LAYOUTS["libkineto"](events(COUNT), KEYS).encode()
    plain, _ = compare(text)
    trace, made = compare(COMPRESS[ending](text))
    assert made == [True] * len(READINGS)
    assert whole(trace) == {**whole(plain), "size_bytes": repr(trace.size_bytes)}


def test_what_a_dead_process_had_is_read_again(
    compare: Callable[..., tuple[Trace, list[bool]]],
) -> None:
    text = LAYOUTS["compact"](events(COUNT), KEYS).encode()

    def dying(how: Work, *given: Any) -> Any:
        path, _, *rest = given
        return first(path, how, *rest)

    _, made = compare(text, ((701, partial(dying, killed)), (701, partial(dying, failed))))
    assert not made


@pytest.mark.parametrize("members", [1, 40])
def test_members_of_gzip_are_one_text(
    compare: Callable[..., tuple[Trace, list[bool]]], members: int
) -> None:
    text = LAYOUTS["libkineto"](events(COUNT), KEYS).encode()
    each = len(text) // members + 1
    packed = [gzip.compress(text[at : at + each]) for at in range(0, len(text), each)]
    _, made = compare(b"".join(packed))
    assert all(made)


CUT = LAYOUTS["compact"](events(COUNT), KEYS).encode()
ODD = {
    "cut": CUT[: 2 * len(CUT) // 3],
    "cut gzip": gzip.compress(CUT)[:-1_500],
    "zeros": CUT[:14_400] + bytes(3_000) + CUT[17_400:],
    "damage": CUT[:11_200] + b'}, {"x' + CUT[11_209:],
    "damage at the end": CUT[:-800] + b'"]]' + CUT[-790:],
    "exact times later": LAYOUTS["compact"](
        [*events(32), *events(16, 1106964728033929.125)], KEYS
    ).encode(),
    "ranks later": LAYOUTS["compact"](
        [*events(32), *({**each, "args": {"rank": 1}} for each in events(14))], KEYS
    ).encode(),
    "texts as ids": CUT.replace(b'"id": 2', b'"id": "flow 2'.replace(b"flow 2", b"flow\\u0032")),
    "text after it": CUT + CUT[:8_000],
    "keys after it that are longer than a part": LAYOUTS["compact"](events(COUNT), {}).encode()[:-1]
    + b', "about": "' + b"x" * 9_000 + b'"}',
    "one time": LAYOUTS["compact"](
        [{**each, "ts": 5} for each in events(COUNT)], KEYS
    ).encode(),
}  # fmt: skip


@pytest.mark.parametrize("name", ODD)
def test_an_odd_text_is_read_in_one(
    compare: Callable[..., tuple[Trace, list[bool]]], name: str
) -> None:
    compare(ODD[name])


@pytest.mark.sweep
@pytest.mark.parametrize("path", sorted(REAL_DATA.glob("*.json.gz")), ids=lambda path: path.name)
def test_real_traces_are_the_same_in_parts(
    compare: Callable[..., tuple[Trace, list[bool]]], path: Path
) -> None:
    compare(path, ((9_973, first), (50_000, meanwhile)))


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("parts") / "rank0.json"
    path.write_text(LAYOUTS["compact"](events(1_500), KEYS))
    return path


SMALL = 8_192
read_small = partial(read_trace, piece_bytes=SMALL)


def test_other_processes_read_parts_of_a_large_file(large: Path) -> None:
    (alone,) = read_all([large], read_small, silent, 1)
    (shared,) = read_all([large], read_small, silent, 2)
    assert isinstance(alone, Trace) and isinstance(shared, Trace)
    assert whole(shared) == whole(alone)
    assert tables_of(shared) == tables_of(alone)
    assert parts.LEAST_PIECES * SMALL < large.stat().st_size < parts.LEAST_PIECES * PIECE_BYTES


def die(path: Path, progress: Progress, shelf: Shelf, **_given: Any) -> None:
    progress(f"read {path.name}", 0, 1)
    os._exit(1)


@pytest.mark.sweep
def test_a_trace_is_read_here_when_the_others_die(
    large: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = whole(read_small(large))
    monkeypatch.setattr(parts, "_help", die)
    (found,) = read_all([large], read_small, silent, 3)
    assert isinstance(found, Trace) and whole(found) == expected


def test_reading_in_parts_can_be_cancelled(large: Path) -> None:
    calls = 0

    def cancel(_step: str, _done: int, _total: int) -> None:
        nonlocal calls
        calls += 1
        if calls > 20:
            raise Cancelled

    with pytest.raises(Cancelled):
        read_all([large], read_small, cancel, 2)
