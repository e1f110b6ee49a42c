"""Chakra traces as runs: what is exported reads back, what has no times is scheduled and marked."""

from __future__ import annotations

import csv
import heapq
import io
import json
import tarfile
from collections import deque
from pathlib import Path

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from chopper_core.align.collective_sets import labelled_by_partners
from chopper_core.api import OpenRun
from chopper_core.extensions.chakra.lint import lint
from chopper_core.extensions.chakra.schema import (
    CommType,
    Metadata,
    NodeType,
    bytes_field,
    delimited,
    encode_metadata,
    encode_node,
)
from chopper_core.ingest.open import open_run
from chopper_core.model.charts import Composition
from chopper_core.model.inputs import RECONSTRUCTED, TIMES_NOTES
from chopper_core.model.run import Run
from chopper_core.model.side_table import HostSteps
from chopper_core.model.table import ADDITIVE, NO_LABEL, NO_TIME, STATES, Category, Kind
from chopper_core.model.view import View
from chopper_core.render import as_csv, as_json, as_text, info
from chopper_core.render.exports import ExportOptions, export
from chopper_core.store.reader import read_store
from chopper_core.store.writer import write_store
from chopper_core.util.errors import DataError
from chopper_core.views import VIEWS
from chopper_core.views.query import frame_of
from chopper_tui.cli import main
from tests.align.traces import TinyTrace
from tests.demo import demo_run
from tests.ingest.chakra_files import node, sorted_rows, written
from tests.model.test_step_accounting import traces
from tests.realdata.conftest import FOLDER
from tests.support import Row, opened_events, run_of
from tests.wording import Wording


def same(one: Run, other: Run, *, but: tuple[str, ...] = ()) -> None:
    left, right = sorted_rows(one), sorted_rows(other)
    for name in left.keys() - set(but):
        assert left[name] == right[name], name


@pytest.mark.sweep
def test_the_demo_reads_back_as_it_was(tmp_path: Path, wording: Wording) -> None:
    run = demo_run()
    notes = export(run, "chakra", tmp_path / "out")
    again = open_run(str(tmp_path / "out"), jobs=1)
    same(run, again)
    assert not again.failed
    assert again.cut_iterations == run.cut_iterations
    assert again.generated == run.generated
    assert [gpu.hardware for gpu in again.gpus] == [gpu.hardware for gpu in run.gpus]
    assert [clock.correction_ns for clock in again.hosts] == [0]
    unknown = sum(
        run.table.operations[code] == "collective" for code in run.table.operation.tolist()
    )
    wording(notes[0], f"{unknown} communication kernels", "COMP")
    model_flops = [each.table.measured["model_flops"] for each in (run, again)]
    assert np.nansum(model_flops[0]) == np.nansum(model_flops[1]) > 0


@pytest.mark.sweep
def test_an_iteration_of_the_demo_reads_back_as_it_was(tmp_path: Path) -> None:
    run = demo_run()
    export(run, "chakra", tmp_path / "out", ExportOptions(iteration=11))
    again = open_run(str(tmp_path / "out"), jobs=1)
    whole = replace(run, table=run.table.take(np.flatnonzero(run.table.iteration == 11)))
    # Launch overheads are those of the rows that there are.
    same(whole, again, but=tuple(name for name in ADDITIVE if name.endswith("overhead_ns")))


def real(name: str) -> Path:
    if not (FOLDER / name).exists():
        pytest.skip(f"no {FOLDER / name}")
    return FOLDER / name


@pytest.mark.sweep
@pytest.mark.parametrize("name", ["v100_dlrm_8rank", "mi300x_ddp4"])
def test_real_runs_read_back_as_they_were(name: str, tmp_path: Path) -> None:
    run = open_run(str(real(name)), jobs=1)
    export(run, "chakra", tmp_path / "out")
    again = open_run(str(tmp_path / "out"), jobs=1)
    same(run, again)
    assert (again.groups, again.world) == (run.groups, run.world)


KERNELS = ("gemm", "ncclDevKernel_Generic_1(args)", "Memcpy DtoD", "[odd], \x1b name", "none")
OPERATIONS = ("all_gather", "all_reduce (recompute)", "dispatch", "collective", "send_recv")
STEP_NS = 3_000


@st.composite
def runs(draw: st.DrawFn) -> Run:
    """Any activities on a few GPUs, and the same collectives on each, at times of its own."""
    size = st.one_of(st.just(-1), st.integers(0, 2**40))
    collectives = draw(st.lists(st.tuples(st.sampled_from(OPERATIONS), size), max_size=4))
    rows = []
    for gpu in range(draw(st.integers(1, 3))):
        for place in range(len(collectives) + draw(st.integers(1, 10))):
            own = place < len(collectives)
            start = place * STEP_NS * own + draw(st.integers(0, STEP_NS - 1 if own else 20_000))
            label = st.integers(NO_LABEL, 3)
            rows.append(
                Row(
                    start,
                    draw(st.integers(0, 5_000)),
                    Kind.COMM if own else draw(st.sampled_from((Kind.COMPUTE, Kind.COPY))),
                    draw(st.integers(0, 3)),
                    gpu,
                    draw(label),
                    draw(st.integers(NO_LABEL, 6)),
                    draw(label),
                    collectives[place][0] if own else draw(st.sampled_from(("mlp_dp", "none"))),
                    draw(st.sampled_from(KERNELS)),
                    draw(st.one_of(st.none(), st.integers(-100, start))),
                )
            )
    run = run_of(rows)
    table = run.table
    comm = table.kind == Kind.COMM
    sizes = np.array([size for _, size in collectives] or [-1])
    copied = np.where(table.kind == Kind.COPY, draw(size), -1)
    label = len(table.names) if draw(st.booleans()) else -1
    table = replace(
        table,
        names=(*table.names, "tp (of the test)"),
        group=np.where(comm, label, -1).astype(np.int32),
        bytes=np.where(comm, sizes[np.minimum(table.start_ns // STEP_NS, len(sizes) - 1)], copied),
        category=np.where(table.kind == Kind.COPY, Category.MEMCPY, Category.KERNEL).astype(
            np.int8
        ),
    )
    return replace(run, table=table)


@pytest.mark.sweep
@given(runs(), st.booleans())
def test_any_run_reads_back_as_it_was(
    tmp_path_factory: pytest.TempPathFactory, run: Run, gaps: bool
) -> None:
    assume(run.table.has_times)
    out = tmp_path_factory.mktemp("et") / "out"
    export(run, "chakra", out, ExportOptions(gaps=gaps))
    again = open_run(str(out), jobs=1)
    # Every run that is opened has collectives named by their partners.
    run = replace(run, table=labelled_by_partners(run.table))
    # Which of several that start together is charged with what they share depends on their order.
    same(run, again, but=ADDITIVE)
    for name in STATES:
        assert run.table.column(name).sum() == again.table.column(name).sum()


@settings(max_examples=30)
@given(traces())
def test_steps_and_idle_time_read_back_as_they_were(
    tmp_path_factory: pytest.TempPathFactory, trace: TinyTrace
) -> None:
    folder = tmp_path_factory.mktemp("et")
    run = opened_events(folder, trace.events)
    assume(run.table.has_times)
    export(run, "chakra", folder / "out")
    again = open_run(str(folder / "out"), jobs=1)
    same(run, again)
    for name in ("gpu", "iteration", "start_ns", "duration_ns"):
        before, after = (getattr(each.side(HostSteps), name) for each in (run, again))
        assert before.tolist() == after.tolist()


def test_durations_keep_their_sum_in_whole_microseconds(tmp_path: Path) -> None:
    from chopper_core.extensions.chakra.et import EtFile

    run = run_of([Row(1000 * i, 333, stream=i % 2) for i in range(100)])
    export(run, "chakra", tmp_path / "out")
    with EtFile(next((tmp_path / "out").glob("*.0.et"))) as file:
        nodes = list(file)
    for stream in (0, 1):
        total = sum(each.duration_us for each in nodes if each.get("stream") == stream)
        assert abs(total - 50 * 0.333) < 1
    assert [each.id for each in nodes] == [*range(1, 101)]


# Without times


def chain(folder: Path) -> Path:
    """Two streams and a thread: the kernel of stream 8 waits for both others."""
    nodes = [
        node(1, 5, name="aten::mm(0)", is_cpu_op=True, tid=1),
        node(2, 10, 1, name="gemm_kernel", stream=7, ctrl=[1]),
        node(3, 20, 1, name="ncclDevKernel_Generic(x)", stream=9, type=int(NodeType.COMM_COLL),
             comm_type=int(CommType.ALL_GATHER), comm_size=64, pg_name="3"),
        node(4, 7, 2, 3, name="silu_kernel", stream=8, num_ops=5, mood="calm"),
        node(5, 7, name="Memcpy DtoH (Device -> Host)", stream=7),
    ]  # fmt: skip
    return written(folder / "small.0.et", nodes)


def test_a_graph_without_times_is_scheduled_along_its_dependencies(tmp_path: Path) -> None:
    run = open_run(str(chain(tmp_path)))
    table = run.table
    rows = {
        table.names[table.kernel[row]]: (int(table.start_ns[row]), int(table.duration_ns[row]))
        for row in range(len(table))
    }
    assert rows == {
        "gemm_kernel": (5_000, 10_000),
        "ncclDevKernel_Generic(x)": (5_000, 20_000),
        "silu_kernel": (25_000, 7_000),
        # Stream 7 runs its nodes in the order of the file, as soon as they can.
        "Memcpy DtoH (Device -> Host)": (15_000, 7_000),
    }
    named = dict(zip((table.names[code] for code in table.kernel), range(len(table)), strict=True))
    assert table.operations[table.operation[named["gemm_kernel"]]] == "aten::mm"
    gather = named["ncclDevKernel_Generic(x)"]
    assert table.operations[table.operation[gather]] == "all_gather"
    assert (table.bytes[gather], table.names[table.group[gather]]) == (64, "3")
    assert table.kind[gather] == Kind.COMM
    assert table.kind[named["Memcpy DtoH (Device -> Host)"]] == Kind.COPY


def test_reconstructed_times_are_marked_everywhere(tmp_path: Path) -> None:
    run = open_run(str(chain(tmp_path)))
    assert run.is_reconstructed and run.marks == ("reconstructed",)
    for name in ("", *VIEWS):
        frame = frame_of(run, View(run.name, name=name))
        assert TIMES_NOTES[RECONSTRUCTED] in frame.notes, name
        assert TIMES_NOTES[RECONSTRUCTED] in json.loads(as_json(frame))["notes"]
        assert "reconstructed times" in as_text(frame)
        for row in csv.DictReader(io.StringIO(as_csv(frame))):
            assert row["times"] == "reconstructed"
    assert "Reconstructed times" in info.info_text(run)
    assert info.describe(run)["times"] == "reconstructed"
    export(run, "perfetto", tmp_path / "trace.json")
    assert open_run(str(tmp_path / "trace.json")).is_reconstructed
    assert OpenRun(run).kernels().schema.metadata[b"times"] == b"reconstructed"
    write_store(run, tmp_path / "store")
    assert read_store(tmp_path / "store").is_reconstructed
    OpenRun(run).export(tmp_path / "again")
    again = open_run(str(tmp_path / "again"))
    assert again.is_reconstructed
    same(run, again)


def test_measured_times_are_not_marked(tmp_path: Path) -> None:
    export(run_of([Row(0, 5), Row(7, 5)]), "chakra", tmp_path / "out")
    run = open_run(str(tmp_path / "out"))
    frame = frame_of(run, View(run.name))
    assert not run.is_reconstructed and TIMES_NOTES[RECONSTRUCTED] not in frame.notes
    assert "times" not in as_csv(frame).splitlines()[0].split(",")


def test_attributes_that_nothing_reads_are_shown(tmp_path: Path, wording: Wording) -> None:
    text = info.info_text(open_run(str(chain(tmp_path))))
    wording.among(text, "mood (string)", "1 node", "'calm'")


def test_a_schedule_gives_no_findings_about_waits_or_overlap(tmp_path: Path) -> None:
    """The demo without its times: what it says of waits with them, it must not say without."""
    run = demo_run()
    measured = frame_of(run, View(run.name, name="findings"))
    source = replace(run.sources[0], clock="reconstructed along dependencies")
    run = replace(run, sources=(source, *run.sources[1:]))
    found = frame_of(run, View(run.name, name="findings"))
    rules = [found.values["rule"].cell(row) for row in range(len(found))]
    before = {measured.values["rule"].cell(row) for row in range(len(measured))}
    assert "straggler" in before
    assert set(rules) <= {"layer", "operation", "products", "slow_on_a_gpu"}


@pytest.mark.parametrize("name", ["overview", "comms"])
def test_headlines_say_nothing_of_exposure_for_a_schedule(name: str, tmp_path: Path) -> None:
    run = open_run(str(chain(tmp_path)))
    headline = " ".join(frame_of(run, View(run.name, name=name)).headline)
    assert headline and "exposed" not in headline and "waiting" not in headline


def test_the_overviews_bar_is_of_durations_for_a_schedule(tmp_path: Path) -> None:
    run = open_run(str(chain(tmp_path)))
    charts = frame_of(run, View(run.name, name="overview")).charts
    (bar,) = [each for each in charts if isinstance(each, Composition)]
    unit = {"µs": 1, "ms": 1_000}[bar.unit]
    found = {each.name: round(float(each.numbers[0]) * unit) for each in bar.series}
    assert found == {"compute": 17, "communication": 20, "copies": 7}


@pytest.mark.parametrize("name", ["overlap", "launch", "ranks"])
def test_views_of_what_ran_when_have_nothing_to_show_for_a_schedule(
    name: str, tmp_path: Path, wording: Wording
) -> None:
    run = open_run(str(chain(tmp_path)))
    frame = frame_of(run, View(run.name, name=name))
    assert len(frame) == 0
    wording(frame.notes[0], "start times")


def test_a_cycle_is_named_where_a_schedule_is_needed(tmp_path: Path) -> None:
    path = written(tmp_path / "a.0.et", [node(1), node(4, 1, 7), node(7, 1, 4)])
    with pytest.raises(DataError, match=r"form a cycle \(4 waits for 7 waits for 4\)"):
        open_run(str(path))


def test_hostile_files_are_refused_by_the_command_in_a_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from chopper_core.extensions.chakra.schema import varint

    head = b"\x07\x0a\x051.0.0"
    for name, data in {
        "beyond": head + varint(1000) + b"\x08\x01",
        "gigabyte": head + varint(1 << 30) + b"\x08\x01",
        "nothing": b"",
        "zeros": bytes(1000),
        "text": b"hello, world" * 10,
    }.items():
        path = tmp_path / f"{name}.et"
        path.write_bytes(data)
        assert main(["info", str(path)]) == 1
        (line,) = capsys.readouterr().err.splitlines()
        assert line.startswith(f"chopper: {path} ")


@pytest.mark.sweep
def test_a_million_dependencies_are_scheduled(tmp_path: Path) -> None:
    many = node(1, 5)
    many.data_deps = [*range(2, 1_000_002)]
    last = node(2, 7)
    run = open_run(str(written(tmp_path / "a.0.et", [many, last])))
    assert sorted(run.table.start_ns.tolist()) == [0, 7_000]
    assert run.sources[0].findings["dependencies on nodes that the file lacks"] == 999_999


def test_a_repeated_id_is_refused(tmp_path: Path) -> None:
    path = written(tmp_path / "a.0.et", [node(1), node(1)])
    with pytest.raises(DataError, match="has the node id 1 twice"):
        open_run(str(path))


def test_a_host_trace_is_told_from_a_run(tmp_path: Path) -> None:
    path = written(tmp_path / "a.0.et", [node(1, is_cpu_op=True)])
    with pytest.raises(DataError, match="none of them a kernel or copy on a GPU"):
        open_run(str(path))


def test_nodes_of_a_newer_type_are_named(tmp_path: Path, wording: Wording) -> None:
    """Storage, batches and checkpoints, which upstream has proposed."""
    path = written(tmp_path / "s.0.et", [node(1, 80), node(2, 80, 1), node(3, 80, 2)])
    nodes = [node(1, 80), node(2, 80, 1, type=8, name="load batch"), node(3, 80, 2)]
    written(path, nodes)
    run = open_run(str(path), jobs=1)
    (source,) = run.sources
    assert len(run.table) == 2 and source.unused == {"node of the unknown type 8": 1}
    (note,) = [doubt.sentence for doubt in run.doubts]
    wording(note, "1 of 3 nodes", "type 8", "'load batch'")
    assert "the unknown type 8" in lint([path]).violations[0]


def test_fields_of_a_newer_schema_are_named(tmp_path: Path) -> None:
    path = tmp_path / "s.0.et"
    parts = [encode_metadata(Metadata("1.1.0"))]
    parts += [encode_node(node(n, 5)) + bytes_field(10 + n, b"new") for n in (1, 2)]
    path.write_bytes(b"".join(map(delimited, parts)))
    says = "nodes have fields that the schema known here lacks, and that are not read: 11, 12"
    run = open_run(str(path), jobs=1)
    assert len(run.table) == 2 and run.sources[0].losses == (says,)
    report = lint([path])
    assert (report.violations, report.notes) == ([], [f"s.0.et: {says}"])


def test_a_cut_file_keeps_the_nodes_before_the_cut(tmp_path: Path, wording: Wording) -> None:
    path = written(tmp_path / "a.0.et", [node(1), node(2, 1, 1), node(3, 1, 2)])
    path.write_bytes(path.read_bytes()[:-4])
    run = open_run(str(path))
    assert len(run.table) == 2
    wording(run.sources[0].losses[0], "2 nodes")


KERNEL_EVENT = {
    "ph": "X", "cat": "kernel", "name": "k", "pid": 0, "tid": 7, "ts": 1, "dur": 2,
    "args": {"device": 0, "stream": 7},
}  # fmt: skip


def test_an_et_beside_another_trace_is_left_out_and_named(tmp_path: Path, wording: Wording) -> None:
    (tmp_path / "rank0.json").write_text(json.dumps({"traceEvents": [KERNEL_EVENT]}))
    chain(tmp_path)
    run = open_run(str(tmp_path), jobs=1)
    assert len(run.sources) == 1 and not run.is_reconstructed
    assert [Path(path).name for path, _ in run.skipped] == ["small.0.et"]
    wording(run.skipped[0][1], "alone")


def test_start_times_of_another_tool_are_used(tmp_path: Path) -> None:
    nodes = [node(1, 5), node(2, 5, 1)]
    nodes[1].start_us = 40
    run = open_run(str(written(tmp_path / "a.0.et", nodes)))
    assert not run.is_reconstructed
    assert sorted(run.table.start_ns.tolist()) == [0, 40_000]
    assert (run.table.launch_ns == NO_TIME).all()


# Upstream's own files


@pytest.fixture(scope="module")
def upstream(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The graph in both of upstream's formats, unpacked."""
    folder = tmp_path_factory.mktemp("upstream")
    for path in sorted(real("chakra").glob("*.tar.gz")):
        with tarfile.open(path) as archive:
            archive.extractall(folder, filter="data")
    return folder


def test_upstreams_graph_has_the_known_counts(upstream: Path) -> None:
    et = next(upstream.rglob("chakra.0.et"))
    run = open_run(str(et))
    source = run.sources[0]
    assert source.events == {"GPU node": 1216, "CPU node": 2448}
    facts = source.facts
    assert (facts["nodes"], facts["collectives"]) == ("3,664", "21")
    assert facts["sent by collectives"] == "102,441,032 B"
    assert facts["durations"] == "381,795 µs"
    assert facts["dependencies"] == "181,878"
    table = run.table
    assert int(table.bytes[table.kind == Kind.COMM].sum()) == 102_441_032
    assert len(table) == 1216 and run.is_reconstructed
    # One node at a time on each of two threads and two streams.
    assert _makespan_us(et) == 297_046
    assert _first_come_us(et) == 332_227


def _makespan_us(path: Path) -> int:
    from chopper_core.extensions.chakra import et
    from chopper_core.extensions.chakra.execution_graph import times_of

    start_ns, duration_ns, _ = times_of(et.read(path))
    return int((start_ns + duration_ns).max()) // 1000


def _first_come_us(path: Path) -> int:
    """The makespan of another model: one CPU and one GPU, each of which takes what is ready first.

    Streams that run beside each other are what it lacks against Chopper's schedule.
    """
    from chopper_core.extensions.chakra.et import EtFile

    with EtFile(path) as file:
        nodes = {each.id: each for each in file}
    waits = {number: len(each.data_deps) for number, each in nodes.items()}
    followers: dict[int, list[int]] = {number: [] for number in nodes}
    for each in nodes.values():
        for need in each.data_deps:
            followers[need].append(each.id)
    queues: dict[bool, deque[int]] = {True: deque(), False: deque()}
    ended: list[tuple[int, int, bool]] = []
    busy: set[bool] = set()
    now = 0
    for number, count in waits.items():
        if not count:
            queues[bool(nodes[number].get("is_cpu_op"))].append(number)
    while True:
        for unit, queue in queues.items():
            if unit not in busy and queue:
                number = queue.popleft()
                busy.add(unit)
                heapq.heappush(ended, (now + nodes[number].duration_us, number, unit))
        if not ended:
            return now
        now, done, unit = heapq.heappop(ended)
        busy.discard(unit)
        for follower in followers[done]:
            waits[follower] -= 1
            if not waits[follower]:
                queues[bool(nodes[follower].get("is_cpu_op"))].append(follower)


def test_the_feeders_json_is_the_same_graph(upstream: Path) -> None:
    from chopper_core.extensions.chakra import et, feeder_json

    one = et.read(next(upstream.rglob("chakra.0.et")))
    other = feeder_json.read(
        next(path for path in upstream.rglob("chakra.0.json") if "small" not in path.name)
    )
    assert one.ids == other.ids
    for name in ("type", "duration_us", "is_host"):
        assert getattr(one, name).tolist() == getattr(other, name).tolist(), name
    assert one.data.to.tolist() == other.data.to.tolist()
    small = feeder_json.read(next(upstream.rglob("small_chakra.0.json")))
    assert (len(small), int((small.type == NodeType.COMM_COLL).sum())) == (7, 3)
