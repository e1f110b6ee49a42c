"""The reader against an independent oracle: layouts, real files, random events."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kineto_oracle import expected_tables, tables_of, text_of
from trace_layouts import BARE_LAYOUTS, LAYOUTS, Events

from chopper_core.align.rank import align_rank
from chopper_core.sources.kineto.reader import read as read_trace
from chopper_core.sources.ranks import find_traces
from chopper_core.sources.trace import ActivityCategory
from chopper_core.tables import bytes as byte_source
from tests.realdata.conftest import FOLDER as REAL_DATA
from tests.wording import Wording

TRICKY_NAME = 'lambda {"a"}, {"ph": "X", [}],\n  {\n"traceEvents": [ \\" \\ \t \u00e9 \x01'

EVENTS: Events = [
    {"ph": "X", "cat": "user_annotation", "name": "ProfilerStep#9", "pid": 7, "tid": 7,
     "ts": 1106964728033.929, "dur": 47225.382, "args": {"External id": 1}},
    {"ph": "X", "cat": "cpu_op", "name": "aten::addmm", "pid": 7, "tid": 7,
     "ts": 1106964728064.875, "dur": 70.565,
     "args": {"External id": 2, "Sequence number": 2115, "Fwd thread id": 0,
              "Input Dims": [[32, 64], [64, 8], []], "Input type": ["float", "long int", ""],
              "Concrete Inputs": ["", "", "[1, 1]"]}},
    {"ph": "X", "cat": "cpu_op", "name": "aten::embedding", "pid": 7, "tid": 7, "ts": 1, "dur": 1,
     "args": {"Input Dims": [[9, 4]], "Input type": ["float"], "Concrete Inputs": [""]}},
    {"name": "aten::mul", "args": {"External id": 3, "Input Dims": [[1]]}, "cat": "cpu_op",
     "ts": 5, "dur": 0, "tid": "main", "pid": "host", "ph": "X"},
    {"ph": "X", "cat": "cpu_op", "name": TRICKY_NAME, "pid": 7, "tid": 7, "ts": 1.001, "dur": 2,
     "args": {"lists": [{"a": 1}, {"b": {"ph": "X"}}, {"c": "},{"}], "External id": 8}},
    {"ph": "s", "id": 1, "pid": 7, "tid": 7, "ts": 1.5, "cat": "fwdbwd", "name": "fwdbwd"},
    {"ph": "f", "id": 1, "pid": 7, "tid": 8, "ts": 9.5, "cat": "fwdbwd", "name": "fwdbwd",
     "bp": "e"},
    {"ph": "s", "id": 2, "pid": 7, "tid": 7, "ts": 1.5, "cat": "forward_backward", "name": "x"},
    {"ph": "X", "cat": "cuda_runtime", "name": "hipLaunchKernel", "pid": 7, "tid": 7, "ts": 2.25,
     "dur": 3, "args": {"External id": 2, "correlation": 11, "bytes": "0x10"}},
    {"ph": "s", "id": 11, "pid": 7, "tid": 7, "ts": 2.25, "cat": "ac2g", "name": "ac2g"},
    {"ph": "f", "id": 11, "pid": 2, "tid": 0, "ts": 3, "cat": "ac2g", "name": "ac2g", "bp": "e"},
    {"ph": "f", "id": 12, "pid": 2, "tid": 0, "ts": 3, "cat": "async_gpu", "name": "ac2g"},
    {"ph": "X", "cat": "kernel", "name": TRICKY_NAME * 40, "pid": 2, "tid": 0, "ts": 7.125,
     "dur": 4.001, "args": {"External id": 2, "device": 2, "stream": "0x0", "correlation": "11"}},
    {"ph": "X", "cat": "Kernel", "name": "ncclDevKernel_Generic", "pid": 2, "tid": "3", "ts": 12,
     "args": {"external id": 6, "Collective name": "allreduce", "In msg nelems": 100,
              "Out msg nelems": 100, "Group size": 4, "dtype": "BFloat16",
              "Process Group Name": "0", "Process Group Description": "default_pg",
              "Process Group Ranks": "[0, 1, 2, 3]"}},
    {"ph": "X", "cat": "gpu_memcpy", "name": "Memcpy DtoH", "pid": 2, "tid": 0, "ts": 20,
     "dur": 1, "args": {"stream": 5, "correlation": 12, "bytes": 4096}},
    {"ph": "X", "cat": "gpu_memset", "name": "Memset (Device)", "pid": 2, "tid": 0, "ts": 21,
     "dur": 1},
    {"ph": "X", "cat": "python_function", "name": "nn.Module: Linear_3", "pid": 7, "tid": 7,
     "ts": 1, "dur": 50, "args": {"Python id": 1, "Python parent id": None}},
    {"ph": "X", "cat": "python_function", "name": "torch/utils/checkpoint.py(1500): recompute_fn",
     "pid": 7, "tid": 7, "ts": 60, "dur": 5, "args": {}},
    {"ph": "X", "cat": "python_function", "name": "torch/utils/checkpoint.py(1111): unpack_hook",
     "pid": 7, "tid": 7, "ts": 60, "dur": 5, "args": {}},
    {"ph": "X", "cat": "kernel", "name": "bad", "pid": 2, "tid": 0, "ts": 7, "dur": -1},
    {"ph": "X", "cat": "cpu_op", "name": "bad", "pid": 7, "tid": 7, "dur": 1},
    {"ph": "B", "cat": "cpu_op", "name": "begin", "pid": 7, "tid": 7, "ts": 1},
    {"ph": "i", "cat": "cpu_instant_event", "s": "t", "name": "[memory]", "pid": 7, "tid": 7,
     "ts": 1106964728065.875, "args": {"Total Reserved": 4096, "Total Allocated": 1024,
     "Bytes": 512, "Device Id": 0, "Device Type": 6, "Addr": 140255988547584}},
    {"ph": "i", "s": "t", "name": "[memory]", "pid": 7, "tid": 8, "ts": 3,
     "args": {"Bytes": -512, "Device Id": 0, "Device Type": 1, "Addr": 140255988547584}},
    {"ph": "i", "cat": "cpu_instant_event", "s": "t", "name": "[memory]", "pid": 7, "tid": 7,
     "ts": 4, "args": {"Bytes": 8, "Device Id": -1, "Device Type": 0, "Addr": 7}},
    {"name": "process_name", "ph": "M", "ts": 0, "pid": 7, "tid": 0, "args": {"name": "python3"}},
    {"ph": "i", "s": "g", "name": "Record Window End", "pid": "", "tid": "", "ts": 1e3},
]  # fmt: skip

KEYS = {
    "schemaVersion": 1,
    "note": 'no "traceEvents": [ here, nor {"traceEvents": [{}]}',
    "deviceProperties": [{"id": 0, "name": "MI300X"}, {"id": 1, "name": "MI300X"}],
    "nested": {"traceEvents": [{"ph": "X"}]},
    "distributedInfo": {"backend": "nccl", "rank": 3, "world_size": 8},
    "baseTimeNanoseconds": 1767189312000000000,
}

PIECES = (17, 400, 1 << 20)


@pytest.fixture
def write(tmp_path: Path) -> Callable[[str | bytes], Path]:
    def write_trace(text: str | bytes) -> Path:
        path = tmp_path / "trace.json"
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return path

    return write_trace


@pytest.mark.few(1)
@pytest.mark.parametrize("piece_bytes", PIECES)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_gives_the_same_tables(
    write: Callable[[str], Path], layout: str, piece_bytes: int
) -> None:
    text = LAYOUTS[layout](EVENTS, KEYS)
    trace = read_trace(write(text), piece_bytes=piece_bytes)
    assert tables_of(trace) == expected_tables(text.encode())
    assert trace.rank == 3
    assert trace.base_time_ns == KEYS["baseTimeNanoseconds"]
    assert {key: trace.metadata[key] for key in KEYS} == KEYS
    assert trace.losses.bad_times == 3
    assert not (trace.losses.truncated or trace.losses.repaired_pieces or trace.losses.lost_bytes)


@pytest.mark.few(2)
@pytest.mark.parametrize("piece_bytes", PIECES)
@pytest.mark.parametrize("layout", BARE_LAYOUTS)
def test_a_bare_list_is_a_trace_closed_or_not(
    write: Callable[[str], Path], layout: str, piece_bytes: int
) -> None:
    trace = read_trace(write(BARE_LAYOUTS[layout](EVENTS)), piece_bytes=piece_bytes)
    assert tables_of(trace) == expected_tables(BARE_LAYOUTS["bare"](EVENTS).encode())
    assert trace.rank is None
    assert not (trace.losses.truncated or trace.losses.lost_bytes)


@pytest.mark.sweep
def test_a_piece_may_be_one_byte(write: Callable[[str], Path]) -> None:
    text = LAYOUTS["libkineto"](EVENTS[:6], {"baseTimeNanoseconds": 5})
    trace = read_trace(write(text), piece_bytes=1)
    assert tables_of(trace) == expected_tables(text.encode())


@pytest.mark.few(1)
@pytest.mark.parametrize("inflate", [byte_source._INFLATE, zlib], ids=["fastest", "zlib"])
@pytest.mark.parametrize("piece_bytes", PIECES)
def test_gzip_is_told_by_its_first_bytes(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    piece_bytes: int,
    inflate: object,
    wording: Wording,
) -> None:
    monkeypatch.setattr(byte_source, "_INFLATE", inflate)
    text = LAYOUTS["compact"](EVENTS * 9, KEYS).encode()
    path = tmp_path / "trace.json"
    path.write_bytes(gzip.compress(text[:999]) + gzip.compress(text[999:]) + bytes(10))
    trace = read_trace(path, piece_bytes=piece_bytes)
    assert tables_of(trace) == expected_tables(text)
    (note,) = trace.losses.notes
    wording(note, "27 events")


@pytest.mark.parametrize(
    ("ts", "start_ns"),
    [
        ("1694128201435418", 1694128201435418000),
        ("1694128201435418.123", 1694128201435418123),
        ("1694128201435418.999", 1694128201435418999),
        ('"1694128201435418.007"', 1694128201435418007),
        ("8796093022207.999", 8796093022207999),
        ("8796093022208.001", 8796093022208001),
        ("4398046511104.499", 4398046511104499),
        ("-12.345", -12345),
        ("1.5e3", 1500000),
        ("0", 0),
    ],
)
def test_starts_are_exact_to_the_nanosecond(
    write: Callable[[str], Path], ts: str, start_ns: int
) -> None:
    events = ", ".join(
        f'{{"ph": "X", "cat": "kernel", "name": "k", "ts": {time}, "dur": 0.001}}'
        for time in ("3.25", ts, "1")
    )
    trace = read_trace(write(f'{{"traceEvents": [{events}]}}'))
    assert trace.activities.start_ns.tolist() == [3250, start_ns, 1000]
    assert trace.activities.duration_ns.tolist() == [1, 1, 1]


def test_fields_of_odd_types_cost_nothing_but_themselves(write: Callable[[str], Path]) -> None:
    text = """{"traceEvents": [
      {"ph": "X", "cat": "kernel", "name": 5, "pid": 2.0, "tid": null, "ts": "4", "dur": 1,
       "args": {"device": "3", "stream": "main", "correlation": 7.0, "External id": [],
                "bytes": 18446744073709551615}},
      {"ph": "X", "cat": "kernel", "name": "b", "pid": 99999999999, "tid": 1, "ts": 1, "dur": 1,
       "args": null},
      {"ph": "X", "cat": "cpu_op", "name": "c", "pid": null, "tid": {}, "ts": 1, "dur": 1,
       "args": []}
    ]}"""
    trace = read_trace(write(text))
    work = trace.activities
    assert [trace.names[code] for code in work.name] == ["5", "b"]
    assert work.device.tolist() == [3, -1]
    assert trace.names[-2 - work.stream[0]] == "main"
    assert work.stream[1] == 1
    assert work.correlation.tolist() == [7, -1]
    assert work.external_id.tolist() == work.bytes.tolist() == [-1, -1]
    assert trace.threads == [(-1, -1, -1)]
    assert trace.losses.repaired_pieces == trace.losses.lost_bytes == 0


def test_progress_counts_bytes_of_the_file(write: Callable[[str], Path]) -> None:
    path = write(LAYOUTS["compact"](EVENTS * 20, KEYS))
    calls: list[tuple[str, int, int]] = []
    read_trace(path, lambda *call: calls.append(call), piece_bytes=4096)
    size = path.stat().st_size
    assert len(calls) >= size // 4096
    assert {(step, total) for step, _, total in calls} == {("read trace.json", size)}
    done = [done for _, done, _ in calls]
    assert done == sorted(done)
    assert done[-1] == size


def real_traces() -> list[Path]:
    if not REAL_DATA.is_dir():
        return []
    return [trace.path for trace in find_traces([REAL_DATA]).traces]


@pytest.mark.sweep
@pytest.mark.skipif(not REAL_DATA.is_dir(), reason=f"no real traces at {REAL_DATA}")
@pytest.mark.parametrize("path", real_traces(), ids=lambda path: path.name)
def test_real_traces_are_read_as_the_oracle_reads_them(path: Path) -> None:
    trace = read_trace(path)
    assert tables_of(trace) == expected_tables(text_of(path))
    assert trace.losses.notes == []


@pytest.mark.skipif(not REAL_DATA.is_dir(), reason=f"no real traces at {REAL_DATA}")
def test_known_facts_of_real_traces() -> None:
    kernels = {}
    for rank in range(4):
        trace = read_trace(REAL_DATA / "mi300x_ddp4" / f"rank{rank}.json.gz")
        assert trace.rank == rank
        is_kernel = trace.activities.category == ActivityCategory.KERNEL
        kernels[rank] = np.count_nonzero(is_kernel)
    assert kernels == {0: 3114, 1: 3089, 2: 3089, 3: 3089}
    trace = read_trace(REAL_DATA / "mi300x_resnet_act_ckpt_rank0of8.json.gz")
    is_kernel = trace.activities.category == ActivityCategory.KERNEL
    has_launch = np.isin(trace.activities.correlation, trace.launches.correlation)
    assert np.count_nonzero(is_kernel) == 2995
    assert np.count_nonzero(is_kernel & ~has_launch) == 757


CATEGORIES = (
    "kernel", "Kernel", "gpu_memcpy", "gpu_memset", "cuda_runtime", "hip_driver",
    "xpu_runtime", "cpu_op", "Operator", "user_annotation", "python_function", "fwdbwd", "ac2g",
    "Trace", "",
)  # fmt: skip
NAMES = st.one_of(
    st.sampled_from(("aten::mm", "nn.Module: A_0", "k", "torch/utils/checkpoint.py(9): backward")),
    st.text(alphabet='ab"\\{}[],: \n\t\x00é"', max_size=12),
)
TIMES = st.one_of(
    st.integers(0, 10**7),
    st.integers(0, 4 * 10**12).map(lambda ns: ns / 1000),
    st.integers(10**12, 2 * 10**15),
    st.just("12.345"),
    st.none(),
)
NUMBERS = st.integers(-1, 2**40)
ARGS = st.fixed_dictionaries(
    {},
    optional={
        "External id": NUMBERS,
        "correlation": NUMBERS | NUMBERS.map(str),
        "device": st.integers(0, 7),
        "stream": st.integers(0, 7) | st.just("0x7"),
        "bytes": NUMBERS,
        "Sequence number": NUMBERS,
        "Input Dims": st.lists(st.lists(st.integers(0, 9), max_size=2), max_size=2),
        "Input type": st.lists(st.sampled_from(("float", "long int", "")), max_size=2),
        "Concrete Inputs": st.lists(st.sampled_from(("[1, 1]", "True", "")), max_size=2),
        "Collective name": st.sampled_from(("allreduce", "allgather")),
        "lists": st.lists(st.fixed_dictionaries({"ph": NAMES}), max_size=3),
    },
)
EVENT = st.fixed_dictionaries(
    {"ph": st.sampled_from(("X", "X", "X", "s", "f", "M")), "id": st.integers(0, 5)},
    optional={
        "cat": st.sampled_from(CATEGORIES),
        "name": NAMES,
        "pid": st.integers(0, 9),
        "tid": st.integers(0, 9),
        "ts": TIMES,
        "dur": st.integers(-1, 10**6) | st.integers(0, 10**9).map(lambda ns: ns / 1000),
        "args": ARGS,
    },
).flatmap(lambda event: st.permutations(list(event.items())).map(dict))


@pytest.mark.sweep
@given(
    events=st.lists(EVENT, max_size=30).map(
        lambda events: [{"ph": "M", "cat": "Trace"}, *events],
    ),
    layout=st.sampled_from(sorted(LAYOUTS)),
    keys=st.sampled_from(({}, {"baseTimeNanoseconds": 10**18}, KEYS)),
    piece_bytes=st.integers(5, 500),
)
def test_random_events_in_any_layout_and_any_pieces(
    write: Callable[[str], Path],
    events: Events,
    layout: str,
    keys: dict[str, Any],
    piece_bytes: int,
) -> None:
    text = LAYOUTS[layout](events, keys)
    trace = read_trace(write(text), piece_bytes=piece_bytes)
    assert tables_of(trace) == expected_tables(text.encode())
    assert not (trace.losses.truncated or trace.losses.repaired_pieces or trace.losses.lost_bytes)


@pytest.mark.parametrize("largest", [2**31 - 1, 2**31, 2**62])
def test_ids_of_any_size_keep_their_number(largest: int, tmp_path: Path) -> None:
    """They are held in half as many bytes where all of a column fit."""
    events: Events = [
        {"ph": "X", "cat": "cpu_op", "name": "aten::mul", "pid": 7, "tid": 7, "ts": 1, "dur": 9,
         "args": {"External id": largest, "Sequence number": largest, "Fwd thread id": 0}},
        {"ph": "X", "cat": "cuda_runtime", "name": "hipLaunchKernel", "pid": 7, "tid": 7, "ts": 2,
         "dur": 3, "args": {"correlation": largest}},
        {"ph": "X", "cat": "kernel", "name": "mul", "pid": 2, "tid": 0, "ts": 7, "dur": 4,
         "args": {"device": 2, "stream": 0, "correlation": largest, "External id": largest}},
    ]  # fmt: skip
    path = tmp_path / "rank0.json"
    path.write_bytes(json.dumps({"traceEvents": events}).encode())
    trace = read_trace(path)
    for ids in (
        trace.ranges.external_id,
        trace.ranges.sequence,
        trace.launches.correlation,
        trace.activities.correlation,
        trace.activities.external_id,
    ):
        assert ids.tolist() == [largest] and ids.itemsize == (4 if largest < 2**31 else 8)
    assert align_rank(trace).table.launch_ns.tolist() == [2000]
