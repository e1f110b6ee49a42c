"""Chakra traces that are written: what feeders need of them, and mutants that the check rejects."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from chopper_core.extensions.chakra.et import EtFile, write_et
from chopper_core.extensions.chakra.lint import GROUP_FILE, lint
from chopper_core.extensions.chakra.schema import (
    Attribute,
    CommType,
    Metadata,
    Node,
    NodeType,
    encode_node,
)
from chopper_core.graph.dependencies import dependencies, time_order
from chopper_core.ingest.open import open_run
from chopper_core.model.address import parse
from chopper_core.model.parallel import ProcessGroup
from chopper_core.model.run import Run
from chopper_core.model.table import Kind
from chopper_core.render.exports import ExportOptions, export
from chopper_core.util.errors import DataError
from chopper_core.views.query import frame_of
from chopper_tui.cli import main
from tests.realdata.conftest import FOLDER
from tests.support import Row, run_of
from tests.wording import Wording

RCCL = "ncclDevKernel_Generic_1(ncclDevKernelArgsStorage<4096ul>)"


def a_run(gpus: int = 4) -> Run:
    """A step on each GPU: compute, collectives of the world and of pairs, a copy, idle time."""
    rows, sizes, labels = [], [], []
    for gpu in range(gpus):
        late = 700 * gpu
        for start, lasts, kind, stream, operation, size, group in (
            (0, 5_300, Kind.COMPUTE, 0, "qkv_ip", -1, ""),
            (5_400, 2_700, Kind.COMM, 9, "all_gather", 4096, "0 (default_pg) of 4"),
            (8_500, 1_234, Kind.COMM, 9, "all_reduce", 512, f"{1 + gpu // 2} (tp) of 2"),
            (9_900, 4_000, Kind.COMPUTE, 0, "mlp_dp", -1, ""),
            (14_000, 600, Kind.COPY, 3, "copy", 64, ""),
            (20_000, 900, Kind.COMM, 9, "broadcast", 256, "0 (default_pg) of 4"),
        ):
            name = RCCL if kind == Kind.COMM else operation
            rows.append(Row(start + late, lasts, kind, stream, gpu, 1, 0, 2, operation, name))
            sizes.append(size)
            labels.append(group)
    run = run_of(rows, "made")
    names = (*run.table.names, *sorted({label for label in labels if label}))
    group = np.array([names.index(each) if each else -1 for each in labels], np.int32)
    return replace(run, table=replace(run.table, names=names, bytes=np.array(sizes), group=group))


def nodes_of(path: Path) -> list[Node]:
    with EtFile(path) as file:
        return list(file)


@pytest.fixture
def out(tmp_path: Path) -> Path:
    export(a_run(), "chakra", tmp_path / "out")
    return tmp_path / "out"


def test_files_are_numbered_and_have_a_group_file(out: Path) -> None:
    assert sorted(path.name for path in out.iterdir()) == [
        GROUP_FILE,
        *(f"made.{rank}.et" for rank in range(4)),
    ]
    assert json.loads((out / GROUP_FILE).read_text()) == {"1": [0, 1], "2": [2, 3]}
    assert lint([out]).violations == []


def test_collectives_have_what_feeders_read(out: Path) -> None:
    nodes = nodes_of(out / "made.2.et")
    assert [each.id for each in nodes] == [1, 2, 3, 4, 5, 6]
    assert all(not each.ctrl_deps for each in nodes)
    comm = [each for each in nodes if each.type == NodeType.COMM_COLL]
    assert [
        {name: each.attributes[name] for name in ("is_cpu_op", "comm_type", "comm_size", "pg_name")}
        for each in comm
    ] == [
        {
            "is_cpu_op": Attribute("bool", False),
            "comm_type": Attribute("int64", int(kind)),
            "comm_size": Attribute("int64", size),
            "pg_name": Attribute("string", group),
        }
        for kind, size, group in (
            # The table has an all-gather's output: each of four ranks puts in a quarter.
            (CommType.ALL_GATHER, 1024, "0"),
            (CommType.ALL_REDUCE, 512, "2"),
            (CommType.BROADCAST, 256, "0"),
        )
    ]


def test_dependencies_are_those_of_the_graph(out: Path) -> None:
    run = a_run()
    for rank in range(4):
        rows = time_order(run.table, np.flatnonzero(run.table.gpu == rank))
        deps = dependencies(run.table, rows)
        wanted = [(deps.source[deps.target == place] + 1).tolist() for place in range(len(rows))]
        assert [each.data_deps for each in nodes_of(out / f"made.{rank}.et")] == wanted
    assert wanted[1] == [1] and len(wanted[3]) == 2


def test_gaps_fill_the_idle_time(tmp_path: Path) -> None:
    run = a_run(1)
    export(run, "chakra", tmp_path / "out", ExportOptions(gaps=True))
    assert lint([tmp_path / "out"]).violations == []
    nodes = nodes_of(tmp_path / "out" / "made.0.et")
    gaps = [each for each in nodes if each.name == "host_gap"]
    # Idle: 100 ns (left out), 400 ns (left out), 5,400 ns before the broadcast; 14,000 ns on: 100.
    assert [(each.duration_us, each.get("is_cpu_op")) for each in gaps] == [(5, True)]
    after = next(each for each in nodes if gaps[0].id in each.data_deps)
    assert after.get("op") == "broadcast"
    busy = {each.id: each for each in nodes}
    end: dict[int, int] = {}
    for each in nodes:
        begin = max((end[dep] for dep in each.data_deps), default=0)
        end[each.id] = begin + (each.get("dur_ns") or each.duration_us * 1000)
    span = int((run.table.start_ns + run.table.duration_ns).max())
    assert abs(max(end.values()) - span) < 2_000 and len(busy) == len(nodes)


@pytest.mark.parametrize("change", ["kind", "size"])
def test_members_that_differ_are_refused_and_named(
    change: str, tmp_path: Path, wording: Wording
) -> None:
    run = a_run()
    table = run.table
    row = 6 * 3 + 2
    if change == "kind":
        operation = table.operation.copy()
        operation[row] = table.operations.index("all_gather")
        run = replace(run, table=replace(table, operation=operation))
        says = "collective 1 is all_reduce of 512 B on rank 2 and all_gather of 512 B on rank 3"
    else:
        size = table.bytes.copy()
        size[row] = 1024
        run = replace(run, table=replace(table, bytes=size))
        says = "collective 1 is all_reduce of 512 B on rank 2 and all_reduce of 1,024 B on rank 3"
    with pytest.raises(DataError, match="nothing was written") as refused:
        export(run, "chakra", tmp_path / "out")
    wording(str(refused.value), "'2 (tp) of 2'", says)
    assert not (tmp_path / "out").exists()
    notes = export(run, "chakra", tmp_path / "out", ExportOptions(force=True))
    (note,) = notes
    wording(note, "2 collectives", "'2 (tp) of 2'", says)
    written = sum(len(nodes_of(path)) for path in (tmp_path / "out").glob("*.et"))
    assert written == len(run.table) - 2
    assert lint([tmp_path / "out"]).violations == []


@pytest.mark.parametrize("are_listed", [True, False])
def test_a_member_without_any_collective_of_its_group_is_missed(
    are_listed: bool, tmp_path: Path, wording: Wording
) -> None:
    run = a_run()
    table = run.table.take(np.delete(np.arange(len(run.table)), 6 * 3 + 2))
    groups = (ProcessGroup("1", "tp", (0, 1)), ProcessGroup("2", "tp", (2, 3)))
    run = replace(run, table=table, groups=groups if are_listed else ())
    says = "collective 1 is all_reduce of 512 B on rank 2 and missing on rank 3"
    with pytest.raises(DataError) as refused:
        export(run, "chakra", tmp_path / "out")
    wording(str(refused.value), says if are_listed else "only 1 of its 2 ranks")


def test_sends_without_a_peer_are_counted(tmp_path: Path, wording: Wording) -> None:
    run = run_of([Row(0, 5, Kind.COMM, operation="send_recv", kernel=RCCL)])
    (note,) = export(run, "chakra", tmp_path / "out")
    wording(note, "1 communication kernel", "COMP")
    (node,) = nodes_of(tmp_path / "out" / "made.0.et")
    assert (node.type, node.get("kind")) == (NodeType.COMP, "comm")


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("int64", "calm"),
        ("string", 3),
        ("string", ["a"]),
        ("bytes", "calm"),
        ("float", 1e300),
        ("fixed32", 1 << 40),
        ("int64_list", 3),
        ("string_list", [3]),
        ("mood", "calm"),
    ],
)
def test_an_attribute_of_another_type_is_named(kind: str, value: Any, wording: Wording) -> None:
    node = Node(id=1, name="K", attributes={"comm_size": Attribute(kind, value)})
    with pytest.raises(DataError) as refused:
        encode_node(node)
    wording(str(refused.value), f"type {kind}", repr(str(value)))


def test_a_rank_with_several_gpus_is_a_file_per_gpu(tmp_path: Path) -> None:
    run = a_run()
    run = replace(run, gpus=tuple(replace(gpu, rank=gpu.index // 2) for gpu in run.gpus))
    export(run, "chakra", tmp_path / "out")
    again = open_run(str(tmp_path / "out"), jobs=1)
    assert [(gpu.index, gpu.rank) for gpu in again.gpus] == [(n, n) for n in range(4)]


def test_a_run_without_times_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="can't be simulated: the counter run has no dispatch"):
        export(run_of([Row(0, 0), Row(1, 0)]), "chakra", tmp_path / "out")


# The check


def mutated(out: Path, change: Callable[[list[Node]], object], rank: int = 0) -> list[str]:
    path = out / f"made.{rank}.et"
    nodes = nodes_of(path)
    change(nodes)
    with path.open("wb") as file:
        write_et(file, Metadata("1.0.0"), nodes)
    return list(lint([out]).violations)


def first_comm(nodes: list[Node]) -> Node:
    return next(each for each in nodes if each.type == NodeType.COMM_COLL)


def set_attribute(name: str, kind: str, value: int | str | bool) -> Callable[[list[Node]], None]:
    def change(nodes: list[Node]) -> None:
        first_comm(nodes).attributes[name] = Attribute(kind, value)

    return change


def as_message(node: Node, kind: NodeType, sender: int, receiver: int) -> None:
    ends = {"comm_src": sender, "comm_dst": receiver, "comm_tag": 5}
    node.type = int(kind)
    node.attributes |= {name: Attribute("int32", value) for name, value in ends.items()}
    node.attributes["comm_size"] = Attribute("int64", 8)


MUTANTS: dict[str, tuple[Callable[[list[Node]], object], str]] = {
    "a dangling data id": (
        lambda nodes: nodes[3].data_deps.append(99),
        "made.0.et: node 4 waits for node 99, which the file lacks (data_deps)",
    ),
    "a dangling control id": (
        lambda nodes: nodes[3].ctrl_deps.append(98),
        "made.0.et: node 4 waits for node 98, which the file lacks (ctrl_deps)",
    ),
    "a duplicate id": (
        lambda nodes: setattr(nodes[5], "id", 4),
        "made.0.et: has two nodes with the id 4",
    ),
    "a cycle": (
        lambda nodes: nodes[0].data_deps.append(2),
        "made.0.et: has a cycle: 1 waits for 2 waits for 1",
    ),
    "an unsigned comm_size": (
        set_attribute("comm_size", "uint64", 1024),
        "made.0.et: node 2 (ncclDevKernel_Generic_1(ncclDevKernelArg) has comm_size as uint64; "
        "it must be int64",
    ),
    "a collective on the CPU": (
        set_attribute("is_cpu_op", "bool", True),
        "made.0.et: node 2 (ncclDevKernel_Generic_1(ncclDevKernelArg) communicates, and is on the "
        "CPU (is_cpu_op true)",
    ),
    "a group's name that is no number": (
        set_attribute("pg_name", "string", "tp0"),
        "made.0.et: node 2 (ncclDevKernel_Generic_1(ncclDevKernelArg) has the pg_name 'tp0', which "
        "is not a decimal number",
    ),
    "a signed 32-bit comm_type": (
        set_attribute("comm_type", "int32", 2),
        "made.0.et: node 2 (ncclDevKernel_Generic_1(ncclDevKernelArg) has comm_type as int32; it "
        "must be int64",
    ),
    "a comm_type that isn't one": (
        set_attribute("comm_type", "int64", 42),
        "made.0.et: node 2 (ncclDevKernel_Generic_1(ncclDevKernelArg) is a collective without a "
        "valid comm_type",
    ),
    "a group's name as a number": (
        set_attribute("pg_name", "int64", 1),
        "made.0.et: node 2 (ncclDevKernel_Generic_1(ncclDevKernelArg) has pg_name as int64; it "
        "must be string",
    ),
    "a negative size": (
        set_attribute("comm_size", "int64", -8),
        "made.0.et: node 2 (ncclDevKernel_Generic_1(ncclDevKernelArg) has a comm_size of -8 B",
    ),
    "a node that waits for itself": (
        lambda nodes: nodes[2].data_deps.append(3),
        "made.0.et: has a cycle: 3 waits for 3",
    ),
    "a node without a type": (
        lambda nodes: setattr(nodes[0], "type", 9),
        "made.0.et: node 1 (qkv_ip) has the unknown type 9: the schema known here ends at 7",
    ),
    "a node of metadata": (
        lambda nodes: setattr(nodes[0], "type", int(NodeType.METADATA)),
        "made.0.et: node 1 (qkv_ip) is METADATA, at which ASTRA-sim's statistics crash",
    ),
    "collectives in another order": (
        lambda nodes: (
            first_comm(nodes).attributes.update(comm_type=Attribute("int64", 5)),
            nodes[5].attributes.update(comm_type=Attribute("int64", 2)),
        ),
        "process group 0: collective 1 is broadcast on rank 0 and all_gather of 1,024 B on rank 1",
    ),
    "a send without a peer": (
        lambda nodes: setattr(nodes[0], "type", int(NodeType.COMM_SEND)),
        "made.0.et: node 1 (qkv_ip) sends or receives without comm_dst",
    ),
    "a send that its peer doesn't receive": (
        lambda nodes: as_message(nodes[0], NodeType.COMM_SEND, 0, 1),
        "messages from rank 0 to 1 with tag 5: message 1 is a message of 8 B on rank 0 and missing "
        "on rank 1",
    ),
    "a send of another rank": (
        lambda nodes: as_message(nodes[0], NodeType.COMM_SEND, 2, 1),
        "made.0.et: node 1 (qkv_ip) sends on rank 0 and has the comm_src 2",
    ),
    "a receive from no rank": (
        lambda nodes: as_message(nodes[0], NodeType.COMM_RECV, 9, 0),
        "rank 9, which messages with tag 5 name, has no file",
    ),
    "a collective that a rank lacks": (
        lambda nodes: nodes.pop(),
        "process group 0: collective 2 is missing on rank 0 and broadcast on rank 1",
    ),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_each_mutant_is_rejected_in_a_sentence(name: str, out: Path) -> None:
    change, sentence = MUTANTS[name]
    assert sentence in mutated(out, change)


def test_nodes_that_simulators_skip_are_a_note(out: Path, wording: Wording) -> None:
    assert not mutated(out, lambda nodes: nodes.append(Node(99, "?", NodeType.INVALID)))
    (note,) = lint([out]).notes
    wording(note, "made.0.et: ", "1 INVALID node")


def test_one_cause_gives_no_flood_of_sentences(out: Path, wording: Wording) -> None:
    found = mutated(out, lambda nodes: nodes[5].data_deps.extend(range(100, 1100)))
    assert len(found) == 6
    wording(found[-1], "made.0.et: 995", "dangling data_deps")


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda out: (out / "made.2.et").unlink(), "rank 2 has no file"),
        (
            lambda out: (out / "made.2.et").write_bytes(
                gzip.compress((out / "made.2.et").read_bytes())
            ),
            "made.2.et: is compressed, and FeederV3 reads plain files only",
        ),
        (
            lambda out: (out / "made.2.et").rename(out / "other.2.et"),
            "the files have different prefixes: made, other",
        ),
        (
            lambda out: (out / "made.2.et").rename(out / "two.et"),
            "two.et is not named PREFIX.<rank>.et",
        ),
        (
            lambda out: (out / "made.2.et").write_bytes((out / "made.2.et").read_bytes()[:-5]),
            "made.2.et: is damaged: node 6 of the file claims",
        ),
        (
            lambda out: (out / GROUP_FILE).write_text('{"1": [0, 1]}'),
            "process group 2 is not in comm_group.json",
        ),
        (
            lambda out: (out / GROUP_FILE).write_text('{"1": [0], "2": [2, 3]}'),
            "rank 1 uses process group 1, but is not a member of it",
        ),
        (
            lambda out: (out / GROUP_FILE).write_text("[1]"),
            "comm_group.json is not a JSON object of group numbers and lists of ranks",
        ),
    ],
)  # fmt: skip
def test_files_that_do_not_fit_together_are_rejected(
    change: Callable[[Path], object], sentence: str, out: Path
) -> None:
    change(out)
    assert any(each.startswith(sentence) for each in lint([out]).violations)


def ring(folder: Path, ranks: int = 8) -> None:
    """A ring as ASTRA-sim's sample has it: each transfer names its other end alone."""
    folder.mkdir()
    for rank in range(ranks):
        nodes = []
        for number in range(4 * (ranks - 1)):
            is_send = number % 2 == 0
            peer = ("comm_dst", rank + 1) if is_send else ("comm_src", rank - 1)
            attributes = {
                "is_cpu_op": Attribute("bool", False),
                "comm_size": Attribute("int64", 1024),
                "comm_tag": Attribute("int32", number // 2),
                peer[0]: Attribute("int32", peer[1] % ranks),
            }
            kind = NodeType.COMM_SEND if is_send else NodeType.COMM_RECV
            node = Node(id=number, name=f"step {number // 2}", type=int(kind))
            node.attributes, node.duration_us = attributes, 5
            node.data_deps = [number - 1 - number % 2] if number > 1 else []
            nodes.append(node)
        with (folder / f"ring.{rank}.et").open("wb") as file:
            write_et(file, Metadata("1.0.0"), nodes)


def test_a_transfer_s_own_end_is_its_rank(tmp_path: Path, wording: Wording) -> None:
    ring(tmp_path / "ring")
    assert lint([tmp_path / "ring"]).violations == []
    (tmp_path / "ring" / "ring.7.et").unlink()
    (tmp_path / "ring" / "ring.0.et").rename(tmp_path / "ring" / "none.et")
    found = lint([tmp_path / "ring"]).violations
    wording.among(found, "none.et: node 0 (step 0)", "comm_src")


def test_a_transfer_counts_once(tmp_path: Path) -> None:
    ring(tmp_path / "ring")
    run = open_run(str(tmp_path / "ring"), jobs=1)
    frame = frame_of(run, parse("R?view=comms&columns=collectives,moved_bytes"))
    # 14 steps, in each of which a rank sends and receives.
    assert frame.row(0) == {"collectives": 28, "moved_bytes": 28 * 1024}
    assert not any("aren't matched" in note for note in frame.notes)


def test_violations_are_counted_not_their_lines(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], wording: Wording
) -> None:
    ring(tmp_path / "ring")
    for path in (tmp_path / "ring").iterdir():
        nodes = nodes_of(path)
        for node in nodes:
            del node.attributes["comm_tag"]
        with path.open("wb") as file:
            write_et(file, Metadata("1.0.0"), nodes)
    assert main(["check", str(tmp_path / "ring")]) == 1
    printed = capsys.readouterr()
    assert len(printed.out.splitlines()) == 8 * 6
    wording(printed.err, "8 files, 224 nodes: 224 violations")


def test_the_command_fails_for_a_violation(
    out: Path, capsys: pytest.CaptureFixture[str], wording: Wording
) -> None:
    assert main(["check", str(out)]) == 0
    wording(capsys.readouterr().err, "4 files, 24 nodes: no violations")
    change, sentence = MUTANTS["a cycle"]
    mutated(out, change)
    assert main(["check", str(out)]) == 1
    captured = capsys.readouterr()
    assert captured.out == f"{sentence}\n"
    wording(captured.err, "4 files, 24 nodes: 1 violation")


@pytest.mark.sweep
def test_rccls_generic_kernels_get_their_type(tmp_path: Path) -> None:
    """All of ddp4's kernels have one name: 15 all-reduces and 6 broadcasts of each rank."""
    if not (FOLDER / "mi300x_ddp4").exists():
        pytest.skip(f"no {FOLDER / 'mi300x_ddp4'}")
    export(open_run(str(FOLDER / "mi300x_ddp4"), jobs=1), "chakra", tmp_path / "out")
    assert lint([tmp_path / "out"]).violations == []
    for path in sorted((tmp_path / "out").glob("*.et")):
        comm = [each for each in nodes_of(path) if each.type == NodeType.COMM_COLL]
        assert all(each.name.startswith("ncclDevKernel_Generic") for each in comm)
        assert Counter(each.get("comm_type") for each in comm) == {
            CommType.ALL_REDUCE: 15,
            CommType.BROADCAST: 6,
        }
