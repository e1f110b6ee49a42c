"""What Chakra traces give beside the kernel table: attributes of any type, and dependencies."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chopper_core.api import OpenRun
from chopper_core.extensions.chakra.et import EtFile, write_et
from chopper_core.extensions.chakra.graph import KEPT
from chopper_core.extensions.chakra.lint import lint
from chopper_core.extensions.chakra.schema import Attribute, CommType, Metadata, Node, NodeType
from chopper_core.graph.build import step_graph
from chopper_core.graph.dependencies import stated
from chopper_core.graph.path import longest_path, work_alone
from chopper_core.graph.step_graph import replay
from chopper_core.ingest.open import open_run
from chopper_core.model.attributes import Attributes, StatedEdges, TypedValue, nodes_at
from chopper_core.model.run import Run
from chopper_core.model.view import View
from chopper_core.render import as_json, as_text
from chopper_core.render.exports import ExportOptions, export
from chopper_core.render.glyphs import UNICODE
from chopper_core.store.reader import read_store
from chopper_core.store.writer import write_store
from chopper_core.views.query import frame_of
from chopper_tui.draw.figures import detail
from chopper_tui.widgets.detail import full_detail
from tests.ingest.chakra_files import node, sorted_rows, written
from tests.wording import Wording

VALUES: dict[str, Any] = {
    "double": 0.1, "float": 0.5, "int32": -3, "int64": -(2**62), "uint32": 2**32 - 1,
    "uint64": 2**64 - 1, "sint32": -7, "sint64": -(2**63), "fixed32": 9, "fixed64": 2**63,
    "sfixed32": -11, "sfixed64": -(2**40), "bool": True, "string": "calm, \"quoted\" \x1b[0m",
    "bytes": b"\x00\xff", "double_list": [1.5, math.inf], "float_list": [0.25], "int32_list": [-1],
    "int64_list": [2**40], "uint32_list": [1, 2], "uint64_list": [2**64 - 1], "sint32_list": [-2],
    "sint64_list": [-(2**50)], "fixed32_list": [3], "fixed64_list": [2**60], "sfixed32_list": [-4],
    "sfixed64_list": [-5], "bool_list": [True, False], "string_list": ["a", ""],
    "bytes_list": [b"", b"\x80"],
}  # fmt: skip
"""A value of each of the schema's types."""


def everything(folder: Path) -> Path:
    """A trace whose first activity has an attribute of each type, and inputs."""
    own = {f"my_{kind}": Attribute(kind, value) for kind, value in VALUES.items()}
    first = node(1, 5, name="gemm", stream=7)
    first.attributes |= own | {"empty": Attribute("", b"")}
    first.inputs = {"values": "[[11, 12, 0, 4, 4, 'cuda:0']]", "shapes": "[[2, 2]]"}
    other = node(2, 3, 1, name="silu", stream=7)
    other.attributes["my_int64"] = Attribute("string", "of another type")
    return written(folder / "t.0.et", [first, other])


def attributes_of(run: Run) -> dict[str, dict[str, TypedValue]]:
    """The attributes of each activity, by its kernel, GPU and start."""
    table = run.table
    nodes = nodes_at(table, slice(0, len(table))).tolist()
    return {
        f"{table.names[table.kernel[row]]} {table.gpu[row]} {table.start_ns[row]}": (
            run.side(Attributes).of(int(table.gpu[row]), nodes[row])
        )
        for row in range(len(table))
    }


def edges_of(run: Run) -> list[tuple[Any, ...]]:
    """The stated dependencies between activities, named as above."""
    table, edges = run.table, run.side(StatedEdges)
    nodes = nodes_at(table, slice(0, len(table))).tolist()
    names = {
        (int(table.gpu[row]), nodes[row]): (int(table.start_ns[row]), int(table.stream[row]))
        for row in range(len(table))
    }
    columns = (edges.gpu, edges.node, edges.before, edges.host_ns, edges.is_control)
    return sorted(
        (gpu, names[gpu, after], names.get((gpu, before), ()), host_ns, control)
        for gpu, after, before, host_ns, control in zip(
            *(each.tolist() for each in columns), strict=True
        )
    )


def exported(run: Run, folder: Path, **options: bool) -> Run:
    export(run, "chakra", folder, ExportOptions(**options))
    return open_run(str(folder), jobs=1)


def test_attributes_of_every_type_come_back(tmp_path: Path) -> None:
    run = open_run(str(everything(tmp_path)))
    first, other = attributes_of(run)["gemm 0 0"], attributes_of(run)["silu 0 5000"]
    assert {name: first[f"my_{name}"] for name in VALUES} == {
        kind: (kind, value) for kind, value in VALUES.items()
    }
    assert first["empty"] == ("", None)
    assert first["inputs.shapes"] == ("string", "[[2, 2]]")
    assert other == {"my_int64": ("string", "of another type")}
    write_store(run, tmp_path / "store")
    assert attributes_of(read_store(tmp_path / "store")) == attributes_of(run)
    again = exported(run, tmp_path / "out")
    assert attributes_of(again) == attributes_of(run)
    assert attributes_of(exported(again, tmp_path / "twice"))["gemm 0 0"] == first
    with EtFile(tmp_path / "out" / "t.0.et") as file:
        written_node = next(iter(file))
    assert written_node.inputs == {"values": "[[11, 12, 0, 4, 4, 'cuda:0']]", "shapes": "[[2, 2]]"}
    assert lint([tmp_path / "out"]).violations == []


def test_attributes_are_shown(tmp_path: Path, wording: Wording) -> None:
    run = open_run(str(everything(tmp_path)))
    frame = frame_of(run, View(run.name, path=("0", "none", "none", "none", "gemm", "gemm")))
    (row,) = json.loads(as_json(frame))["rows"]
    assert row["attributes"]["my_uint64"] == 2**64 - 1
    assert row["attributes"]["my_double_list"] == [1.5, "inf"]
    assert row["attributes"]["my_bytes"] == "AP8="
    text = as_text(frame_of(run, frame.target(0)))
    assert 'my_string: calm, "quoted"' in text and "\x1b" not in text
    lines = [
        "".join(piece for piece, _ in line)
        for line in full_detail(detail(run, frame, 0), 60, UNICODE)
    ]
    wording.among(lines, "attributes in the trace")
    assert "my_int64_list: [1099511627776]" in lines
    kernels = OpenRun(run).kernels().column("attributes").to_pylist()
    assert {json.loads(each).get("my_int32") for each in kernels} == {-3, None}
    export(run, "parquet", tmp_path / "k.parquet")
    import pyarrow.parquet as pq

    assert pq.read_table(tmp_path / "k.parquet").column("attributes").to_pylist() == kernels


def test_the_text_of_no_value_is_a_value() -> None:
    """As where a damaged store has the code of another text."""
    names = ("bytes key", "string of", "[1]")
    code, number = np.zeros(3, np.int32), np.arange(3)
    text = np.array([1, 2, 2], np.int32)
    kinds = np.array([0, 0, 1], np.int32)
    found = Attributes(names, code, number, kinds, number, text)
    assert [found.of(0, node) for node in range(3)] == [
        {"key": ("bytes", "string of")},
        {"key": ("bytes", "[1]")},
        {"of": ("string", [1])},
    ]


def test_a_trace_without_attributes_has_no_column(tmp_path: Path) -> None:
    run = exported(open_run(str(everything(tmp_path))), tmp_path / "out")
    assert "attributes" in OpenRun(run).kernels().column_names
    plain = open_run(str(written(tmp_path / "plain.0.et", [node(1, 5, stream=7)])))
    assert "attributes" not in OpenRun(plain).kernels().column_names
    assert Attributes not in plain.side_tables


def synced(folder: Path) -> Path:
    """A thread that launches a kernel, waits for it and another, and launches a third."""
    nodes = [
        node(1, 5, name="aten::mm(0)", is_cpu_op=True, tid=1),
        node(2, 10, 1, name="gemm", stream=7),
        node(3, 20, 1, name="reduce", stream=9),
        node(4, 30, 2, 3, name="wait", is_cpu_op=True, tid=1),
        node(5, 7, 4, name="silu", stream=7),
        node(6, 1, 5, 2, name="last", stream=9),
    ]
    return written(folder / "t.0.et", nodes)


def test_the_graph_is_the_traces_own(tmp_path: Path, wording: Wording) -> None:
    run = open_run(str(synced(tmp_path)))
    names = {(5_000, 7): "gemm", (5_000, 9): "reduce", (55_000, 7): "silu", (62_000, 9): "last"}
    assert [(names[a], names.get(b, ""), host, c) for _, a, b, host, c in edges_of(run)] == [
        ("gemm", "", 5_000, 0),
        ("reduce", "", 5_000, 0),
        ("silu", "", 30_000, 0),
        ("silu", "gemm", 30_000, 0),
        ("silu", "reduce", 30_000, 0),
        ("last", "gemm", 0, 0),
        ("last", "silu", 0, 0),
    ]
    frame = frame_of(run, View(run.name, name="graph", by="node"))
    cells = [frame.row(row) for row in range(len(frame))]
    assert [cell["kernel_name"] for cell in cells] == ["reduce", "silu", "last"]
    assert [cell["path_ns"] for cell in cells] == [20_000, 7_000, 1_000]
    assert [cell["path_gap_ns"] for cell in cells] == [5_000, 30_000, 0]
    wording(cells[1]["evidence"], "stated by the trace")
    wording.among(frame.notes, "stated by the trace 57.1 %")


@pytest.mark.parametrize("gaps", [False, True])
def test_stated_dependencies_come_back(gaps: bool, tmp_path: Path) -> None:
    run = open_run(str(synced(tmp_path)))
    again = exported(run, tmp_path / "out", gaps=gaps)
    assert edges_of(again) == edges_of(run) == edges_of(exported(again, tmp_path / "twice"))
    assert sorted_rows(again) == sorted_rows(run)
    assert lint([tmp_path / "out"]).violations == []
    write_store(run, tmp_path / "store")
    assert edges_of(read_store(tmp_path / "store")) == edges_of(run)


def test_control_dependencies_count_where_no_host_node_is(tmp_path: Path) -> None:
    path = written(tmp_path / "t.0.et", [node(1, 5), node(2, 3, ctrl=[1], stream=2)])
    run = open_run(str(path))
    assert run.table.start_ns.max() == 5_000
    assert [(host, control) for *_, host, control in edges_of(run)] == [(0, 0), (0, 1)]
    again = exported(run, tmp_path / "out")
    assert edges_of(again) == edges_of(run)
    with EtFile(tmp_path / "out" / "t.0.et") as file:
        assert [(each.data_deps, each.ctrl_deps) for each in file] == [([], []), ([], [1])]


@st.composite
def graphs(draw: st.DrawFn) -> list[Node]:
    """Any graph without cycles of activities and host nodes."""
    nodes: list[Node] = []
    for number in range(1, draw(st.integers(2, 14)) + 1):
        needs = draw(st.sets(st.integers(1, number - 1), max_size=3)) if number > 1 else set()
        is_host = draw(st.booleans()) and number > 1
        lane = draw(st.integers(0, 2))
        values: dict[str, Any] = {"tid": lane} if is_host else {"stream": lane, "seq_id": number}
        lasts = draw(st.integers(1, 9))
        nodes.append(node(number, lasts, *needs, name=f"n{number}", is_cpu_op=is_host, **values))
    return nodes


@pytest.mark.sweep
@given(graphs())
def test_the_longest_path_is_that_of_the_whole_graph(
    tmp_path_factory: pytest.TempPathFactory, nodes: list[Node]
) -> None:
    folder = tmp_path_factory.mktemp("et")
    run = open_run(str(written(folder / "t.0.et", nodes)))
    ends: dict[int, int] = {}
    for each in nodes:
        ends[each.id] = each.duration_us + max((ends[need] for need in each.data_deps), default=0)
    wanted = max(ends[each.id] for each in nodes if not each.get("is_cpu_op"))
    graph = step_graph(run)
    length = int(work_alone(graph).end_ns.max())
    assert length == wanted * 1_000
    found = replay(graph)
    path = longest_path(graph, found, graph.activities)
    whole = found.end_ns[graph.activities].max() - found.begin_ns[path.nodes[0]]
    assert int(path.work_ns.sum() + path.gap_ns.sum()) == whole
    again = exported(run, folder / "out")
    assert edges_of(again) == edges_of(run)
    assert attributes_of(again) == attributes_of(run)
    found = stated(again, np.arange(len(again.table)))
    assert found is not None
    assert int(work_alone(step_graph(again)).end_ns.max()) == length


# Sends and receives


def pipeline(folder: Path, *, receives: int = 2) -> Path:
    """A rank that sends two messages to the next, and what that receives."""
    folder.mkdir()
    for rank, kind, count in ((0, NodeType.COMM_SEND, 2), (1, NodeType.COMM_RECV, receives)):
        nodes = [
            node(
                k + 1,
                5,
                *([k] if k else []),
                name="ncclDevKernel_SendRecv",
                type=int(kind),
                stream=9,
            )
            for k in range(count)
        ]
        for each in nodes:
            each.attributes |= {
                "comm_src": Attribute("int32", 0),
                "comm_dst": Attribute("int32", 1),
                "comm_tag": Attribute("int32", 3),
                "comm_size": Attribute("int64", 640),
            }
        written(folder / f"t.{rank}.et", [*nodes, node(9, 1, name="gemm", stream=7)])
    return folder


def test_sends_and_receives_are_written_with_their_peer(tmp_path: Path) -> None:
    run = open_run(str(pipeline(tmp_path / "in")), jobs=1)
    assert export(run, "chakra", tmp_path / "out") == []
    for rank, kind in ((0, NodeType.COMM_SEND), (1, NodeType.COMM_RECV)):
        with EtFile(tmp_path / "out" / f"in.{rank}.et") as file:
            sent = [each for each in file if each.type == kind]
        assert len(sent) == 2
        for each in sent:
            assert {
                name: each.attributes[name] for name in ("comm_src", "comm_dst", "comm_tag")
            } == {
                "comm_src": Attribute("int32", 0),
                "comm_dst": Attribute("int32", 1),
                "comm_tag": Attribute("int32", 3),
            }
            assert each.attributes["comm_size"] == Attribute("int64", 640)
    assert lint([tmp_path / "out"]).violations == []
    again = open_run(str(tmp_path / "out"), jobs=1)
    assert attributes_of(again) == attributes_of(run) and edges_of(again) == edges_of(run)
    assert sorted_rows(again) == sorted_rows(run)


def test_a_send_without_its_receive_is_refused(tmp_path: Path, wording: Wording) -> None:
    run = open_run(str(pipeline(tmp_path / "in", receives=1)), jobs=1)
    with pytest.raises(
        Exception,
        match="in messages from GPU 0 to 1, with tag 3, message 2 is a message of 640 B on rank 0",
    ):
        export(run, "chakra", tmp_path / "out")
    assert not (tmp_path / "out").exists()
    (note,) = export(run, "chakra", tmp_path / "out", ExportOptions(force=True))
    wording(note, "3 sends and receives", "GPU 0 to 1")


def test_the_peer_of_a_measured_send_is_that_of_its_arguments(tmp_path: Path) -> None:
    """As PyTorch's profiler describes sends: `Dst Rank`, of receives `Src Rank`."""
    for rank, (name, key) in enumerate((("send", "Dst Rank"), ("recv", "Src Rank"))):
        events = [
            {"ph": "X", "cat": "kernel", "name": "ncclDevKernel_SendRecv(x)", "pid": 0, "tid": 9,
             "ts": 10 + 20 * k, "dur": 5, "args": {
                 "device": 0, "stream": 9, "Collective name": name, key: 1 - rank, "dtype": "Float",
                 "In msg nelems": 64, "Out msg nelems": 64, "Group size": 2}}
            for k in range(2)
        ]  # fmt: skip
        header = {"distributedInfo": {"rank": rank, "world_size": 2}}
        (tmp_path / f"rank{rank}.json").write_text(json.dumps({**header, "traceEvents": events}))
    run = open_run(str(tmp_path), jobs=1)
    assert export(run, "chakra", tmp_path / "out") == []
    assert lint([tmp_path / "out"]).violations == []
    for rank, kind in ((0, NodeType.COMM_SEND), (1, NodeType.COMM_RECV)):
        with EtFile(next((tmp_path / "out").glob(f"*.{rank}.et"))) as file:
            sent = [each for each in file if each.type == kind]
        assert [(each.get("comm_src"), each.get("comm_dst"), each.get("comm_tag"),
                 each.get("comm_size")) for each in sent] == 2 * [(0, 1, 0, 256)]  # fmt: skip
    again = open_run(str(tmp_path / "out"), jobs=1)
    assert sorted_rows(again) == sorted_rows(run)
    assert CommType.ALL_REDUCE == 0


# Files that lie


@pytest.mark.few(6)
@pytest.mark.parametrize("name", ["dependencies_ns", "node_type"])
@pytest.mark.parametrize("value", ["NONSENSE", -5, 2**63 - 1, ["a"], [1, 2, 3], [0, 1, -1]])
def test_a_file_that_claims_to_be_choppers_own_is_read_or_refused(
    name: str, value: Any, tmp_path: Path
) -> None:
    kinds = {str: "string", int: "int64"}
    kind = kinds.get(type(value)) or f"{kinds[type(value[0])]}_list"
    nodes = [node(1, 5, stream=7), node(2, 5, 1, stream=7)]
    for each in nodes:
        each.attributes[name] = Attribute(kind, value)
    names = Attribute("string_list", ["node_type", "comm_src"])
    metadata = Metadata("1.0.0", {"schema": Attribute("string", "chopper.et/1"), KEPT: names})
    with (tmp_path / "t.0.et").open("wb") as file:
        write_et(file, metadata, nodes)
    run = open_run(str(tmp_path / "t.0.et"))
    frame_of(run, View(run.name, name="graph"))
    assert edges_of(exported(run, tmp_path / "out")) == edges_of(run)
