"""Replayed graphs whose nodes were marked at capture: names from a file next to the trace, or from
the events themselves."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from chopper_core.align.graph_marks import layer_of, operation_of
from chopper_core.ingest.open import open_run
from chopper_core.model.run import Run
from chopper_core.model.table import NO_LABEL, activity_rows
from tests.align.traces import ADD, FLASH, GEMM, TinyTrace
from tests.wording import Wording

GRAPH = 9 << 32
PARTS = (("attention_norm", ADD), ("attention.wq", GEMM), ("attention", FLASH),
         ("feed_forward.w2", GEMM))  # fmt: skip
NODES = [
    (GRAPH + 10 * layer + place + 1, f"layers.{layer}.{part}", kernel)
    for layer in range(2)
    for place, (part, kernel) in enumerate(PARTS)
]
EXPECTED = {
    number: (layer, operation)
    for (number, _, _), (layer, operation) in zip(
        NODES,
        [(layer, op) for layer in range(2) for op in ("attn_n", "q_ip", "attn_fa", "mlp_dp")],
        strict=True,
    )
}


def replay(bits: int = (1 << 64) - 1, **args: str) -> TinyTrace:
    """Two launches of a graph whose nodes run on two streams, in another order on the second."""
    trace = TinyTrace(members={"distributedInfo": {"rank": 0, "world_size": 1}})
    for step in range(2):
        begin = 1_000 * step
        trace.note(f"ProfilerStep#{step}", begin, begin + 900)
        trace.call("cudaGraphLaunch", begin + 5, 70 + step)
        for place, (number, mark, kernel) in enumerate(NODES[:: 1 - 2 * step]):
            event = trace.gpu(kernel, begin + 20 + 10 * place, correlation=70 + step,
                              stream=7 + place % 2)  # fmt: skip
            event["args"] |= {"graph node id": number & bits, "graph id": 9}
            event["args"] |= dict.fromkeys(args, mark)
    return trace


def found(run: Run, trace: TinyTrace) -> dict[int, tuple[int, str]]:
    """Layer and operation by the node, which the start of each kernel tells."""
    table = run.table
    node = {
        round(1000 * event["ts"]): event["args"]["graph node id"]
        for event in trace.events
        if "graph node id" in event.get("args", {})
    }
    own = activity_rows(table, np.arange(len(table)))
    assert len(own) == len(node)
    columns = (table.start_ns, table.layer, table.operation)
    rows = zip(*(each[own].tolist() for each in columns), strict=True)
    found: dict[int, set[tuple[int, str]]] = {}
    for start, layer, operation in rows:
        found.setdefault(node[start] | GRAPH, set()).add((layer, table.operations[operation]))
    assert all(len(each) == 1 for each in found.values())
    return {number: each.pop() for number, each in found.items()}


@pytest.mark.parametrize(
    "shape",
    [
        lambda mark: mark,
        lambda mark: {"module_fqn": mark, "stream": 62},
        lambda mark: [{"name": "step"}, {"name": mark, "stream": 61}],
    ],
)
@pytest.mark.parametrize("bits", [(1 << 64) - 1, (1 << 32) - 1])
def test_a_file_next_to_the_trace_names_the_nodes(
    tmp_path: Path, shape: Any, bits: int, wording: Wording
) -> None:
    trace = replay(bits)
    trace.write(tmp_path / "rank0.json")
    file = tmp_path / "kernel_annotations_rank0_fwd_bwd.json"
    file.write_text(json.dumps({str(number): shape(mark) for number, mark, _ in NODES}))
    run = open_run(str(tmp_path), jobs=1)
    assert found(run, trace) == EXPECTED
    assert run.skipped == ()
    (note,) = run.sources[0].notes
    wording(note, f"annotations {file}", "16 kernels")
    assert not run.sources[0].findings["kernels of graphs whose capture isn't in the traces"]


@pytest.mark.parametrize("key", ["annotation", "module_fqn", "name"])
def test_marks_in_the_events_themselves(tmp_path: Path, key: str) -> None:
    trace = replay(**{key: ""})
    trace.write(tmp_path / "rank0.json")
    assert found(open_run(str(tmp_path / "rank0.json"), jobs=1), trace) == EXPECTED


def test_an_id_of_two_graphs_names_nothing(tmp_path: Path) -> None:
    """The lower bits of both are those that the trace has."""
    trace = replay((1 << 32) - 1)
    trace.write(tmp_path / "rank0.json")
    marks = {str(number): mark for number, mark, _ in NODES}
    marks |= {str(number + (1 << 32)): "layers.7.x" for number, *_ in NODES[:4]}
    (tmp_path / "kernel_annotations_rank0_a.json").write_text(json.dumps(marks))
    layers = found(open_run(str(tmp_path), jobs=1), trace)
    assert {layer for layer, _ in [*layers.values()][:4]} == {NO_LABEL}
    assert {layer for layer, _ in [*layers.values()][4:]} == {1}


@pytest.mark.parametrize("text", ["[1, 2]", '{"a": 1}', "{", '{"5": {"stream": 1}}'])
def test_a_file_that_maps_nothing_is_named(tmp_path: Path, text: str) -> None:
    trace = replay()
    trace.write(tmp_path / "rank0.json")
    file = tmp_path / "kernel_annotations_rank0_a.json"
    file.write_text(text)
    run = open_run(str(tmp_path), jobs=1)
    (note,) = run.sources[0].notes
    assert note.startswith(f"annotations {file} are not used: {file} ")
    assert set(run.table.layer.tolist()) == {NO_LABEL}


def test_another_rank_s_file_names_nothing(tmp_path: Path) -> None:
    replay().write(tmp_path / "rank0.json")
    marks = {str(number): mark for number, mark, _ in NODES}
    (tmp_path / "kernel_annotations_rank1_a.json").write_text(json.dumps(marks))
    run = open_run(str(tmp_path), jobs=1)
    assert set(run.table.layer.tolist()) == {NO_LABEL} and not run.sources[0].notes


@pytest.mark.parametrize(
    ("mark", "layer", "operation"),
    [
        ("L['self'].model.layers[3].self_attn.q_proj", 3, "q_ip"),
        ("model.layers.12.mlp.gate_up_proj", 12, "mlp_gup"),
        ("transformer.h.0.attn.c_attn", 0, "qkv_ip"),
        ("model.norm", NO_LABEL, "ln"),
        ("layers.1.q_norm", 1, "q_norm"),
        ("layers.1.norm", 1, "norm"),
        ("lm_head", NO_LABEL, "lp"),
        ("tok_embeddings", NO_LABEL, "ie"),
        ("all_reduce of gradients", NO_LABEL, "all_reduce of gradients"),
    ],
)
def test_paths_of_modules(mark: str, layer: int, operation: str) -> None:
    assert (layer_of(mark), operation_of(mark, attends=False)) == (layer, operation)
