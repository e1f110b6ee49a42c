"""Broken input: what is lost is what was hit, it is counted, and nothing raises but DataError."""

from __future__ import annotations

import gc
import gzip
import json
import zlib
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from kineto_oracle import expected_rows, tables_of
from trace_layouts import LAYOUTS, Events

from chopper_core.ingest.open import open_run
from chopper_core.ingest.rank import read_rank
from chopper_core.model.address import parse
from chopper_core.sources.kineto.events import EventDecoder
from chopper_core.sources.kineto.reader import read as read_trace
from chopper_core.sources.kineto.text import TraceText
from chopper_core.sources.trace import Trace
from chopper_core.tables import bytes as byte_source
from chopper_core.util.errors import DataError
from chopper_core.util.progress import Cancelled
from chopper_core.views.query import query
from tests.programs.fuzz.seeds import small_trace
from tests.wording import Wording

COUNT = 40
KEYS = {
    "deviceProperties": [{"id": 0, "name": "MI300X"}, {"id": 1, "name": "MI300X"}],
    "distributedInfo": {"rank": 3},
    "baseTimeNanoseconds": 1000,
}


def kernels(count: int = COUNT) -> Events:
    return [
        {"ph": "X", "cat": "kernel", "name": f"k{number}", "pid": 2, "tid": 0,
         "ts": number + 0.125, "dur": 1.5, "args": {"stream": 0, "grid": [1, 2, number]}}
        for number in range(count)
    ]  # fmt: skip


def names_of(trace: Trace) -> list[str]:
    return [trace.names[code] for code in trace.activities.name]


def others(*lost: int) -> list[str]:
    return [f"k{number}" for number in range(COUNT) if number not in lost]


@pytest.fixture
def read(tmp_path: Path) -> Callable[..., Trace]:
    def read_bytes(data: bytes, piece_bytes: int = 1 << 20) -> Trace:
        path = tmp_path / "trace.json"
        path.write_bytes(data)
        return read_trace(path, piece_bytes=piece_bytes)

    return read_bytes


PIECES = (100, 1 << 20)


@pytest.mark.few(8)
@pytest.mark.parametrize("piece_bytes", PIECES)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(
    ("written", "name"),
    [
        (b'"k20\x01\x00\n"', "k20\x01\x00\n"),
        (b'"k20\xff"', "k20\ufffd"),
        (b'"k20 "quoted" and "more""', 'k20 "quoted" and "more"'),
        (b'"k20 odd" quote"', 'k20 odd" quote'),
    ],
)
def test_damaged_names_are_repaired(
    read: Callable[..., Trace], layout: str, written: bytes, name: str, piece_bytes: int
) -> None:
    text = LAYOUTS[layout](kernels(), KEYS).encode().replace(b'"k20"', written)
    trace = read(text, piece_bytes)
    assert names_of(trace) == [name if kept == "k20" else kept for kept in others()]
    assert trace.rank == 3
    assert trace.activities.start_ns.tolist() == [n * 1000 + 1125 for n in range(COUNT)]
    assert trace.losses.repaired_pieces == 1
    assert trace.losses.lost_bytes == trace.losses.unreadable_events == 0
    (note,) = trace.losses.notes
    assert "1 piece" in note and "invalid JSON" in note


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-inf", "-Infinity", "nan", "null", '""'])
def test_a_start_that_is_no_number_costs_its_event(read: Callable[..., Trace], number: str) -> None:
    text = LAYOUTS["compact"](kernels(), KEYS).replace('"ts": 20.125', f'"ts": {number}')
    trace = read(text.encode())
    assert names_of(trace) == others(20)
    assert trace.losses.bad_times == 1
    assert trace.losses.unreadable_events == 0
    assert trace.event_counts == {"kernel": COUNT}
    assert trace.unused_events == {"kernel": 1}


def test_nan_elsewhere_costs_nothing(read: Callable[..., Trace]) -> None:
    text = LAYOUTS["compact"](kernels(), KEYS).replace(
        '"grid": [1, 2, 20]', '"memory bandwidth (GB/s)": inf, "name": "inf, -inf, NaN"'
    )
    trace = read(text.encode())
    assert names_of(trace) == others()
    assert trace.losses.repaired_pieces == 1


@pytest.mark.few(6)
@pytest.mark.parametrize("piece_bytes", PIECES)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_cut_file_keeps_what_came_before(
    read: Callable[..., Trace], layout: str, piece_bytes: int
) -> None:
    text = LAYOUTS[layout](kernels(), KEYS).encode()
    trace = read(text[: text.index(b'"k20"') + 3], piece_bytes)
    assert names_of(trace) == others(*range(20, COUNT))
    assert trace.losses.truncated
    assert trace.losses.unreadable_events == 0
    assert trace.losses.lost_bytes > 0
    (note,) = trace.losses.notes
    assert note.startswith("The file ends in the middle of an event; read up to byte ")


def test_a_file_cut_between_events_or_in_the_keys_after_them(
    read: Callable[..., Trace], wording: Wording
) -> None:
    text = LAYOUTS["keys_after"](kernels(), KEYS).encode()
    trace = read(text[: text.index(b', "deviceProperties"') - 1])
    assert names_of(trace) == others()
    (note,) = trace.losses.notes
    wording(note, "list of events")
    trace = read(text[: text.index(b"1000}") + 2])
    assert names_of(trace) == others()
    assert trace.rank == 3
    assert trace.base_time_ns is None
    assert trace.losses.truncated
    (note,) = trace.losses.notes
    wording(note, "keys after the events")


def test_bytes_after_the_end_are_counted(read: Callable[..., Trace], wording: Wording) -> None:
    trace = read(LAYOUTS["compact"](kernels(), KEYS).encode() + b"\n\x00\x00garbage")
    assert names_of(trace) == others()
    assert trace.losses.lost_bytes == 9
    (note,) = trace.losses.notes
    wording(note, "9 bytes")


@pytest.mark.parametrize("inflate", [byte_source._INFLATE, zlib], ids=["fastest", "zlib"])
def test_a_cut_gzip_stream_keeps_what_came_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, inflate: object, wording: Wording
) -> None:
    monkeypatch.setattr(byte_source, "_INFLATE", inflate)
    data = gzip.compress(LAYOUTS["libkineto"](kernels(4000), KEYS).encode(), mtime=0)
    path = tmp_path / "trace.json.gz"
    path.write_bytes(data[: len(data) // 2])
    trace = read_trace(path)
    count = len(trace.activities)
    assert 1000 < count < 3000
    assert names_of(trace) == [f"k{number}" for number in range(count)]
    assert trace.losses.truncated
    wording(trace.losses.notes[-1], "gzip", "cut off")


def test_a_damaged_gzip_stream_keeps_what_came_before(tmp_path: Path, wording: Wording) -> None:
    data = bytearray(gzip.compress(LAYOUTS["libkineto"](kernels(4000), KEYS).encode(), mtime=0))
    half = len(data) // 2
    data[half : half + 64] = b"\xff" * 64
    path = tmp_path / "trace.json.gz"
    path.write_bytes(data)
    trace = read_trace(path)
    assert len(trace.activities) > 1000
    assert names_of(trace)[:1000] == [f"k{number}" for number in range(1000)]
    assert trace.losses.lost_bytes > 0
    wording.among(trace.losses.notes, "gzip", "damaged")


def test_damage_that_stops_gunzip_keeps_what_came_before(tmp_path: Path, wording: Wording) -> None:
    text = LAYOUTS["libkineto"](kernels(4000), KEYS).encode()
    half = text.index(b'"k2000"')
    gzip_header, invalid_block = gzip.compress(b"", mtime=0)[:10], b"\x07" * 64
    path = tmp_path / "trace.json.gz"
    path.write_bytes(gzip.compress(text[:half]) + gzip_header + invalid_block)
    trace = read_trace(path)
    assert names_of(trace) == [f"k{number}" for number in range(2000)]
    assert trace.losses.truncated
    wording(trace.losses.notes[-1], "gzip", "damaged")


def test_bytes_after_the_gzip_stream_are_said(tmp_path: Path, wording: Wording) -> None:
    path = tmp_path / "trace.json.gz"
    path.write_bytes(gzip.compress(LAYOUTS["compact"](kernels(), KEYS).encode()) + b"garbage")
    trace = read_trace(path)
    assert names_of(trace) == others()
    assert not trace.losses.truncated
    (note,) = trace.losses.notes
    wording(note, "Other bytes", "gzip")


@pytest.mark.parametrize(
    ("data", "what"),
    [
        (b"", "is empty"),
        (b" \n \n", "is empty"),
        (b"name,start,end\nk,1,2\n", "is not JSON"),
        (b'{"schema": "1.0.1", "pid": 1, "nodes": [{"id": 1}]}', "is an execution trace"),
        (b'{"rocprofiler-sdk-tool": [{"metadata": {}}]}', "is rocprofv3 JSON"),
        (b'{"a": [1, 2], "b": {"traceEvents": []}}', "holds no traceEvents"),
        (b'{"traceEvents": null}', "traceEvents is not a list"),
        (b'{"traceEvents": []}', "holds no events"),
        (b"[]", "holds no events"),
        (b"[1, 2, 3]", "holds no events"),
        (b'[{"id": 1}, {"id": 2}]', "holds no events"),
        (b'{"traceEv', "holds no traceEvents"),
        (b"\x28\xb5\x2f\xfd1234", "zstd"),
        (b"\xfd7zXZ\x00", "compressed with xz; decompress it first"),
        (b"PK\x03\x04123", "zip archive"),
        (b"SQLite format 3\x00", "SQLite"),
        (gzip.compress(b"plain text", mtime=0), "is not JSON"),
        (gzip.compress(b"", mtime=0), "is empty"),
        (b"\x1f\x8b", "is empty"),
        (b"\x1f\x8bgarbage", "is empty"),
    ],
)
def test_other_files_are_told_in_one_sentence(
    tmp_path: Path, read: Callable[..., Trace], data: bytes, what: str
) -> None:
    with pytest.raises(DataError, match=what) as raised:
        read(data)
    message = str(raised.value)
    assert message.startswith(str(tmp_path / "trace.json"))
    assert message.endswith(".")


def test_a_missing_file_and_a_directory_are_told(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="No such file"):
        read_trace(tmp_path / "none.json")
    with pytest.raises(DataError, match="directory"):
        read_trace(tmp_path)


def test_a_cancelled_read_leaves_the_collector_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    path.write_text(LAYOUTS["compact"](kernels(), KEYS))

    def cancel(step: str, done: int, total: int) -> None:
        assert not gc.isenabled()
        raise Cancelled

    with pytest.raises(Cancelled):
        read_trace(path, cancel)
    assert gc.isenabled()


def test_a_large_key_keeps_its_plain_members(read: Callable[..., Trace]) -> None:
    groups = [{"ranks": list(range(1000))} for _ in range(200)]
    keys = {"distributedInfo": {"rank": 5, "pg_config": groups}, "ranks": list(range(100_000))}
    trace = read(LAYOUTS["compact"](kernels(), keys).encode(), 4096)
    assert trace.rank == 5
    assert trace.metadata["distributedInfo"] == {"rank": 5}
    assert trace.metadata["ranks"] == f"({len(json.dumps(keys['ranks'])):,} bytes)"


@pytest.mark.parametrize("value", ["-5", "1e30", '"soon"', "[]"])
def test_a_base_time_that_makes_no_sense_is_left_out(
    read: Callable[..., Trace], value: str
) -> None:
    text = LAYOUTS["compact"](kernels(), {}).encode()
    trace = read(b'{"baseTimeNanoseconds": ' + value.encode() + b", " + text[1:])
    assert trace.base_time_ns is None
    assert trace.activities.start_ns[0] == 125
    (note,) = trace.losses.notes
    assert "baseTimeNanoseconds" in note


DAMAGE = st.one_of(
    st.binary(min_size=1, max_size=4),
    st.sampled_from((b'"', b"{", b"}", b"[", b"]", b"\\", b",", b'},{"ph":"', b"\xff", b"\n")),
)


@pytest.mark.sweep
@given(
    layout=st.sampled_from(sorted(LAYOUTS)),
    place=st.floats(0, 1),
    removed=st.integers(0, 40),
    inserted=DAMAGE,
    piece_bytes=st.sampled_from((50, 300, 1 << 20)),
)
def test_one_damage_costs_two_events_at_most_and_never_silently(
    read: Callable[..., Trace],
    layout: str,
    place: float,
    removed: int,
    inserted: bytes,
    piece_bytes: int,
) -> None:
    text = LAYOUTS[layout](kernels(), KEYS).encode()
    first, last = text.index(b'"k1"'), text.rindex(b'"k38"')
    start = first + int(place * (last - first))
    damaged = text[:start] + inserted + text[start + removed :]
    assume(not is_json(damaged))
    trace = read(damaged, piece_bytes)
    expected = tables_of_kernels()
    kept = set(tables_of(trace)["activities"]) & expected
    assert len(kept) >= len(expected) - 2
    assert trace.rank == 3
    losses = trace.losses
    if sum(trace.event_counts.values()) < COUNT:
        assert losses.unreadable_events or losses.repaired_pieces or losses.lost_bytes
        assert losses.notes


def is_json(text: bytes) -> bool:
    try:
        json.loads(text.decode())
    except ValueError:
        return False
    return True


def tables_of_kernels() -> set[tuple[object, ...]]:
    return set(expected_rows(kernels(), KEYS["baseTimeNanoseconds"])["activities"])


def test_a_file_cut_off_before_its_gpu_activities_is_said_to_be(tmp_path: Path) -> None:
    path = tmp_path / "rank0.json"
    calls = [
        {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 1, "tid": 1, "ts": 1, "dur": 2}
    ]
    whole = json.dumps({"traceEvents": calls * 9 + kernels()})
    path.write_text(whole[: whole.index('"k0"')])
    with pytest.raises(
        DataError, match=r"rank0\.json is truncated before any GPU activity: .*9 events"
    ):
        read_rank(path)
    path.write_text(json.dumps({"traceEvents": calls * 9}))
    with pytest.raises(DataError, match="has no GPU activity: 9 events"):
        read_rank(path)


def test_activities_whose_times_no_clock_has_are_not_called_absent(tmp_path: Path) -> None:
    late = [event | {"ts": 1 << 53} for event in kernels()]
    path = tmp_path / "rank0.json"
    path.write_text(json.dumps({"traceEvents": late}))
    says = f"has no GPU activity with a valid time: {len(late)} events without one left out"
    with pytest.raises(DataError, match=says):
        read_rank(path)


_KERNEL = (
    b'{"ph":"X","cat":"kernel","name":"k","ts":1,"dur":2,"pid":0,"tid":7,'
    b'"args":{"device":0,"stream":7}}'
)


@pytest.mark.few(4)
@pytest.mark.parametrize(
    ("opening", "unit"),
    [
        (b'{"name":"', b"a"),
        (b'{"name":"', b"\\"),
        (b'{"name":"', b'\\"'),
        (b'{"ts":', b"1"),
        (b"", b"["),
        (b"", b"]"),
        (b"", b"}"),
        (b"", b"{"),
        (b"", b","),
        (b"", b'"'),
        (b"", b":"),
        (b"", b'{"a":'),
        (b"", b'[{"a":'),
        (b"", b'"a",'),
        (b"", b"\x00"),
    ],
    ids=str,
)
def test_endless_text_is_lost_in_bounded_steps(
    opening: bytes, unit: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The limits are smaller by 64 here; the events before and after are read."""
    monkeypatch.setattr("chopper_core.sources.kineto.text.MAX_EVENT_BYTES", 1 << 15)
    monkeypatch.setattr("chopper_core.sources.kineto.text._MAX_OPEN_BYTES", 1 << 18)
    path = tmp_path / "rank0.json"
    endless = unit * ((3 << 20) // len(unit))
    text = b'{"traceEvents":[' + _KERNEL + b"," + opening + endless
    path.write_bytes(text)
    steps = Counter[str]()
    step = TraceText._step

    def counted(walk: TraceText) -> bool:
        steps["steps"] += 1
        return step(walk)

    monkeypatch.setattr(TraceText, "_step", counted)
    trace = read_trace(path, piece_bytes=1 << 14)
    assert len(trace.activities.start_ns) == 1
    assert trace.losses.lost_bytes > len(endless) / 2 or unit in (b",",)
    assert steps["steps"] < 2000
    path.write_bytes(text + b'"}' + b"," + _KERNEL + b"," + _KERNEL + b"]}")
    trace = read_trace(path, piece_bytes=1 << 14)
    assert len(trace.activities.start_ns) >= 2


@pytest.mark.few(2)
@pytest.mark.parametrize(
    "inside",
    [
        b'"name":"' * (1 << 17),
        b'"name": "a",' * (1 << 16) + b'"',
        b"nan(" * (1 << 18),
        b'\\"' * (1 << 19),
    ],
    ids=["names without an end", "names", "nan(", "escaped quotes"],
)
def test_an_event_beyond_repair_costs_a_time_that_grows_with_its_length(inside: bytes) -> None:
    """Patterns that tried each of its starts up to its end took minutes for these."""
    decoder = EventDecoder()
    text = b'{"ph":"X","ts":' + inside + b"}"
    while not decoder.has_given_up:
        assert decoder.decode_one(text) is None
    assert decoder.decode_one(_KERNEL) is not None


def test_repairs_go_on_as_long_as_they_repair() -> None:
    decoder = EventDecoder()
    quoted = b'{"ph":"X","name":"a "quoted" name","ts":1,"args":{"x":"' + b"y" * (1 << 20) + b'"}}'
    assert all(decoder.decode_one(quoted) is not None for _ in range(4))
    assert not decoder.has_given_up


def test_repairs_end_where_nothing_is_repaired(tmp_path: Path) -> None:
    broken = b'{"ph":"X","ts":' + b"9" * 5000 + b'"},'
    path = tmp_path / "rank0.json"
    path.write_bytes(b'{"traceEvents":[' + _KERNEL + b"," + broken * 500 + _KERNEL + b"]}")
    trace = read_trace(path)
    assert len(trace.activities.start_ns) == 2 and trace.losses.unreadable_events == 500


@pytest.mark.parametrize("far_us", [-4e15, 4e15])
@pytest.mark.parametrize("category", ["kernel", "cuda_runtime"])
def test_an_event_weeks_from_the_others_is_left_out(
    category: str, far_us: float, tmp_path: Path, wording: Wording
) -> None:
    """GPU after GPU, such times fit on no axis of 64 bits."""
    for rank in range(8):
        small_trace(rank).write(tmp_path / f"rank{rank}.json")
    whole = open_run(str(tmp_path), jobs=1)
    document = json.loads((tmp_path / "rank3.json").read_bytes())
    event = next(each for each in document["traceEvents"] if each.get("cat") == category)
    event["ts"] = far_us
    (tmp_path / "rank3.json").write_text(json.dumps(document))
    run = open_run(str(tmp_path), jobs=1)
    assert len(run.table) == len(whole.table) - (category == "kernel")
    assert run.end_ns - run.origin_ns == whole.end_ns - whole.origin_ns
    (note,) = run.sources[3].losses
    wording(note, "1 event")
    assert query(run, parse("R?view=timeline"))
