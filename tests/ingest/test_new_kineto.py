"""Traces of Kineto since torch 2.10, and of torch's CUPTI backend, by their sources."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from chopper_core.graph.build import step_graph
from chopper_core.graph.dependencies import INFERRED, Evidence
from chopper_core.ingest.open import open_run
from chopper_core.model.view import View
from chopper_core.views.query import query
from tests.support import opened_events


@pytest.mark.parametrize("is_new", [True, False])
def test_hip_streams_and_their_queues_are_told_apart(tmp_path: Path, is_new: bool) -> None:
    """Since June 2026 `stream` is that of HIP, and two of them share a queue."""
    events = []
    for number, (stream, queue) in enumerate(((3, 1), (4, 1), (5, 2)), 1):
        args = {"device": 0, "stream": stream if is_new else queue, "correlation": number}
        args |= {"hsa_queue": queue} if is_new else {}
        events += [
            {"ph": "X", "cat": "cuda_runtime", "name": "hipLaunchKernel", "pid": 1, "tid": 1,
             "ts": 10 * number, "dur": 2, "args": {"correlation": number}},
            {"ph": "X", "cat": "kernel", "name": f"k{number}", "pid": 0, "tid": 0,
             "ts": 10 * number + 4, "dur": 3, "args": args},
        ]  # fmt: skip
    run = opened_events(tmp_path, events)
    assert sorted(run.table.stream.tolist()) == ([3, 4, 5] if is_new else [1, 1, 2])
    assert run.sources[0].facts["streams"] == ("HIP" if is_new else "HSA queues")
    frame = query(run, View("R", order=("kernel",), columns=("stream", "hsa_queue")))
    queues = frame.values["hsa_queue"].numbers.tolist()
    assert sorted(queues) == [1, 1, 2] if is_new else all(map(np.isnan, queues))
    assert np.isnan(frame.total["hsa_queue"] or np.nan)


def graph_trace(arrows: bool, through: bool = False) -> list[dict[str, Any]]:
    """Three replays of a graph of four kernels on streams 7 and 9, as torch's CUPTI backend writes
    them: 1 → 2 → 4 and 1 → 3; 4 starts 2 µs after 3, which it doesn't wait for. `through`: 1 → 3
    leads through an event node."""
    events: list[dict[str, Any]] = []
    number = 1 << 40
    for replay in range(3):
        begin, correlation = 1_000 + 500 * replay, 60 + replay
        times = {1: (7, 100, 40), 2: (7, 145, 60), 3: (9, 150, 80), 4: (7, 232, 30)}
        call = {"ph": "X", "cat": "cuda_runtime", "name": "cudaGraphLaunch", "pid": 5, "tid": 6,
                "ts": begin, "dur": 9, "args": {"correlation": correlation}}  # fmt: skip
        events.append(call)
        for node, (stream, at, took) in times.items():
            args = {"device": 0, "stream": stream, "correlation": correlation, "graph id": 3,
                    "graph node id": node}  # fmt: skip
            events.append({"ph": "X", "cat": "kernel", "name": f"k{node}", "pid": 0, "tid": stream,
                           "ts": begin + at, "dur": took, "args": args})  # fmt: skip
        if through:
            events.append({"ph": "X", "cat": "graph_event_node", "name": "EventRecord", "pid": 0,
                           "tid": 7, "ts": begin + 141, "dur": 1,
                           "args": {"device": 0, "stream": 7, "graph node id": 8}})  # fmt: skip
            times[8] = (7, 141, 1)
        links = [(1, 2), (2, 4), (1, 8), (8, 3)] if through else [(1, 2), (2, 4), (1, 3)]
        for source, target in links if arrows else ():
            lane, at, took = times[source]
            common = {"cat": "ac2g", "name": "ac2g", "pid": 0, "id": number}
            events.append({**common, "ph": "s", "tid": lane, "ts": begin + at + took})
            lane, at, _ = times[target]
            events.append({**common, "ph": "f", "bp": "e", "tid": lane, "ts": begin + at})
            number += 1
    return events


@pytest.mark.parametrize("through", [False, True])
def test_arrows_of_a_graph_are_what_its_kernels_wait_for(tmp_path: Path, through: bool) -> None:
    run = opened_events(tmp_path, graph_trace(arrows=True, through=through))
    graph = step_graph(run)
    name = [run.table.names[code] for code in run.table.kernel]
    own = graph.evidence == Evidence.EVENT
    pairs = [
        (name[graph.row[source]], name[graph.row[target]])
        for source, target in zip(graph.source[own], graph.target[own], strict=True)
    ]
    assert sorted(set(pairs)) == [("k1", "k2"), ("k1", "k3"), ("k2", "k4")]
    assert len(pairs) == 9 and not np.isin(graph.evidence, INFERRED).any()
    # Without them, that 4 starts right after 3 each time looks like a wait.
    bare = step_graph(opened_events(tmp_path, graph_trace(arrows=False)))
    assert np.isin(bare.evidence, INFERRED).any()


def test_kernels_of_a_graph_are_in_their_streams_and_not_in_lanes(tmp_path: Path) -> None:
    """torch's CUPTI backend draws the kernels of a graph in a lane that the user gives; in this one
    k2 holds k3 and half of k4, which no stream allows."""
    plain = graph_trace(arrows=True)
    drawn = graph_trace(arrows=True)
    for event in drawn:
        if event["cat"] == "kernel":
            event["args"] |= {"original_stream": event["args"]["stream"], "stream": 4000}
        if event["cat"] in ("kernel", "ac2g"):
            event["tid"] = 4000
    runs = []
    for name, events in (("plain", plain), ("drawn", drawn)):
        (tmp_path / name).mkdir()
        runs.append(opened_events(tmp_path / name, events))
    for column in ("stream", "start_ns", "duration_ns"):
        one, other = (np.sort(getattr(run.table, column)).tolist() for run in runs)
        assert one == other, column
    edges = [step_graph(run).evidence == Evidence.EVENT for run in runs]
    assert [int(each.sum()) for each in edges] == [9, 9]
    assert not any(doubt.kind == "impossible" for run in runs for doubt in run.doubts)


def test_old_traces_of_autograd_have_kernels_and_operators(tmp_path: Path) -> None:
    """`torch.autograd.profiler.profile(use_cuda=True)` up to torch 1.8: a list without categories,
    in which each operator's kernels follow it."""
    text = "["
    flow = 0
    for number, (name, kernels) in enumerate(
        (("aten::mm", ["sgemm_128x64"]), ("aten::relu", ["relu_kernel", "copy_kernel"]),
         ("aten::to", ["Memcpy HtoD (Pageable -> Device)"]))
    ):  # fmt: skip
        begin = 100.5 + 50 * number
        text += (f'{{"name": "{name}", "ph": "X", "ts": {begin}, "dur": 40.25, "tid": 1, '
                 '"pid": "CPU functions", "args": {}}, ')  # fmt: skip
        for place, kernel in enumerate(kernels):
            start = begin + 200 + 10 * place
            for ph, ts, process in (("s", begin, "CPU"), ("f", start, "CUDA")):
                text += (f'{{"name": "{kernel}", "ph": "{ph}", "ts": {ts}, "tid": 0, '
                         f'"pid": "{process} functions", "id": {flow}, "cat": "cpu_to_cuda", '
                         '"args": {}}, ')  # fmt: skip
            text += (f'{{"name": "{kernel}", "ph": "X", "ts": {start}, "dur": 7.125, "tid": 0, '
                     '"pid": "CUDA functions", "args": {}}, ')  # fmt: skip
            flow += 1
    path = tmp_path / "old.json"
    path.write_text(text.removesuffix(", ") + "]")
    run = open_run(str(path), jobs=1)
    table = run.table
    found = sorted(
        zip(table.start_ns.tolist(), [table.names[code] for code in table.kernel],
            [table.operations[code] for code in table.operation], strict=True)
    )  # fmt: skip
    assert found == [
        (300_500, "sgemm_128x64", "mm"),
        (350_500, "relu_kernel", "relu"),
        (360_500, "copy_kernel", "relu"),
        (400_500, "Memcpy HtoD (Pageable -> Device)", "to"),
    ]
    assert set(table.duration_ns.tolist()) == {7_125}
    assert run.sources[0].events == {
        "cpu_op": 3, "kernel": 3, "gpu_memcpy": 1, "cpu_to_cuda": 8,
    }  # fmt: skip


def test_gpus_of_torch_1_8_are_named_under_another_key(tmp_path: Path) -> None:
    event = {"ph": "X", "cat": "Kernel", "name": "k", "pid": 0, "tid": 7, "ts": 10, "dur": 5}
    devices = [{"id": 0, "name": "Tesla V100-DGXS-32GB"}]
    trace = {"schemaVersion": 1, "computeProperties": devices, "traceEvents": [event]}
    (tmp_path / "trace.json").write_text(json.dumps(trace))
    assert open_run(str(tmp_path / "trace.json")).gpus[0].hardware == "Tesla V100-DGXS-32GB"
