"""Host traces beside Kineto traces: joined by id or order, for what Kineto lacks."""

from __future__ import annotations

import ast
import gzip
import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from chopper_core.api import OpenRun
from chopper_core.extensions.chakra import host_trace
from chopper_core.extensions.chakra.et import EtFile
from chopper_core.ingest import batches
from chopper_core.ingest.open import open_run
from chopper_core.model.run import Run
from chopper_core.model.table import Kind
from chopper_core.render import info
from chopper_core.render.exports import export
from chopper_core.store.reader import read_store
from chopper_core.util.errors import DataError
from tests.realdata.conftest import FOLDER
from tests.wording import Wording

PID = 4242
GROUPS = [
    {"pg_name": "0", "pg_desc": "default_pg", "ranks": [], "group_size": 8},
    {"pg_name": "3", "pg_desc": "tp", "ranks": [0, 1], "group_size": 2},
]
PRODUCT: tuple[Any, ...] = (
    [[1, 2, 0, 128, 2], [3, 4, 0, 512, 2]], ["c10::BFloat16"] * 2, [[5, 6, 0, 256, 2]], {}
)  # fmt: skip
OPERATORS: tuple[Any, ...] = (
    # Name, start, duration, inputs, their types, outputs, attributes of the collective.
    ("ProfilerStep#1", 0, 1000, [], [], [], {}),
    ("aten::mm", 10, 20, *PRODUCT),
    ("record_param_comms", 100, 40, [[5, 6, 0, 256, 2]], ["c10::BFloat16"], [[7, 8, 0, 512, 2]],
     {"collective_name": "_allgather_base", "dtype": "BFloat16", "in_msg_nelems": 256,
      "out_msg_nelems": 512, "pg_name": "3", "pg_desc": "tp", "pg_size": 2}),
    ("nccl:_all_gather_base", 110, 20, [[5, 6, 0, 256, 2]], ["c10::BFloat16"], [], {}),
    ("aten::mm", 200, 20, *PRODUCT),
)  # fmt: skip
SHAPES = {1: [8, 16], 3: [16, 32], 5: [8, 32], 7: [16, 32]}
FLOPS = 2 * 8 * 16 * 32


def kineto(path: Path, *, ids: bool = False, process: int = PID, rank: int | None = None) -> Path:
    """A trace without shapes and without the arguments of its collective."""
    events: list[dict[str, Any]] = []

    def event(name: str, cat: str, ts: float, dur: float, **args: Any) -> None:
        on = {"pid": 0, "tid": 7} if cat == "kernel" else {"pid": process, "tid": 1}
        events.append(
            {"ph": "X", "name": name, "cat": cat, "ts": ts, "dur": dur, "args": args, **on}
        )

    for number, (name, start, lasts, *_) in enumerate(OPERATORS):
        cat = "cpu_op" if name.startswith(("aten", "record")) else "user_annotation"
        event(name, cat, start, lasts, **({"Record function id": 90 + number} if ids else {}))
    for number, (start, kernel) in enumerate(
        ((12, "gemm"), (112, "ncclDevKernel_Generic_1(x)"), (202, "gemm"))
    ):
        event("hipLaunchKernel", "cuda_runtime", start, 2, correlation=number + 1)
        event(kernel, "kernel", start + 5, 10, correlation=number + 1, device=0, stream=7)
    document: dict[str, Any] = {"traceEvents": events}
    if rank is not None:
        document["distributedInfo"] = {"rank": rank, "world_size": 8}
    path.write_text(json.dumps(document))
    return path


def host(path: Path, schema: str, *, process: int | None = PID, more: int = 0) -> Path:
    """The host trace of the same operators; `more` times an operator that Kineto lacks."""
    nodes: list[dict[str, Any]] = [thread_node(schema)]
    operators = [*OPERATORS, *[("aten::mm", 900, 1, [], [], [], {})] * more]
    for number, (name, _, _, inputs, types, outputs, call) in enumerate(operators):
        nodes.append(node(schema, 10 + number, name, 90 + number, inputs, types, outputs, call))
    # Children are written before their callers: the order in the file is not that of starts.
    nodes.reverse()
    document = {"schema": schema, "time": "2026", "start_ts": 1, "nodes": nodes, "finish_ts": 2}
    document = {**({} if process is None else {"pid": process}), **document}
    text = json.dumps(document).encode()
    path.write_bytes(gzip.compress(text) if path.suffix == ".gz" else text)
    return path


def thread_node(schema: str) -> dict[str, Any]:
    text = json.dumps(GROUPS)
    return node(schema, 2, "## process_group:init ##", 0, [text], ["String"], [], {})


def node(
    schema: str,
    number: int,
    name: str,
    record_function: int,
    inputs: list[Any],
    types: list[str],
    outputs: list[Any],
    call: Mapping[str, Any],
) -> dict[str, Any]:
    values = [[*each, "cuda:0"] if isinstance(each, list) else each for each in inputs]
    shapes = [SHAPES[each[0]] if isinstance(each, list) else [] for each in inputs]
    kinds = [kind if kind == "String" else f"Tensor({kind})" for kind in types]
    made = [[*each, "cuda:0"] for each in outputs]
    # The collective calls its own range.
    parent = number - 1 if name.startswith("nccl:") else 2
    if call and schema in ("1.0.1", "1.0.2-chakra.0.0.4"):
        values, kinds = [*values, 3, "all_gather"], [*kinds, "Int", "String"]
        shapes = [*shapes, [], []]
    elif call and schema == "1.0.3-chakra.0.0.4":
        values, kinds = [*values, ["3", "tp"], "all_gather"], [*kinds, "Tuple", "String"]
        shapes = [*shapes, [], []]
    if schema == "1.0.1":
        return {
            "name": name, "id": number, "rf_id": record_function, "parent": parent, "tid": 1,
            "inputs": values, "input_shapes": shapes, "input_types": kinds,
            "outputs": made, "output_shapes": [], "output_types": [],
        }  # fmt: skip
    attributes: list[dict[str, Any]] = [
        {"name": "rf_id", "type": "uint64", "value": record_function},
        {"name": "tid", "type": "uint64", "value": 1},
    ]
    if schema >= "1.1":
        attributes += [{"name": key, "type": "", "value": value} for key, value in call.items()]
    io = {"values": values, "shapes": shapes, "types": kinds}
    if schema >= "1.1.1":
        io["strides"] = [[shape[1], 1] if shape else [] for shape in shapes]
    return {
        "id": number, "name": name, "ctrl_deps": parent, "inputs": io,
        "outputs": {"values": made, "shapes": [], "types": []}, "attrs": attributes,
    }  # fmt: skip


def comm_of(run: Run) -> tuple[str, int, str]:
    """Operation, bytes and group of the one collective."""
    table = run.table
    (row,) = np.flatnonzero(table.kind == Kind.COMM).tolist()
    group = table.names[table.group[row]] if table.group[row] >= 0 else ""
    return table.operations[table.operation[row]], int(table.bytes[row]), group


def flops_of(run: Run) -> list[float]:
    flops = run.table.measured["model_flops"]
    return flops[np.isfinite(flops)].tolist()


def test_without_a_host_trace_sizes_are_not_known(tmp_path: Path) -> None:
    run = open_run(str(kineto(tmp_path / "rank0.json")))
    assert comm_of(run) == ("all_gather", -1, "")
    assert flops_of(run) == [] and run.sources[0].notes == ()


@pytest.mark.parametrize("schema", host_trace.SCHEMAS[1:])
@pytest.mark.parametrize("ids", [True, False], ids=["by id", "by order"])
def test_a_host_trace_gives_shapes_sizes_and_groups(
    schema: str, ids: bool, tmp_path: Path, wording: Wording
) -> None:
    kineto(tmp_path / "trace.json", ids=ids)
    (tmp_path / "host").mkdir()
    host(tmp_path / "host" / "et_0.json.gz", schema)
    run = open_run(str(tmp_path))
    group = "3 (tp) of 2" if schema >= "1.0.3" else ""
    assert comm_of(run) == ("all_gather", 1024, group)
    assert flops_of(run) == [FLOPS, FLOPS]
    (note,) = run.sources[0].notes
    wording(note, f"schema {schema}", "5 of 5 operators", "id with" if ids else "order with")
    wording(note, "6 nodes", "4 tensors in 4 storages", "2 operators", "2 collective calls")
    assert note in info.info_text(run)
    assert not run.skipped


@pytest.mark.parametrize(("rows", "moved"), [(8, 4.0 * (8 * 16 + 16)), (9, None)])
def test_a_host_trace_gives_the_numbers_that_kineto_left_out(
    rows: int, moved: float | None, tmp_path: Path
) -> None:
    """The dimension of a sum, to a call of the same shapes; those of another call say nothing."""
    on = {"ph": "X", "pid": PID, "tid": 1}
    given = {"Input Dims": [[8, 16], [], [], []], "Input type": ["float", "ScalarList", "", ""]}
    launch = {"name": "hipLaunchKernel", "cat": "cuda_runtime", "ts": 12, "dur": 2}
    kernel = {"name": "reduce_kernel", "cat": "kernel", "ts": 20, "dur": 5, "pid": 0, "tid": 7}
    events = [
        on | {"name": "aten::sum", "cat": "cpu_op", "ts": 10, "dur": 20, "args": given},
        on | launch | {"args": {"correlation": 1}},
        on | kernel | {"args": {"correlation": 1, "device": 0, "stream": 7}},
    ]
    (tmp_path / "trace.json").write_text(json.dumps({"traceEvents": events}))
    own = {
        "name": "aten::sum", "id": 10, "rf_id": 1, "parent": 2, "tid": 1,
        "inputs": [[1, 2, 0, 16 * rows, 4, "cuda:0"], [0], True, "<None>"],
        "input_shapes": [[rows, 16], [[]], [], []],
        "input_types": ["Tensor(float)", "GenericList[Int]", "Bool", "None"],
        "outputs": [], "output_shapes": [], "output_types": [],
    }  # fmt: skip
    document = {"schema": "1.0.1", "pid": PID, "time": "2026", "start_ts": 1, "nodes": [own]}
    (tmp_path / "et_0.json").write_text(json.dumps(document | {"finish_ts": 2}))
    table = open_run(str(tmp_path)).table
    assert [*table.measured["model_bytes"]] == pytest.approx([moved or np.nan], nan_ok=True)


@pytest.mark.parametrize("schema", ["1.0.1", "1.1.1-chakra.0.0.4"])
def test_activities_have_the_tensors_of_their_operator(schema: str, tmp_path: Path) -> None:
    kineto(tmp_path / "trace.json")
    host(tmp_path / "et_0.json", schema)
    run = open_run(str(tmp_path))
    rows = OpenRun(run).kernels().to_pylist()
    # Time outside steps is of no operator.
    kernels = [each for each in rows if each["kernel"] != "outside steps"]
    found = {each["kernel"]: json.loads(each["attributes"]) for each in kernels}
    # Id, storage, offset, elements, bytes of an element, device.
    assert ast.literal_eval(found["gemm"]["inputs.values"]) == [
        [1, 2, 0, 128, 2, "cuda:0"],
        [3, 4, 0, 512, 2, "cuda:0"],
    ]
    assert ast.literal_eval(found["gemm"]["outputs.values"]) == [[5, 6, 0, 256, 2, "cuda:0"]]
    assert ast.literal_eval(found["gemm"]["inputs.shapes"]) == [[8, 16], [16, 32]]
    (gather,) = (name for name in found if name.startswith("nccl"))
    assert ast.literal_eval(found[gather]["inputs.values"])[0] == [5, 6, 0, 256, 2, "cuda:0"]
    export(run, "chakra", tmp_path / "out")
    with EtFile(next((tmp_path / "out").glob("*.et"))) as file:
        inputs = {each.name: each.inputs["values"] for each in file}
    assert inputs == {name: each["inputs.values"] for name, each in found.items()}
    again = OpenRun(open_run(str(tmp_path / "out"))).kernels().column("attributes").to_pylist()
    assert sorted(filter(None, again)) == sorted(each["attributes"] for each in kernels)


def test_by_order_a_name_must_occur_as_often_in_both(tmp_path: Path, wording: Wording) -> None:
    kineto(tmp_path / "trace.json")
    host(tmp_path / "et_0.json", "1.0.1", more=1)
    run = open_run(str(tmp_path))
    assert flops_of(run) == []
    assert comm_of(run)[1] == 1024
    wording(run.sources[0].notes[0], "3 of 5 operators", "by order", "7 nodes")


def test_by_id_other_operators_in_between_do_no_harm(tmp_path: Path) -> None:
    kineto(tmp_path / "trace.json", ids=True)
    host(tmp_path / "et_0.json", "1.0.1", more=1)
    run = open_run(str(tmp_path))
    assert flops_of(run) == [FLOPS, FLOPS]


def test_each_rank_gets_the_host_trace_of_its_process(tmp_path: Path) -> None:
    for rank in range(3):
        kineto(tmp_path / f"rank{rank}.json", process=PID + rank, rank=rank)
    # The numbers in the names of the host traces are those of other ranks.
    host(tmp_path / "et_1.json", "1.0.1", process=PID)
    host(tmp_path / "et_0.json", "1.0.1", process=PID + 1)
    host(tmp_path / "et_2.json", "1.0.1", process=999)
    run = open_run(str(tmp_path), jobs=1)
    used = [source.notes[0].split()[2] if source.notes else "" for source in run.sources]
    assert [Path(path).name for path in used] == ["et_1.json", "et_0.json", ""]
    assert [Path(path).name for path, _ in run.skipped] == ["et_2.json"]
    sizes = run.table.bytes[run.table.kind == Kind.COMM]
    assert sorted(sizes.tolist()) == [-1, 1024, 1024]


def test_without_process_ids_ranks_are_matched_by_name(tmp_path: Path) -> None:
    for rank in range(2):
        kineto(tmp_path / f"rank{rank}.json", rank=rank)
    host(tmp_path / "eg_1.json", "1.0.1", process=None)
    run = open_run(str(tmp_path), jobs=1)
    assert [bool(source.notes) for source in run.sources] == [False, True]


def test_processes_and_stores_give_the_same_run(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    for rank in range(2):
        kineto(tmp_path / "run" / f"rank{rank}.json", process=PID + rank, rank=rank)
        host(tmp_path / "run" / f"et_{rank}.json", "1.1.0-chakra.0.0.4", process=PID + rank)
    direct = open_run(str(tmp_path / "run"), jobs=1)
    batches.ingest_store(str(tmp_path / "run"), tmp_path / "store", jobs=1)
    for run in (direct, read_store(tmp_path / "store")):
        assert (run.table.bytes[run.table.kind == Kind.COMM] == 1024).all()
        assert all("joined by order" in source.notes[0] for source in run.sources)


def test_the_schema_with_another_layout_is_refused_by_name(
    tmp_path: Path, wording: Wording
) -> None:
    kineto(tmp_path / "trace.json")
    host(tmp_path / "et_0.json", "1.1.1-chakra.1.0.0")
    run = open_run(str(tmp_path))
    assert comm_of(run)[1] == -1
    assert "is not used" in run.sources[0].notes[0]
    wording(run.sources[0].notes[0], "schema 1.1.1-chakra.1.0.0")


@pytest.mark.parametrize("damage", ["cut", "a node of text", "nodes of text"])
def test_a_damaged_host_trace_costs_only_itself(
    damage: str, tmp_path: Path, wording: Wording
) -> None:
    kineto(tmp_path / "trace.json")
    path = host(tmp_path / "et_0.json", "1.0.1")
    text = path.read_text()
    path.write_text(
        {
            "cut": text[: len(text) // 2],
            "a node of text": text.replace('"nodes": [', '"nodes": ["x", '),
            "nodes of text": text[: text.index('"nodes"')] + '"nodes": "x"}',
        }[damage]
    )
    run = open_run(str(tmp_path))
    assert comm_of(run)[1] == -1
    wording(run.sources[0].notes[0], "host trace")


def test_a_host_trace_alone_names_what_it_needs(tmp_path: Path) -> None:
    path = host(tmp_path / "et_0.json", "1.0.1")
    with pytest.raises(DataError, match="give the Kineto trace of the same run"):
        open_run(str(path))


def real(name: str) -> Path:
    if not (FOLDER / name).exists():
        pytest.skip(f"no {FOLDER / name}")
    return FOLDER / name


def test_dlrms_64_collectives_get_their_sizes(wording: Wording) -> None:
    folder = real("v100_dlrm_8rank")
    run = open_run(str(folder), jobs=1)
    table = run.table
    comm = np.flatnonzero(table.kind == Kind.COMM)
    found = Counter((table.operations[table.operation[row]], int(table.bytes[row])) for row in comm)
    assert len(comm) == 64 and all(size > 0 for _, size in found)
    assert found["all_reduce", 1_576_964] == 8
    for source in run.sources:
        wording(source.notes[0], "1,672 of 1,673 operators", "by order", "1,675 nodes")
    assert not [path for path, _ in run.skipped if "execution_traces" in path]


@pytest.mark.parametrize("rank", range(8))
def test_dlrms_host_traces_have_the_known_nodes(rank: int) -> None:
    path = real("v100_dlrm_8rank") / "execution_traces" / f"dlrm_eg_{rank}.json"
    found = host_trace.read(path)
    calls = [node for node in found.nodes if node.name.startswith(host_trace.NCCL)]
    assert (len(found.nodes), found.schema, len(calls)) == (1675, "1.0.1", 8)
