"""Waits that traces state: against a scheduler that runs the same program, and cases of one wait.

A program is what the host does, 10 µs apart: launch to a stream, record an event in a stream, let a
stream wait for an event. The scheduler starts each activity when its stream, and all that its
stream waits for, has ended.
"""

from __future__ import annotations

import sqlite3
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import Struct

from chopper_core.extensions.chakra.et import EtFile
from chopper_core.graph.build import step_graph
from chopper_core.graph.dependencies import INFERRED, Evidence
from chopper_core.graph.step_graph import replay
from chopper_core.ingest.open import open_run
from chopper_core.model.run import Run
from chopper_core.model.view import View
from chopper_core.render.exports import export
from chopper_core.store.reader import read_store
from chopper_core.store.writer import write_store
from chopper_core.views.query import query
from tests.sources.counters.counter_writers import MINIMAL_SCHEMA, insert
from tests.sources.test_nsys import EPOCH_NS, SCHEMA
from tests.support import opened_events
from tests.wording import Wording

Op = tuple[str, int, int]
"""`launch` a stream for some µs, or `record`, `wait` for or `sync` a stream and an event."""


class Scheduled(Struct):
    """A program as it ran, times in µs."""

    events: list[dict[str, Any]]
    behind: dict[int, set[int]]
    """Activity → the activities that ended before it could start, as the program has it."""


def scheduled(program: list[Op], delay: float = 2, stated: str = "corr") -> Scheduled:
    """The trace of a program. `stated` is what waits say of their event: the `corr`elation of its
    record with the stream, `bare` without the stream, `id` of the event alone, or `none`."""
    events: list[dict[str, Any]] = []
    free: dict[int, float] = defaultdict(float)
    before: dict[int, set[int]] = defaultdict(set)
    recorded: dict[int, tuple[float, set[int], int, int]] = {}
    behind: dict[int, set[int]] = {}
    at, returned = 1_000.0, 0.0
    for number, (kind, stream, value) in enumerate(program, 1):
        at = max(at + 10, returned)
        call = {"ph": "X", "cat": "cuda_runtime", "pid": 1, "tid": 1, "ts": at, "dur": 4,
                "args": {"correlation": number}}  # fmt: skip
        of_gpu = {"device": 0, "stream": stream, "correlation": number}
        gpu = {"ph": "X", "pid": 0, "tid": stream + 1_000_000, "ts": at + 1, "dur": 0}
        if kind == "launch":
            start = max(at + 8, free[stream] + delay)
            free[stream], behind[number] = start + value, set(before[stream])
            before[stream].add(number)
            kernel = {**gpu, "cat": "kernel", "name": f"k{number}", "ts": start, "dur": value}
            events += [{**call, "name": "cudaLaunchKernel"}, {**kernel, "args": of_gpu}]
        elif kind == "record":
            recorded[value] = free[stream], set(before[stream]), number, stream
            events.append({**call, "name": "cudaEventRecord"})
            if stated in ("bare", "id"):
                args = {**of_gpu, "event_id": value}
                events.append({**gpu, "cat": "cuda_event", "name": "cudaEvent", "args": args})
        elif value in recorded:
            end, what, correlation, source = recorded[value]
            args = {**of_gpu, "wait_on_cuda_event_id": value}
            args["wait_on_stream"] = source if stated == "corr" else -1
            args["wait_on_cuda_event_record_corr_id"] = correlation if "r" in stated else -1
            if kind == "wait":
                free[stream] = max(free[stream], end)
                before[stream] |= what
                call["name"], args["cuda_sync_kind"] = "cudaStreamWaitEvent", "Stream Wait Event"
            else:
                returned = max(at + 4, end + 3)
                call["name"], args["cuda_sync_kind"] = "cudaEventSynchronize", "Event Sync"
                call["dur"] = returned - at
            events.append(call)
            if stated != "none":
                events.append({**gpu, "cat": "cuda_sync", "name": "sync", "args": args})
    return Scheduled(events, behind)


def behind(run: Run, *kinds: Evidence) -> dict[int, set[int]]:
    """Activity → what edges of some kinds, one after another, put before it."""
    graph, table = step_graph(run), run.table
    name = {row: int(table.names[table.kernel[row]][1:]) for row in range(len(table))}
    found: dict[int, set[int]] = {number: set() for number in name.values()}
    for source, target, kind in sorted(
        zip(graph.source.tolist(), graph.target.tolist(), graph.evidence.tolist(), strict=True),
        key=lambda edge: edge[1],
    ):
        if kind in kinds:
            one, other = name[int(graph.row[source])], name[int(graph.row[target])]
            found[other] |= {one, *found[one]}
    return found


ops = st.one_of(
    st.tuples(st.just("launch"), st.integers(7, 10), st.integers(5, 200)),
    st.tuples(st.sampled_from(("record", "wait")), st.integers(7, 10), st.integers(1, 3)),
)


@settings(max_examples=25)
@given(st.lists(ops, min_size=3, max_size=40), st.sampled_from(("corr", "bare", "id")))
def test_edges_are_those_of_the_program(
    tmp_path_factory: pytest.TempPathFactory, program: list[Op], stated: str
) -> None:
    program = [("launch", 7, 30), ("record", 7, 1), ("wait", 8, 1), ("launch", 8, 9), *program]
    made = scheduled(program, stated=stated)
    run = opened_events(tmp_path_factory.mktemp("trace"), made.events)
    assert behind(run, Evidence.STREAM, Evidence.EVENT) == made.behind
    assert not np.isin(step_graph(run).evidence, INFERRED).any()
    assert not step_graph(run).contradicted


def longer(run: Run, name: str, by_us: int) -> float:
    """How much later everything ends, in µs, if an activity takes some µs more."""
    graph, work = step_graph(run), step_graph(run).work_ns.copy()
    (code,) = [code for code, each in enumerate(run.table.names) if each == name]
    own = graph.activities[np.flatnonzero(run.table.kernel == code)]
    work[own] += by_us * 1000
    return float(replay(graph, work).end_ns.max() - replay(graph).end_ns.max()) / 1000


@pytest.mark.parametrize("delay", [2, 19, 60])
def test_a_stated_wait_holds_whenever_the_activity_starts(
    tmp_path: Path, delay: float, wording: Wording
) -> None:
    program: list[Op] = []
    for _ in range(4):
        program += [("launch", 7, 200), ("record", 7, 1), ("wait", 8, 1), ("launch", 8, 150)]
        program += [("launch", 7, 60), ("record", 8, 2), ("wait", 7, 2)]
    run = opened_events(tmp_path, scheduled(program, delay).events)
    # Activities are numbered by their place in the program: the last three are 22, 25 and 26.
    assert longer(run, "k22", 50) == longer(run, "k25", 50) == 50
    assert longer(run, "k26", 50) == 0
    notes = query(run, View("R", name="graph")).notes
    wording.among(notes, "stated by the trace")
    # A store keeps what was stated.
    write_store(run, tmp_path / "store")
    assert longer(read_store(tmp_path / "store"), "k25", 50) == 50


def test_nothing_is_inferred_next_to_what_is_stated(tmp_path: Path) -> None:
    """Stream 9 starts 2 µs after stream 7 each time, by chance; stream 8 waits for it."""
    program: list[Op] = [("launch", 7, 30), ("record", 7, 1), ("wait", 8, 1), ("launch", 8, 20)]
    events = scheduled(program * 6).events
    ends = [e["ts"] + e["dur"] for e in events if e["cat"] == "kernel" and "7" in str(e["tid"])]
    for number, end in enumerate(ends, 100):
        args = {"device": 0, "stream": 9, "correlation": number}
        events.append({"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 1,
                       "tid": 1, "ts": end - 25, "dur": 1, "args": args})  # fmt: skip
        events.append({"ph": "X", "cat": "kernel", "name": "k999", "pid": 0, "tid": 9,
                       "ts": end + 2, "dur": 5, "args": args})  # fmt: skip
    stated = opened_events(tmp_path, events)
    assert not np.isin(step_graph(stated).evidence, INFERRED).any()
    bare = opened_events(tmp_path, [e for e in events if e["cat"] != "cuda_sync"])
    assert np.isin(step_graph(bare).evidence, INFERRED).any()


@pytest.mark.parametrize("delay", [2, 60])
def test_chakra_has_the_waits_that_are_stated(tmp_path: Path, delay: float) -> None:
    """An exported node depends on what its stream waited for, however long after that it began, and
    not on what another stream happened to end before."""
    program: list[Op] = []
    for _ in range(4):
        program += [("launch", 7, 200), ("record", 7, 1), ("wait", 8, 1), ("launch", 8, 150)]
        program += [("launch", 9, 60), ("record", 8, 2), ("wait", 7, 2)]
    made = scheduled(program, delay)
    run = opened_events(tmp_path, made.events)
    export(run, "chakra", tmp_path / "et")
    (path,) = (tmp_path / "et").glob("*.et")
    with EtFile(path) as file:
        nodes = list(file)
    number = {node.id: int(node.name[1:]) for node in nodes}
    found: dict[int, set[int]] = {}
    for node in sorted(nodes, key=lambda each: number[each.id]):
        before = {number[each] for each in node.data_deps}
        found[number[node.id]] = before.union(*(found[each] for each in before))
    assert found == made.behind


def test_a_wait_of_which_the_event_is_unknown_is_inferred(tmp_path: Path) -> None:
    program: list[Op] = [("launch", 7, 90), ("record", 7, 1), ("wait", 8, 1), ("launch", 8, 70)]
    events = scheduled(program * 4).events
    for event in events:
        if event["cat"] == "cuda_sync" and event["args"]["correlation"] > 4:
            event["args"] |= {"wait_on_stream": -1, "wait_on_cuda_event_record_corr_id": -1}
    run = opened_events(tmp_path, events)
    found = step_graph(run).evidence
    assert (found == Evidence.EVENT).sum() == 1 and np.isin(found, INFERRED).sum() == 3


def test_a_call_waits_for_its_event_and_not_for_what_ended_last(tmp_path: Path) -> None:
    """The call waits for stream 7; stream 8 ends 2 µs later, before the call returns."""
    program: list[Op] = [("launch", 7, 100), ("launch", 8, 92), ("record", 7, 1), ("sync", 7, 1)]
    run = opened_events(tmp_path, scheduled([*program, ("launch", 7, 10)]).events)
    graph = step_graph(run)
    blocked = graph.evidence == Evidence.BLOCKED
    rows = graph.row[graph.source[blocked]]
    assert [run.table.names[run.table.kernel[row]] for row in rows] == ["k1"]


def test_a_graph_waits_and_is_waited_for_as_a_whole(tmp_path: Path) -> None:
    """One launch starts activities on streams 7 and 9; both wait, and both are waited for."""
    program: list[Op] = [
        ("launch", 8, 100), ("record", 8, 1), ("wait", 7, 1), ("launch", 7, 50),
        ("record", 7, 2), ("wait", 10, 2), ("launch", 10, 5),
    ]  # fmt: skip
    events = scheduled(program).events
    (node,) = [e for e in events if e["name"] == "k4"]
    args = {**node["args"], "stream": 9}
    events.append({**node, "name": "k44", "dur": 30, "tid": 9, "args": args})
    found = behind(opened_events(tmp_path, events), Evidence.STREAM, Evidence.EVENT)
    assert found == {1: set(), 4: {1}, 44: {1}, 7: {1, 4, 44}}


def test_a_stated_wait_that_times_contradict_is_counted(tmp_path: Path) -> None:
    program: list[Op] = [("launch", 7, 90), ("record", 7, 1), ("wait", 8, 1), ("launch", 8, 70)]
    events = scheduled(program).events
    (late,) = [e for e in events if e["name"] == "k4"]
    late["ts"] -= 40
    graph = step_graph(opened_events(tmp_path, events))
    assert graph.contradicted == 1 and not (graph.evidence == Evidence.EVENT).any()


NSYS = """
CREATE TABLE CUPTI_ACTIVITY_KIND_SYNCHRONIZATION (start INTEGER, end INTEGER, deviceId INTEGER,
  contextId INTEGER, greenContextId INTEGER, streamId INTEGER, correlationId INTEGER,
  globalPid INTEGER, deprecatedSyncType INTEGER, syncType INTEGER, eventId INTEGER,
  eventSyncId INTEGER);
CREATE TABLE CUPTI_ACTIVITY_KIND_CUDA_EVENT (deviceId INTEGER, contextId INTEGER,
  greenContextId INTEGER, streamId INTEGER, correlationId INTEGER, globalPid INTEGER,
  eventId INTEGER, eventSyncId INTEGER, timestamp INTEGER);
"""


@pytest.mark.parametrize("has_sync_id", [True, False])
def test_nsight_systems_states_waits(tmp_path: Path, has_sync_id: bool) -> None:
    program: list[Op] = [
        ("launch", 7, 90), ("record", 7, 1), ("wait", 8, 1), ("launch", 8, 70), ("launch", 7, 40),
        ("record", 7, 1), ("launch", 9, 300), ("wait", 8, 1), ("launch", 8, 20), ("record", 9, 1),
    ]  # fmt: skip
    made, pid = scheduled(program, 25), 1 << 48
    with sqlite3.connect(tmp_path / "report.sqlite") as db:
        db.executescript(SCHEMA + NSYS)
        db.execute("INSERT INTO TARGET_INFO_SESSION_START_TIME VALUES (?, '', '')", (EPOCH_NS,))
        names = [e["name"] for e in made.events]
        db.executemany("INSERT INTO StringIds VALUES (?, ?)", enumerate(names))
        shared: dict[int, int] = {}
        for code, event in enumerate(made.events):
            args, start = event["args"], int(event["ts"] * 1000)
            end, correlation = start + int(event["dur"] * 1000), args["correlation"]
            if event["cat"] == "cuda_runtime":
                row = (start, end, 0, pid + 9, correlation, code, 0)
                db.execute("INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME VALUES (?,?,?,?,?,?,?)", row)
                kind, stream, value = program[correlation - 1]
                if kind == "record":
                    shared[value] = 50 + correlation if has_sync_id else -1
                    row = (0, 1, 0, stream, correlation, pid, value, shared[value], 0)
                    db.execute("INSERT INTO CUPTI_ACTIVITY_KIND_CUDA_EVENT VALUES "
                               "(?,?,?,?,?,?,?,?,?)", row)  # fmt: skip
                if kind == "wait":
                    row = (start, end, 0, 1, 0, stream, correlation, pid, 0, 2, value)
                    db.execute("INSERT INTO CUPTI_ACTIVITY_KIND_SYNCHRONIZATION VALUES "
                               "(?,?,?,?,?,?,?,?,?,?,?,?)", (*row, shared[value]))  # fmt: skip
            elif event["cat"] == "kernel":
                row = (start, end, 0, 1, args["stream"], correlation, pid, code, code,
                       1, 1, 1, 128, 1, 1, 32, 0, 0, None)  # fmt: skip
                marks = ",".join("?" * len(row))
                db.execute(f"INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES ({marks})", row)
    db.close()
    run = open_run(str(tmp_path / "report.sqlite"), jobs=1)
    assert behind(run, Evidence.STREAM, Evidence.EVENT) == made.behind
    assert not np.isin(step_graph(run).evidence, INFERRED).any()
    assert not any("SYNCHRONIZATION" in name for name in run.sources[0].unused)


HIP_EVENTS = """
CREATE TABLE rocpd_hip_event (id INTEGER PRIMARY KEY, guid TEXT, nid INT, pid INT, tid INT,
  agent_id INT, queue_id INT, stream_id INT, source_queue_id INT, hip_event_handle INT, start INT,
  end INT, name_id INT, event_id INT);
"""


@pytest.mark.parametrize("all_waits", [True, False])
def test_rocpd_states_waits(tmp_path: Path, all_waits: bool) -> None:
    """Schema 3.0.4. A wait for an event that had been reached when the host called leaves no row:
    the times may show it."""
    program: list[Op] = [
        ("launch", 7, 90), ("record", 7, 1), ("wait", 8, 1), ("launch", 8, 70), ("launch", 7, 40),
        ("record", 7, 1), ("launch", 9, 300), ("wait", 8, 1), ("launch", 8, 20), ("record", 9, 1),
        ("record", 10, 2), ("wait", 9, 2), ("launch", 9, 30), ("wait", 10, 1), ("launch", 10, 9),
    ]  # fmt: skip
    made = scheduled(program, 25)
    source_of: dict[int, int] = {}
    with sqlite3.connect(tmp_path / "1_results.db") as db:
        db.executescript(MINIMAL_SCHEMA.replace("{u}", "") + HIP_EVENTS)
        insert(db, "rocpd_metadata", tag="schema_version", value="3.0.4")
        for code, text in ((1, "HIP_EVENT_RECORD"), (2, "HIP_EVENT_WAIT")):
            insert(db, "rocpd_string", id=code, guid="g", string=text)
        insert(db, "rocpd_info_process", id=1, guid="g", nid=1, pid=500)
        insert(db, "rocpd_info_agent", id=2, guid="g", nid=1, pid=1, type="GPU", absolute_index=4)
        kernels = {e["args"]["correlation"]: e for e in made.events if e["cat"] == "kernel"}
        for number, (kind, stream, value) in enumerate(program, 1):
            common = {"id": number, "guid": "g", "nid": 1, "pid": 1}
            on = {**common, "agent_id": 2, "queue_id": stream, "event_id": number}
            event = {"id": number, "guid": "g", "stack_id": 10 * number}
            insert(db, "rocpd_event", **event, correlation_id=0)
            if kind == "launch":
                insert(db, "rocpd_info_kernel_symbol", **common, kernel_name=f"k{number}")
                begin = int(1000 * kernels[number]["ts"])
                times = {"start": begin, "end": begin + 1000 * value}
                insert(db, "rocpd_kernel_dispatch", **on, **times, kernel_id=number,
                       dispatch_id=number)  # fmt: skip
            elif kind == "record" or all_waits or number < 10:
                source_of[value] = stream if kind == "record" else source_of[value]
                insert(db, "rocpd_hip_event", **on, name_id=1 + (kind == "wait"), start=1, end=2,
                       source_queue_id=source_of[value], hip_event_handle=value)  # fmt: skip
    db.close()
    run = open_run(str(tmp_path / "1_results.db"), jobs=1)
    found = behind(run, Evidence.STREAM, Evidence.EVENT)
    if not all_waits:
        assert found[15] == set() and made.behind[15]
        found = {**found, 15: made.behind[15]}
    assert found == made.behind
    assert not any("rocpd_hip_event (" in note for note in run.sources[0].notes)
