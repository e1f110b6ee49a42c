"""The export to Perfetto, read back as JSON, as a trace, and by another analyser."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
from collections import defaultdict
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from chopper_core.graph.collectives import collectives_of
from chopper_core.graph.dependencies import time_order
from chopper_core.ingest.open import open_run
from chopper_core.model.run import Run
from chopper_core.model.table import LABELLED, Kind
from chopper_core.render.exports import ExportOptions, export, perfetto
from tests.demo import demo_run
from tests.support import Row, run_of, sample_run
from tests.tui.explorer import measured_run

ACTIVITIES = {"kernel", "gpu_memcpy", "gpu_memset"}


def written(run: Run, folder: Path, name: str = "trace.json", **options: Any) -> dict[str, Any]:
    path = folder / name
    path.unlink(missing_ok=True)
    assert export(run, "perfetto", path, ExportOptions(**options)) == []
    data = path.read_bytes()
    found: dict[str, Any] = json.loads(gzip.decompress(data) if name.endswith(".gz") else data)
    return found


def slices(document: dict[str, Any]) -> list[dict[str, Any]]:
    return [each for each in document["traceEvents"] if each.get("cat") in ACTIVITIES]


def ns(us: float) -> int:
    return round(us * 1e3)


def is_equal(run: Run, document: dict[str, Any], rows: np.ndarray) -> None:
    """Slices, durations and order are those of the table, GPU by GPU."""
    table = run.table
    rows = time_order(table, rows)
    origin = int(table.start_ns[rows].min())
    assert document["baseTimeNanoseconds"] == origin
    found = slices(document)
    assert [ns(each["ts"]) + origin for each in found] == table.start_ns[rows].tolist()
    assert [ns(each["dur"]) for each in found] == table.duration_ns[rows].tolist()
    assert sum(ns(each["dur"]) for each in found) == table.duration_ns[rows].sum()
    assert [each["name"] for each in found] == [table.names[c] for c in table.kernel[rows].tolist()]
    assert [each["pid"] for each in found] == table.gpu[rows].tolist()
    assert [each["args"]["stream"] for each in found] == table.stream[rows].tolist()
    kinds = [Kind(kind).name.lower() for kind in table.kind[rows].tolist()]
    assert [each["args"]["kind"] for each in found] == kinds
    operations = [
        table.operations[code] if code >= 0 else None for code in table.operation[rows].tolist()
    ]
    assert [each["args"].get("operation") for each in found] == operations


def has_whole_tracks(document: dict[str, Any]) -> None:
    """On no track does a slice begin before the one before it has ended."""
    tracks = defaultdict(list)
    for each in document["traceEvents"]:
        if each["ph"] == "X":
            tracks[each["pid"], each["tid"]].append(
                (ns(each["ts"]), ns(each["ts"]) + ns(each["dur"]))
            )
    for times in tracks.values():
        times.sort()
        assert all(end <= start for (_, end), (start, _) in pairwise(times))


activities = st.builds(
    Row,
    start=st.integers(0, 10**12),
    duration=st.integers(0, 10**12),
    kind=st.sampled_from([Kind.COMPUTE, Kind.COPY]),
    stream=st.sampled_from([0, 7, -3, 1 << 40]),
    gpu=st.integers(0, 2),
    iteration=st.integers(-1, 2),
    layer=st.integers(-1, 1),
    operation=st.sampled_from(["a", "<b>", "\x1b[31m"]),
)


@given(made=st.lists(activities, min_size=1, max_size=20))
def test_every_activity_is_a_slice_to_the_nanosecond(made: list[Row], tmp_path: Path) -> None:
    run = run_of(made)
    document = written(run, tmp_path)
    is_equal(run, document, np.arange(len(run.table)))
    has_whole_tracks(document)


@pytest.mark.sweep
@pytest.mark.slow
def test_the_demo_reads_back_equal(tmp_path: Path) -> None:
    run = demo_run()
    document = written(run, tmp_path, "demo.json.gz", iteration=12)
    is_equal(run, document, np.flatnonzero(run.table.iteration == 12))
    has_whole_tracks(document)


def test_the_file_opens_as_a_run_with_its_mark(tmp_path: Path) -> None:
    run = sample_run()
    document = written(run, tmp_path, "demo.json.gz")
    assert document["chopper"] == {
        "schema": perfetto.SCHEMA,
        "run": "sample.json",
        "marks": ["generated"],
    }
    again = open_run(str(tmp_path / "demo.json.gz"), jobs=1)
    assert again.generated == run.generated
    a, b = (time_order(each.table, np.arange(len(each.table))) for each in (run, again))
    for name in ("gpu", "stream", "start_ns", "duration_ns", "kind", "category"):
        assert np.array_equal(run.table.column(name)[a], again.table.column(name)[b]), name


def test_an_iteration_is_written_alone(tmp_path: Path) -> None:
    run = sample_run()
    document = written(run, tmp_path, iteration=11)
    is_equal(run, document, np.flatnonzero(run.table.iteration == 11))


def test_labels_are_slices_over_the_activities_that_compute(tmp_path: Path) -> None:
    run = sample_run(gpus=2)
    document = written(run, tmp_path)
    names = {
        (each["pid"], each["tid"]): each["args"]["name"]
        for each in document["traceEvents"]
        if each["name"] == "thread_name"
    }
    spans = defaultdict(list)
    for each in document["traceEvents"]:
        if each.get("cat") == "gpu_user_annotation":
            begin = ns(each["ts"])
            spans[each["pid"], names[each["pid"], each["tid"]]].append(
                (begin, begin + ns(each["dur"]), each["name"])
            )
    for each in slices(document):
        if each["args"]["kind"] != "compute":
            continue
        for level in LABELLED:
            at = ns(each["ts"])
            around = [name for begin, end, name in spans[each["pid"], level] if begin <= at < end]
            label = each["args"].get(level)
            plain = f"{level} {label}" if level in ("iteration", "layer") else label
            assert around == ([] if label is None else [plain])


def test_collectives_are_flows_in_the_order_of_arrival(tmp_path: Path) -> None:
    run = sample_run()
    document = written(run, tmp_path)
    found = collectives_of(run)
    assert found is not None
    flows = defaultdict(list)
    for each in document["traceEvents"]:
        if each["ph"] in "stf":
            flows[each["id"]].append(each)
    assert len(flows) == (found.members.sizes() > 1).sum()
    inside = {(each["pid"], each["tid"], each["ts"]) for each in slices(document)}
    for number, events in flows.items():
        events.sort(key=lambda each: (each["ts"], each["pid"]))
        assert [each["ph"] for each in events] == ["s", *"t" * (len(events) - 2), "f"]
        assert len(events) == found.members.sizes()[number]
        assert all((each["pid"], each["tid"], each["ts"]) in inside for each in events)


def test_signals_and_counters_are_counter_tracks(tmp_path: Path) -> None:
    run = measured_run()
    document = written(run, tmp_path)
    origin = document["baseTimeNanoseconds"]
    tracks = defaultdict(list)
    for each in document["traceEvents"]:
        if each["ph"] == "C":
            tracks[each["pid"], each["name"]].append((ns(each["ts"]), each["args"]["value"]))
    signal = run.measured["gfx_mhz"]
    for gpu, curve in signal.curves.items():
        own = tracks[gpu, f"{signal.title} MHz"]
        times = np.array([at for at, _ in own])
        assert (np.diff(times) > 0).all()
        # Half a step after each change, the curve has the value of the track.
        middles = (times[:-1] + times[1:]) // 2 + origin
        means = [curve.means(np.array([at, at + 1]))[0] for at in middles.tolist()]
        assert [value for _, value in own[:-1]] == pytest.approx(means, abs=1e-3)


def test_counts_of_kernels_are_arguments_and_rates(tmp_path: Path) -> None:
    run = run_of([Row(0, 2_000), Row(2_000, 1_000), Row(5_000, 1_000)])
    counts = np.array([4_000.0, np.nan, 500.0])
    run = replace(run, table=run.table.with_measured({"SQ_WAVES": counts}))
    document = written(run, tmp_path)
    assert [each["args"].get("SQ_WAVES") for each in slices(document)] == [4000, None, 500]
    rates = [
        (each["ts"], each["args"]["value"])
        for each in document["traceEvents"]
        if each["ph"] == "C" and each["name"] == "SQ_WAVES per µs"
    ]
    assert rates == [(0.0, 2000.0), (2.0, 0.0), (5.0, 500.0), (6.0, 0.0)]


def test_events_are_written_piece_by_piece(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = sample_run()
    whole = written(run, tmp_path)
    monkeypatch.setattr(perfetto, "_CHUNK", 100)
    assert written(run, tmp_path) == whole
    _, *pieces, _ = (tmp_path / "trace.json").read_text().splitlines()
    sizes = [len(json.loads(f"[{piece.removesuffix(',')}]")) for piece in pieces]
    assert max(sizes) == 100 and sum(sizes) == len(whole["traceEvents"])


def test_the_same_run_is_the_same_file(tmp_path: Path) -> None:
    run = sample_run(gpus=2)
    for name in ("a.json.gz", "b.json.gz"):
        export(run, "perfetto", tmp_path / name)
    assert (tmp_path / "a.json.gz").read_bytes() == (tmp_path / "b.json.gz").read_bytes()


HTA = """
import sys
from hta.common.trace import Trace
trace = Trace(trace_files={0: sys.argv[1]}, trace_dir="")
trace.parse_traces(use_multiprocessing=False)
events = trace.get_trace(0)
print("kernels", int((events.stream >= 0).sum()))
"""


@pytest.mark.slow
def test_hta_reads_the_file(tmp_path: Path) -> None:
    pytest.importorskip("hta", reason="HolisticTraceAnalysis is not installed")
    run = sample_run()
    export(run, "perfetto", tmp_path / "trace.json.gz")
    done = subprocess.run(
        [sys.executable, "-c", HTA, str(tmp_path / "trace.json.gz")],
        capture_output=True,
        text=True,
        check=True,
        timeout=300,
    )
    assert f"kernels {len(run.table)}" in done.stdout
