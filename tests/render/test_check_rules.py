"""`chopper check` against the rules themselves: what it accepts runs, what it rejects does not.

The rules are those of `tests/oracles/astra_sim.py`, written apart from Chopper's check.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import pytest

from chopper_core.extensions.chakra.et import write_et
from chopper_core.extensions.chakra.lint import GROUP_FILE, lint
from chopper_core.extensions.chakra.schema import Attribute, CommType, Metadata, Node, NodeType
from tests.oracles.astra_sim import ALL_REDUCE, ALL_TO_ALL, SIMULATED, random_delay, runs
from tests.realdata.conftest import FOLDER
from tests.render.test_feeder_rules import issued_by_classic, issued_by_v3, nodes_of
from tests.wording import Wording

TOOLS = Path(os.environ.get("CHAKRA_TOOLS") or Path(sys.executable).parent)


def write(folder: Path, ranks: list[list[Node]], groups: dict[int, list[int]]) -> None:
    folder.mkdir()
    for rank, nodes in enumerate(ranks):
        with (folder / f"t.{rank}.et").open("wb") as file:
            write_et(file, Metadata("1.0.0"), nodes)
    if groups:
        (folder / GROUP_FILE).write_text(json.dumps(groups))


def attributes(**values: Any) -> dict[str, Attribute]:
    kinds = {"is_cpu_op": "bool", "tensor_size": "uint64", "pg_name": "string"}
    kinds |= dict.fromkeys(("comm_src", "comm_dst", "comm_tag"), "int32")
    return {name: Attribute(kinds.get(name, "int64"), each) for name, each in values.items()}


def valid(draw: random.Random) -> tuple[list[list[Node]], dict[int, list[int]]]:
    """Ranks with the same collectives and matching messages, one after the other."""
    ranks = draw.randint(2, 4)
    groups = {1: [0, 1]} if draw.random() < 0.7 else {}
    found: list[list[Node]] = [[] for _ in range(ranks)]

    def add(rank: int, kind: NodeType, **values: Any) -> None:
        own = found[rank]
        given = attributes(is_cpu_op=False, **values)
        node = Node(len(own) + 1, kind.name, kind, attributes=given, duration_us=1)
        node.data_deps = [len(own)] if own else []
        own.append(node)

    for step in range(draw.randint(2, 5)):
        what = draw.choice(("comp", "coll", "message", "memory"))
        if what == "coll":
            group = draw.choice([0, *groups])
            kind = draw.choice(sorted(SIMULATED))
            for rank in groups.get(group, range(ranks)):
                values = {"comm_type": kind, "comm_size": 64, "pg_name": str(group)}
                add(rank, NodeType.COMM_COLL, **values)
        elif what == "message":
            sender, receiver = draw.sample(range(ranks), 2)
            ends = {"comm_src": sender, "comm_dst": receiver, "comm_tag": step, "comm_size": 8}
            add(sender, NodeType.COMM_SEND, **ends)
            add(receiver, NodeType.COMM_RECV, **ends)
        else:
            for rank in range(ranks):
                add(rank, NodeType.COMP) if what == "comp" else add(
                    rank, NodeType.MEM_LOAD, tensor_size=8
                )
    for rank in range(ranks):
        add(rank, NodeType.COMP)
    return found, groups


def change(draw: random.Random, ranks: list[list[Node]], groups: dict[int, list[int]]) -> str:
    """One change of a valid trace, which may leave it valid."""
    nodes = draw.choice(ranks)
    node = draw.choice(nodes)
    what = draw.choice(("drop", "attribute", "dependency", "type", "groups", "node"))
    if what == "drop" and node.attributes:
        node.attributes.pop(draw.choice(sorted(node.attributes)))
    elif what == "attribute":
        name, kind, value = draw.choice((
            ("comm_type", "int64", draw.randint(0, 9)),
            ("comm_size", "int64", draw.choice((64, 128))),
            ("pg_name", "string", draw.choice(("0", "", "1", "2", "tp0", " 1", "+1", "1b", "-1"))),
            ("is_cpu_op", "bool", draw.random() < 0.5),
            ("comm_src", "int32", draw.randint(0, 5)),
            ("comm_dst", "int32", draw.randint(0, 5)),
            ("comm_tag", "int32", draw.randint(0, 2)),
            ("involved_dim", draw.choice(("bool_list", "int64_list")), [1]),
            ("comm_size", "string", "64"),
        ))  # fmt: skip
        node.attributes[name] = Attribute(kind, value)
    elif what == "dependency":
        deps = draw.choice((node.data_deps, node.ctrl_deps))
        deps.append(draw.choice((99, draw.randint(1, len(nodes)))))
    elif what == "type":
        node.type = int(draw.choice((*list(NodeType)[1:], NodeType.COMP)))
    elif what == "groups":
        groups[draw.choice((1, 2))] = draw.choice(([0, 1], [0], [0, 1, 9], [1, 0]))
    elif node is nodes[-1] or draw.random() < 0.5:
        # The last node: nothing waits for it.
        nodes.pop()
    return what


@pytest.mark.few(50)
@pytest.mark.parametrize("seed", range(200))
def test_the_check_and_the_rules_agree(seed: int, tmp_path: Path) -> None:
    draw = random.Random(seed)
    ranks, groups = valid(draw)
    write(tmp_path / "valid", ranks, groups)
    assert lint([tmp_path / "valid"]).violations == [] and runs(tmp_path / "valid")
    what = change(draw, ranks, groups)
    write(tmp_path / "changed", ranks, groups)
    violations = lint([tmp_path / "changed"]).violations
    if violations:
        # Without a rendezvous a send that nobody receives ends.
        assert not runs(tmp_path / "changed", rendezvous=True), (what, violations)
    else:
        assert runs(tmp_path / "changed"), what


def collective(number: int, kind: int, group: int, *needs: int, size: int = 4096) -> Node:
    values = {"comm_type": kind, "comm_size": size, "pg_name": str(group), "is_cpu_op": False}
    node = Node(number, f"c{number}", NodeType.COMM_COLL, attributes=attributes(**values))
    node.data_deps, node.duration_us = [*needs], 5
    return node


def compute(number: int, lasts_us: int, *needs: int) -> Node:
    given = attributes(is_cpu_op=False)
    return Node(number, f"k{number}", NodeType.COMP, [], [*needs], 0, lasts_us, attributes=given)


@pytest.mark.parametrize("kind", sorted(SIMULATED))
def test_a_collective_of_one_rank_never_ends(kind: int, tmp_path: Path, wording: Wording) -> None:
    """But a broadcast, which ASTRA-sim replays."""
    ranks = [[collective(1, kind, 1 + rank)] for rank in range(2)]
    write(tmp_path / "groups", ranks, {1: [0], 2: [1]})
    write(tmp_path / "world", [[collective(1, kind, 0)]], {})
    name = CommType(kind).name.lower()
    does_end = kind == CommType.BROADCAST
    for folder, who in (("groups", "process group 1"), ("world", "the trace")):
        found = lint([tmp_path / folder]).violations
        assert runs(tmp_path / folder) == does_end == (not found)
        if not does_end:
            wording(found[0], f"{who} has one rank", f"its {name}")
    # One file of a larger trace says nothing of its world.
    (tmp_path / "world" / "t.0.et").rename(tmp_path / "t.5.et")
    assert lint([tmp_path / "t.5.et"]).violations == []


@pytest.mark.parametrize("kind", sorted(SIMULATED - {CommType.BROADCAST}))
def test_members_send_the_same_size(kind: int, tmp_path: Path, wording: Wording) -> None:
    ranks = [[collective(1, kind, 0, size=size)] for size in (4096, 4096, 8192)]
    write(tmp_path / "t", ranks, {})
    (found,) = lint([tmp_path / "t"]).violations
    name = CommType(kind).name.lower()
    sizes = f"{name} of 4,096 B on rank 0 and {name} of 8,192 B on rank 2"
    wording(found, "process group 0: collective 1", sizes)
    assert not runs(tmp_path / "t")


@pytest.mark.parametrize("kind", sorted(SIMULATED))
def test_collectives_without_bytes(kind: int, tmp_path: Path) -> None:
    write(tmp_path / "t", [[collective(1, kind, 0, size=0)]] * 2, {})
    assert runs(tmp_path / "t") == (lint([tmp_path / "t"]).violations == [])
    write(tmp_path / "few", [[collective(1, kind, 0, size=3)]] * 2, {})
    assert runs(tmp_path / "few") == (lint([tmp_path / "few"]).violations == [])
    write(tmp_path / "more", [[collective(1, kind, 0, size=63)]] * 2, {})
    report = lint([tmp_path / "more"])
    assert runs(tmp_path / "more") and report.violations == []
    assert len(report.notes) == (kind == CommType.ALL_GATHER)


def test_ranks_that_wait_for_each_other_are_named(tmp_path: Path, wording: Wording) -> None:
    """Each keeps all rules of the files, but communication comes one at a time."""
    groups = {1: [0, 1], 2: [0, 1]}
    ranks = [[collective(1, ALL_REDUCE, 1), collective(2, ALL_REDUCE, 2)] for _ in range(2)]
    ranks[1] = [compute(3, 9), collective(1, ALL_REDUCE, 1, 3), collective(2, ALL_REDUCE, 2)]
    write(tmp_path / "t", ranks, groups)
    assert not runs(tmp_path / "t")
    (note,) = lint([tmp_path / "t"]).violations
    wording(
        note,
        "0 of 2 ranks",
        "rank 0 waits in node 1 (c1) for rank 1",
        "rank 1 waits in node 2 (c2) for rank 0",
    )
    # A dependency between them fixes the order, at any speed.
    for own in ranks:
        own[-1].data_deps = [1]
    write(tmp_path / "fixed", ranks, groups)
    report = lint([tmp_path / "fixed"])
    assert (report.violations, report.notes) == ([], [])
    assert all(runs(tmp_path / "fixed", random_delay(seed)) for seed in range(5))


def test_an_order_that_depends_on_speed_is_a_note(tmp_path: Path, wording: Wording) -> None:
    nodes = [compute(1, 5), collective(2, ALL_TO_ALL, 0, 1), collective(3, ALL_REDUCE, 1)]
    write(tmp_path / "t", [nodes, nodes], {1: [0, 1]})
    report = lint([tmp_path / "t"])
    assert report.violations == [] and runs(tmp_path / "t")
    (note,) = report.notes
    wording(note, "t.0.et and 1 more", "order of collectives")


def test_nodes_that_no_event_issues_stop_a_rank(tmp_path: Path, wording: Wording) -> None:
    """ASTRA-sim skips a node without a type, and looks for what it freed at the next event."""
    first = Node(1, "?", NodeType.INVALID)
    write(tmp_path / "t", [[first, compute(2, 5, 1)], [compute(1, 5)]], {})
    assert not runs(tmp_path / "t")
    (note,) = lint([tmp_path / "t"]).violations
    wording(note, "1 of 2 ranks", "rank 0 never issues node 2 (k2)")


@pytest.mark.parametrize("seed", range(60))
def test_any_dependencies(seed: int, tmp_path: Path) -> None:
    """Collectives of several groups behind any nodes: where the check says that the order is fixed,
    its word holds at any speed, and else at that of the trace."""
    draw = random.Random(seed)
    groups = {1: [0, 1], 2: [1, 2], 3: [0, 2]}
    ranks: list[list[Node]] = [[] for _ in range(3)]
    for _ in range(6):
        group = draw.choice((0, *groups))
        kind = draw.choice((ALL_REDUCE, ALL_TO_ALL))
        for rank, own in enumerate(ranks):
            for _ in range(draw.randint(0, 2)):
                needs = draw.sample(range(1, len(own) + 1), min(len(own), 1))
                own.append(compute(len(own) + 1, draw.randint(1, 30), *needs))
            if rank in groups.get(group, range(3)):
                is_ordered = draw.random() < 0.7
                needs = [len(own)] if own and is_ordered else []
                own.append(collective(len(own) + 1, kind, group, *needs))
    write(tmp_path / "t", ranks, groups)
    report = lint([tmp_path / "t"])
    at_any_speed = [runs(tmp_path / "t", random_delay(number)) for number in range(6)]
    if not report.notes:
        assert len({*at_any_speed}) == 1
        assert at_any_speed[0] == (not report.violations), report.violations
    elif report.violations:
        # Each rank takes as long as the trace says.
        assert not all([*at_any_speed, runs(tmp_path / "t", lambda _: 1)])


def test_unsupported_collectives_are_named(tmp_path: Path, wording: Wording) -> None:
    values = attributes(comm_type=int(CommType.BARRIER), comm_size=0, is_cpu_op=False)
    write(tmp_path / "t", [[Node(1, "barrier", NodeType.COMM_COLL, attributes=values)]], {})
    (note,) = lint([tmp_path / "t"]).violations
    wording(note, "t.0.et: node 1 (barrier)", "BARRIER")
    assert not runs(tmp_path / "t")


@pytest.mark.skipif(not (TOOLS / "chakra_generator").exists(), reason="mlc-chakra isn't installed")
def test_samples_of_upstream_s_generator(tmp_path: Path) -> None:
    """Each by itself: what the rules refuse the check refuses, and nothing else."""
    command = [str(TOOLS / "chakra_generator"), "--num_npus", "2"]
    subprocess.run(command, cwd=tmp_path, check=True, capture_output=True)
    names = sorted({path.name.split(".")[0] for path in tmp_path.glob("*.et")})
    assert len(names) == 14
    for name in names:
        (tmp_path / name).mkdir()
        for path in tmp_path.glob(f"{name}.*.et"):
            path.rename(tmp_path / name / path.name)
        assert runs(tmp_path / name) == (not lint([tmp_path / name]).violations), name


@pytest.mark.skipif(not (FOLDER / "chakra").exists(), reason=f"no {FOLDER / 'chakra'}")
def test_upstream_s_samples(tmp_path: Path, wording: Wording) -> None:
    """The classic feeder issues all of them; FeederV3 and ASTRA-sim stop, for what the check says:
    control dependencies, and communication on the CPU."""
    for name in ("feeder_tests_trace", "json_trace"):
        with tarfile.open(FOLDER / "chakra" / f"{name}.tar.gz") as archive:
            archive.extractall(tmp_path, filter="data")
    (path,) = tmp_path.rglob("chakra.0.et")
    nodes = nodes_of(path)
    assert len(issued_by_classic(nodes)) == len(nodes) == 3664
    found = lint([path])
    rest = [each for each in found.violations if "ctrl_deps" not in each]
    *on_cpu, more, of_one = rest
    assert found.count > len(rest) and all("on the CPU" in each for each in on_cpu)
    wording(more, "chakra.0.et: 9 ", "CPU")
    wording(of_one, "one rank", "all_reduce")
    with pytest.raises(KeyError):
        issued_by_v3(nodes)
    assert not runs(path.parent)
    for own in nodes:
        own.ctrl_deps = []
        if own.type == NodeType.COMM_COLL:
            # Some are on the CPU, and the others are of one rank.
            own.type = int(NodeType.COMP)
    write(tmp_path / "mended", [nodes], {})
    assert lint([tmp_path / "mended"]).violations == [] and runs(tmp_path / "mended")
    for name, count in (("chakra", 3664), ("small_chakra", 7)):
        report = lint([*tmp_path.rglob(f"{name}.0.json")])
        assert (report.nodes, report.violations) == (count, [])


def test_the_feeder_s_json_is_checked(tmp_path: Path, wording: Wording) -> None:
    """Its feeder knows no control dependencies, and never ends at a data dependency that lacks."""
    nodes = [
        {"Id": 1, "Name": "a", "NodeType": 4, "ctrlDeps": [7], "data_deps": [], "is_cpu_op": True},
        {"Id": 2, "Name": "b", "NodeType": 4, "data_deps": [1, 9], "is_cpu_op": False},
        {"Id": 2, "Name": "c", "NodeType": 4, "data_deps": [], "is_cpu_op": False},
        {"Id": 3, "Name": "d", "NodeType": 4, "data_deps": [3], "is_cpu_op": False},
    ]
    (tmp_path / "t.0.json").write_text(json.dumps({"workload_graph": nodes}))
    first, second, third = lint([tmp_path]).violations
    wording(first, "t.0.json: ", "two nodes with the id 2")
    wording(second, "t.0.json: node 2 waits for node 9", "data_deps")
    wording(third, "t.0.json: ", "cycle: 3 waits for 3")
