"""Logs of ASTRA-sim as runs: their times, labels from the traces beside them, and their mark."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chopper_core.api import OpenRun, diff
from chopper_core.extensions.chakra import simulation, timeline
from chopper_core.graph.dependencies import time_order
from chopper_core.ingest.open import open_run
from chopper_core.model.inputs import SIMULATED, TIMES_NOTES
from chopper_core.model.run import Run
from chopper_core.model.table import Kind
from chopper_core.model.view import View
from chopper_core.render import as_csv, as_json, as_text, info
from chopper_core.render.exports import export
from chopper_core.sources.registry import Family, family_of
from chopper_core.store.reader import read_store
from chopper_core.store.writer import write_store
from chopper_core.util.errors import DataError
from chopper_core.views import VIEWS
from chopper_core.views.query import frame_of
from tests.support import sample_run
from tests.wording import Wording

# Lines as ASTRA-sim's workload layer prints them: plain, and with the logger's head.
PLAIN = """\
ring of 2
issue,sys->id=0,tick=0,node->id=1,node->name=gemm<a, b>
issue,sys->id=1,tick=0,node->id=1,node->name=gemm<a, b>
callback,sys->id=0,tick=500,node->id=1,node->name=gemm<a, b>
issue,sys->id=0,tick=500,node->id=7,node->name=COMM_COLL_NODE_all_reduce,node->node_type=7
callback,sys->id=1,tick=900,node->id=1,node->name=gemm<a, b>
issue,sys->id=1,tick=900,node->id=7,node->name=COMM_COLL_NODE_all_reduce,node->node_type=7
callback,sys->id=0,tick=1400,node->id=7,node->name=COMM_COLL_NODE_all_reduce
callback,sys->id=1,tick=1400,node->id=7,node->name=COMM_COLL_NODE_all_reduce
"""
LOGGED = """\
[2026-06-12 08:26:48.001] [system::topology::RingTopology] [info] ring of node 0
[2026-06-12 08:26:48.990] [workload] [debug] issue,sys->id=0, tick=0, node->id=1, node->name=gemm<a, b>, node->type=4
[2026-06-12 08:26:48.990] [workload] [debug] issue,sys->id=0, tick=0, node->id=2, node->name=ncclDevKernel_Generic, node->type=7
[2026-06-12 08:26:48.991] [workload] [debug] callback,sys->id=0, tick=250, node->id=2, node->name=ncclDevKernel_Generic, node->type=7
[2026-06-12 08:26:48.992] [workload] [debug] callback,sys->id=0, tick=1000, node->id=1, node->name=gemm<a, b>, node->type=4
[2026-06-12 08:26:48.997] [workload] [info] sys[0] finished, 1000 cycles, exposed communication 0 cycles.
[2026-06-12 08:26:48.997] [statistics] [info] sys[0]. Post statistics processing start.
[2026-06-12 08:26:48.997] [statistics] [info] sys[0], Wall time: 1000
[2026-06-12 08:26:48.997] [statistics] [info] sys[0], Comm time: 250
[2026-06-12 08:26:48.997] [statistics] [info] sys[0], GPU time: 1000
[2026-06-12 08:26:48.997] [statistics] [info] sys[0], Total compute-communication overlap: 250
"""  # noqa: E501


def opened(folder: Path, text: str, name: str = "sim.log") -> Run:
    (folder / name).write_text(text)
    return open_run(str(folder / name), jobs=1)


def rows(run: Run) -> list[tuple[int, int, int, str, Kind]]:
    table = run.table
    order = time_order(table, np.arange(len(table)))
    return [
        (
            int(table.gpu[row]),
            int(table.start_ns[row]),
            int(table.duration_ns[row]),
            table.names[int(table.kernel[row])],
            Kind(int(table.kind[row])),
        )
        for row in order.tolist()
    ]


def test_issue_and_callback_are_an_activity(tmp_path: Path) -> None:
    run = opened(tmp_path, PLAIN)
    name = "COMM_COLL_NODE_all_reduce"
    assert rows(run) == [
        (0, 0, 500, "gemm<a, b>", Kind.COMPUTE),
        (0, 500, 900, name, Kind.COMM),
        (1, 0, 900, "gemm<a, b>", Kind.COMPUTE),
        (1, 900, 500, name, Kind.COMM),
    ]
    assert run.marks == ("simulated",) and len(run.gpus) == 2
    assert {run.table.operations[code] for code in run.table.operation} >= {"all_reduce"}


def test_lines_of_the_logger_and_statistics(tmp_path: Path) -> None:
    run = opened(tmp_path, LOGGED)
    assert rows(run) == [
        (0, 0, 250, "ncclDevKernel_Generic", Kind.COMM),
        (0, 0, 1000, "gemm<a, b>", Kind.COMPUTE),
    ]
    facts = run.sources[0].facts
    assert facts["Wall time"] == "1000" and facts["exposed communication"] == "0"
    assert facts["Total compute-communication overlap"] == "250"
    assert not run.sources[0].losses and not any("Wall" in note for note in run.sources[0].notes)
    # The simulator's figures are those of the accounting.
    whole = run.tree().node(())
    assert int(whole.sum("exposed_comm_ns")[0]) == 0 and int(whole.sum("hidden_ns")[0]) == 250


def test_a_statistic_that_the_events_contradict_is_noted(tmp_path: Path) -> None:
    run = opened(tmp_path, LOGGED.replace("Wall time: 1000", "Wall time: 1001"))
    note = "system 0: Wall time is 1001, the last node ended at 1000"
    assert note in run.sources[0].notes


def simulated(run: Run, folder: Path, factor: int) -> Path:
    """A run exported, and the log of a simulator that takes `factor` times as long."""
    export(run, "chakra", folder / "traces")
    lines = []
    table = run.table
    for gpu in run.gpus:
        own = np.flatnonzero(table.gpu == gpu.index)
        # Ids count in the order of start, then of stream.
        own = time_order(table, own)
        start = factor * (table.start_ns[own] - table.start_ns.min())
        end = start + factor * table.duration_ns[own]
        for number, row in enumerate(own.tolist()):
            name = table.names[int(table.kernel[row])]
            for what, tick in (("issue", start[number]), ("callback", end[number])):
                lines.append(
                    (int(tick), what == "issue",
                     f"[t] [workload] [debug] {what},sys->id={gpu.index}, tick={tick}, "
                     f"node->id={number + 1}, node->name={name}, node->type=4")
                )  # fmt: skip
    lines.sort(key=lambda line: (line[0], line[1]))
    log = folder / "traces" / "result" / "sim.log"
    log.parent.mkdir()
    log.write_text("\n".join(line for _, _, line in lines) + "\n")
    return log


def test_labels_come_from_the_traces_above_the_log(tmp_path: Path) -> None:
    run = sample_run(gpus=2, layers=2)
    log = simulated(run, tmp_path, 2)
    found = open_run(str(log), jobs=1)
    assert found.marks == ("generated", "simulated")
    a, b = (time_order(each.table, np.arange(len(each.table))) for each in (run, found))
    one, other = run.table.take(a), found.table.take(b)
    for name in ("gpu", "iteration", "phase", "layer", "kind", "stream", "bytes", "category"):
        assert np.array_equal(one.column(name), other.column(name)), name
    for level in ("operation", "kernel"):
        texts = [
            [table.text_of(level, code) for code in table.column(level).tolist()]
            for table in (one, other)
        ]
        assert texts[0] == texts[1]
    assert np.array_equal(2 * one.duration_ns, other.duration_ns)
    assert np.array_equal(2 * (one.start_ns - one.start_ns.min()), other.start_ns)


def test_measured_and_simulated_stand_side_by_side(tmp_path: Path) -> None:
    run = sample_run(gpus=2, layers=2)
    log = simulated(run, tmp_path, 2)
    changed = diff(str(tmp_path / "traces"), str(log))
    assert any("simulated times" in note for note in changed.notes)
    measured, simulation_ = (OpenRun(each) for each in (run, open_run(str(log), jobs=1)))
    before, after = (each.frame("?columns=kernel_ns").total for each in (measured, simulation_))
    assert after["kernel_ns"] == 2 * before["kernel_ns"]


def test_the_folder_opens_what_was_measured(tmp_path: Path) -> None:
    run = sample_run(gpus=2, layers=1)
    simulated(run, tmp_path, 3)
    found = open_run(str(tmp_path / "traces"), jobs=1)
    assert "simulated" not in found.marks and len(found.table) == len(run.table)
    assert any("open it alone" in reason for _, reason in found.skipped)


def test_a_trace_of_another_workload_gives_no_labels(tmp_path: Path, wording: Wording) -> None:
    export(sample_run(gpus=2, layers=1), "chakra", tmp_path / "traces")
    run = opened(tmp_path / "traces", PLAIN)
    assert len(rows(run)) == 4
    losses = " ".join(run.sources[0].losses)
    wording(losses, "labels of system 0")
    wording(losses, "another workload")
    assert (run.table.iteration == -1).all()


def test_what_did_not_finish_is_named(tmp_path: Path, wording: Wording) -> None:
    text = LOGGED.replace("sys[0]", "sys[1]") + "\n".join(
        [
            "issue,sys->id=0, tick=1, node->id=9, node->name=x, node->type=4",
            "issue,sys->id=0, tick=2, node->id=1, node->name=again, node->type=4",
            "callback,sys->id=5, tick=2, node->id=3, node->name=y, node->type=4",
        ]
    )
    losses = opened(tmp_path, text).sources[0].losses
    wording.among(losses, "system 0: 1 node", "not done")
    wording.among(losses, "system 0: 1 node", "again")
    wording.among(losses, "system 0 ", "finish")


def test_statistics_alone_name_the_way_out(tmp_path: Path) -> None:
    with pytest.raises(DataError, match='"trace-enabled": 1'):
        opened(tmp_path, "".join(line + "\n" for line in LOGGED.splitlines() if "sys[" in line))


@pytest.mark.few(7)
@pytest.mark.parametrize("name", VIEWS)
def test_every_view_says_simulated(tmp_path: Path, name: str) -> None:
    run = opened(tmp_path, PLAIN)
    frame = frame_of(run, View("R", name=name))
    assert TIMES_NOTES[SIMULATED] in frame.notes
    assert "simulated times" in as_text(frame)
    assert TIMES_NOTES[SIMULATED] in json.loads(as_json(frame))["notes"]


def test_every_export_and_store_says_simulated(tmp_path: Path) -> None:
    run = opened(tmp_path, PLAIN)
    assert "simulated" in as_csv(frame_of(run, View("R")))
    assert "Simulated times" in info.info_text(run) and info.describe(run)["times"] == "simulated"
    assert OpenRun(run).kernels().schema.metadata[b"times"] == b"simulated"
    export(run, "perfetto", tmp_path / "a.json")
    assert json.loads((tmp_path / "a.json").read_text())["chopper"]["marks"] == ["simulated"]
    export(run, "chakra", tmp_path / "et")
    assert open_run(str(tmp_path / "et"), jobs=1).marks == ("simulated",)
    write_store(run, tmp_path / "store")
    assert read_store(tmp_path / "store").marks == ("simulated",)


def rotated(log: Path, count: int, name: str = "log") -> list[Path]:
    """The log in parts as ASTRA-sim rotates it, `log.log` the last."""
    lines = log.read_text().splitlines(keepends=True)
    folder = log.parent / "rotated"
    folder.mkdir()
    each = -(-len(lines) // count)
    found = []
    for number in range(count):
        part = f"{name}.{number}.log" if number else f"{name}.log"
        own = lines[(count - 1 - number) * each : (count - number) * each]
        found.append(folder / part)
        found[-1].write_text("".join(own))
    return found


def test_the_parts_of_a_rotated_log_are_one_run(tmp_path: Path, wording: Wording) -> None:
    whole = open_run(str(simulated(sample_run(gpus=2, layers=2), tmp_path, 2)), jobs=1)
    parts = rotated(tmp_path / "traces" / "result" / "sim.log", 4)
    for path in (parts[0], parts[0].parent):
        run = open_run(str(path), jobs=1)
        assert rows(run) == rows(whole) and not run.doubts
        assert [each.path for each in run.sources] == [str(parts[0])] * 2
    for _, why in run.skipped:
        wording(why, "part of log")
    assert len(run.skipped) == 3
    with pytest.raises(DataError, match=r"log\.2\.log is a part of log\.1\.log"):
        open_run(str(parts[2]), jobs=1)


def test_a_log_without_its_beginning_says_so_first(tmp_path: Path, wording: Wording) -> None:
    """As where ASTRA-sim has thrown the oldest part away."""
    log = simulated(sample_run(gpus=2, layers=2), tmp_path, 2)
    parts = rotated(log, 4)
    for path in parts[2:]:
        path.unlink()
    tick = int(parts[1].read_text().split("tick=")[1].split(",")[0])
    run = open_run(str(parts[0]), jobs=1)
    says = f"the log begins at tick {tick:,}: what was simulated before is missing"
    assert [doubt.sentence for doubt in run.doubts] == [says]
    assert says in as_text(frame_of(run, View("R"))) and says in info.info_text(run)
    wording.among(run.sources[0].losses, "system 0", "issues")


def test_logs_of_several_simulations_are_not_joined(tmp_path: Path) -> None:
    """A sweep whose logs are numbered: each begins at tick 0."""
    for name in ("sim.log", "sim.1.log"):
        run = opened(tmp_path, LOGGED, name)
        assert len(rows(run)) == 2 and not run.doubts


def test_the_console_names_the_log_with_events(tmp_path: Path) -> None:
    text = "".join(line + "\n" for line in LOGGED.splitlines() if "[info]" in line)
    with pytest.raises(DataError, match=r"open log/log\.log.*its console has no events"):
        opened(tmp_path, text)


def test_lines_of_the_newest_logger(tmp_path: Path) -> None:
    head = "[2026-11-20T08:26:48+0000] [D] <workload>: "
    lines = [head + line.split("[debug] ")[1] for line in LOGGED.splitlines() if "[debug] " in line]
    assert len(rows(opened(tmp_path, "\n".join(lines) + "\n"))) == 2


def test_a_timeline_has_the_frequency_that_it_was_made_with(
    tmp_path: Path, wording: Wording
) -> None:
    """Upstream's visualizer divides ticks by a frequency in MHz; here 1.5 GHz."""
    events = [
        {"pid": system, "tid": 3, "ts": begin / 1500 / 1000, "dur": lasts / (1500 * 1000),
         "ph": "X", "name": name, "args": {"ms": 1}}
        for system, begin, lasts, name in (
            (0, 0, 1_500_000, "COMP_NODE_gemm"), (0, 1_500_000, 3_000, "COMM_COLL_NODE_all_reduce"),
            (1, 750, 1_500_000, "COMP_NODE_gemm"),
        )
    ]  # fmt: skip
    path = tmp_path / "timeline.json"
    document = {"meta_user": "aras", "traceEvents": [*events, {"pid": 1}], "meta_cpu_count": 2}
    path.write_text(json.dumps(document))
    run = open_run(str(path), jobs=1)
    assert rows(run) == [
        (0, 0, 1_000_000, "COMP_NODE_gemm", Kind.COMPUTE),
        (0, 1_000_000, 2_000, "COMM_COLL_NODE_all_reduce", Kind.COMM),
        (1, 500, 1_000_000, "COMP_NODE_gemm", Kind.COMPUTE),
    ]
    assert run.marks == ("simulated",)
    (note,) = run.sources[0].losses
    wording(note, "1 event")


def test_other_logs_are_not_taken(tmp_path: Path) -> None:
    for text in ("issue, callback and so on\n", "sys[0] rebooted\n", "sys->id=0, tick=0\n", ""):
        (tmp_path / "a.log").write_text(text)
        assert family_of(tmp_path / "a.log") is not Family.TRACE


@given(at=st.integers(0, len(LOGGED)), junk=st.binary(max_size=40))
def test_damage_costs_lines_only(tmp_path: Path, at: int, junk: bytes) -> None:
    data = LOGGED.encode()
    path = tmp_path / "damaged.log"
    path.write_bytes(data[:at] + junk + data[at:])
    try:
        found = simulation.read(path)
    except DataError:
        return
    known = {(0, 250), (0, 1000)}
    for graph in found.graphs:
        durations = zip(graph.numbers("ts_ns"), graph.numbers("dur_ns"), strict=True)
        assert len(set(durations) - known) <= 1


def test_a_line_of_any_length_is_skipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "long.log"
    long = "issue,sys->id=0, tick=0, node->id=5, node->name=" + "x" * (3 << 20)
    path.write_text(f"{long}\n{LOGGED}{long}")
    found = simulation.read(path)
    assert len(found.graphs[0]) == 2
    assert any("2 lines longer than" in note for note in found.notes)


OLD = """\
ASTRA-sim + NS3
issue,sys->id=1,tick=0,node->id=428,node->name=COMP_NODE_conv1_BWD_WG
callback,sys->id=1,tick=1082450000,node->id=429,node->name=COMP_NODE_bias
callback,sys->id=1,tick=1082450000,node->id=428,node->name=COMP_NODE_conv1_BWD_WG
sys[1] finished, 1082450000 cycles
"""


def test_lines_of_astra_sim_2_0(tmp_path: Path, wording: Wording) -> None:
    """It has no exposed communication yet, and no line that issues nodes without work."""
    run = opened(tmp_path, OLD)
    assert rows(run) == [(1, 0, 1_082_450_000, "COMP_NODE_conv1_BWD_WG", Kind.COMPUTE)]
    assert run.sources[0].facts["finished"] == "1082450000"
    (note,) = run.sources[0].losses
    wording(note, "system 1: 1 node", "done")


def test_statistics_with_units(tmp_path: Path) -> None:
    """Those that ASTRA-sim adds with the roofline, the memory tracker and bandwidths."""
    head = "[2026-06-12 08:26:48.997] [statistics] [info] sys[0]"
    lines = (
        f"{head}, Compute bound percentage: 12.500%",
        f"{head}, Average operation intensity: 7.250",
        f"{head}, Average network bandwidth: 31.004 GB/s across 2 communication operations",
        f"{head} peak memory usage: 1.50 GB",
    )
    facts = opened(tmp_path, LOGGED + "\n".join(lines) + "\n").sources[0].facts
    assert facts["Compute bound percentage"] == "12.500%"
    assert facts["Average operation intensity"] == "7.250"
    assert facts["Average network bandwidth"].startswith("31.004 GB/s across 2")
    assert facts["peak memory usage"] == "1.50 GB"


@pytest.mark.parametrize(
    ("events", "sentence"),
    [("[{}]}", "without a usable event"), ('[{"pid": ', "can't be read as a Chakra timeline")],
)
def test_a_timeline_without_events_is_refused(tmp_path: Path, events: str, sentence: str) -> None:
    path = tmp_path / "timeline.json"
    path.write_text('{"meta_user": "aras", "traceEvents": ' + events)
    with pytest.raises(DataError, match=sentence):
        timeline.read(path)
