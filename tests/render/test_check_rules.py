"""`chopper check` against the rules themselves: what it accepts runs, what it rejects does not.

ASTRA-sim's workload on FeederV3 is written anew here from its source, apart from Chopper's check:
a node is issued when its dependencies are done, its attributes are read as the C++ reads them, a
collective ends when all members are in it, a receive when its message is there.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from chopper_core.extensions.chakra.et import write_et
from chopper_core.extensions.chakra.lint import GROUP_FILE, lint
from chopper_core.extensions.chakra.schema import Attribute, CommType, Metadata, Node, NodeType
from tests.realdata.conftest import FOLDER
from tests.render.test_feeder_rules import issued_by_classic, issued_by_v3, nodes_of

TOOLS = Path(os.environ.get("CHAKRA_TOOLS") or Path(sys.executable).parent)
INTEGERS = ("int32", "int64", "uint32", "uint64", "sint32", "sint64", "bool")
SIMULATED = {0, 2, 5, 6, 7}


class Aborted(Exception):
    """ASTRA-sim ends, or never does."""


def number(node: Node, name: str, default: int | None = None) -> int:
    attribute = node.attributes.get(name)
    if attribute is None:
        if default is None:
            raise Aborted(f"Attribute {name} not found")
        return default
    if attribute.type not in INTEGERS:
        raise Aborted("bad cast")
    return int(attribute.value) % 2**64  # type: ignore[arg-type]


def group_of(node: Node, groups: dict[int, list[int]], ranks: int) -> tuple[int, list[int]]:
    attribute = node.attributes.get("pg_name")
    if attribute is None or attribute.value in ("", "0"):
        return 0, list(range(ranks))
    if attribute.type != "string":
        raise Aborted("bad cast")
    digits = ""
    for at, character in enumerate(str(attribute.value).lstrip()):
        if not ((character.isascii() and character.isdigit()) or (at == 0 and character in "+-")):
            break
        digits += character
    if not digits.strip("+-"):
        raise Aborted("stoi")
    if int(digits) not in groups:
        raise Aborted("communicator group not found")
    return int(digits), groups[int(digits)]


def run(folder: Path) -> None:
    """Issue all nodes of all ranks; raises Aborted where ASTRA-sim ends without having done so."""
    paths = {int(path.name.split(".")[-2]): path for path in folder.glob("*.et")}
    nodes = [{node.id: node for node in nodes_of(paths[rank])} for rank in range(len(paths))]
    listed = folder / GROUP_FILE
    groups = (
        {int(k): v for k, v in json.loads(listed.read_text()).items()} if listed.exists() else {}
    )
    needs = [{n: {*each.data_deps, *each.ctrl_deps} for n, each in own.items()} for own in nodes]
    if any(
        need not in own
        for own, of in zip(nodes, needs, strict=True)
        for n in of.values()
        for need in n
    ):
        raise Aborted("not found in index")
    if not all(any(not of for of in each.values()) for each in needs):
        raise Aborted("No dependancy free nodes found")
    entered: dict[tuple[int, int], dict[int, tuple[Any, ...]]] = {}
    counts: dict[tuple[int, int], int] = {}
    waiting: list[tuple[int, int, Callable[[], bool]]] = []
    messages: dict[tuple[int, ...], int] = {}
    done = [set[int]() for _ in nodes]
    issued = [set[int]() for _ in nodes]
    moved = True
    while moved:
        moved = False
        for rank, own in enumerate(nodes):
            for n in sorted(own):
                if n in issued[rank] or needs[rank][n] - done[rank]:
                    continue
                issued[rank].add(n)
                moved = True
                ends = issue(own[n], rank, groups, len(nodes), entered, counts, messages)
                waiting.append((rank, n, ends))
        for rank, n, ends in list(waiting):
            if ends():
                done[rank].add(n)
                waiting.remove((rank, n, ends))
                moved = True
    if any(len(own) != len(of) for own, of in zip(nodes, done, strict=True)):
        raise Aborted("ranks never finish")


def issue(
    node: Node,
    rank: int,
    groups: dict[int, list[int]],
    ranks: int,
    entered: dict[tuple[int, int], dict[int, tuple[Any, ...]]],
    counts: dict[tuple[int, int], int],
    messages: dict[tuple[int, ...], int],
) -> Callable[[], bool]:
    """Issue a node; returns whether it has ended by now."""
    if node.type in (NodeType.MEM_LOAD, NodeType.MEM_STORE):
        number(node, "tensor_size")
    elif node.type == NodeType.COMP:
        number(node, "is_cpu_op", 0)
    elif node.type not in (NodeType.COMM_COLL, NodeType.COMM_SEND, NodeType.COMM_RECV):
        raise Aborted("Unknown node type")
    if node.type < NodeType.COMM_SEND:
        return lambda: True
    if number(node, "is_cpu_op", 0):
        raise Aborted("Comm node should not be on CPU")
    if node.type == NodeType.COMM_COLL:
        if (
            "involved_dim" in node.attributes
            and node.attributes["involved_dim"].type != "bool_list"
        ):
            raise Aborted("Expected bool_list in involved_dim")
        group, members = group_of(node, groups, ranks)
        kind, size = number(node, "comm_type"), number(node, "comm_size")
        if rank not in members or max(members) >= ranks:
            raise Aborted("not a member")
        if kind not in SIMULATED:
            raise Aborted("Unsupported collective comm type")
        place = counts[rank, group] = counts.get((rank, group), 0) + 1
        moves = (kind, size if kind in (0, 2, 7) else None)
        there = entered.setdefault((group, place), {})
        there[rank] = moves
        return lambda: {*there} == {*members} and len({*there.values()}) == 1
    is_send = node.type == NodeType.COMM_SEND
    sender = number(node, "comm_src", rank if is_send else None)
    receiver = number(node, "comm_dst", None if is_send else rank)
    if rank != (sender if is_send else receiver):
        raise Aborted("should be issued by the sender")
    if (receiver if is_send else sender) >= ranks:
        raise Aborted("no such system")
    key = (sender, receiver, number(node, "comm_tag"), number(node, "comm_size"))
    if is_send:
        messages[key] = messages.get(key, 0) + 1
        # It ends once its message is received.
        return lambda: messages[key] == 0

    def received() -> bool:
        found = messages.get(key, 0) > 0
        messages[key] = messages.get(key, 0) - found
        return found

    return received


def runs(folder: Path) -> bool:
    try:
        run(folder)
    except Aborted:
        return False
    return True


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


@pytest.mark.parametrize("seed", range(200))
def test_the_check_and_the_rules_agree(seed: int, tmp_path: Path) -> None:
    draw = random.Random(seed)
    ranks, groups = valid(draw)
    write(tmp_path / "valid", ranks, groups)
    assert lint([tmp_path / "valid"]).violations == [] and runs(tmp_path / "valid")
    what = change(draw, ranks, groups)
    write(tmp_path / "changed", ranks, groups)
    violations = lint([tmp_path / "changed"]).violations
    assert runs(tmp_path / "changed") == (not violations), (what, violations)


def test_unsupported_collectives_are_named(tmp_path: Path) -> None:
    values = attributes(comm_type=int(CommType.BARRIER), comm_size=0, is_cpu_op=False)
    write(tmp_path / "t", [[Node(1, "barrier", NodeType.COMM_COLL, attributes=values)]], {})
    assert lint([tmp_path / "t"]).violations == [
        "t.0.et: node 1 (barrier) is a BARRIER, which ASTRA-sim can't simulate"
    ]
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
def test_upstream_s_samples(tmp_path: Path) -> None:
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
    assert found.count > len(rest) and all("on the CPU" in each for each in rest[:-1])
    assert rest[-1] == "chakra.0.et: 9 more like this: CPU"
    with pytest.raises(KeyError):
        issued_by_v3(nodes)
    assert not runs(path.parent)
    for own in nodes:
        own.ctrl_deps = []
        if own.type == NodeType.COMM_COLL and own.get("is_cpu_op"):
            own.type = int(NodeType.COMP)
    write(tmp_path / "mended", [nodes], {})
    assert lint([tmp_path / "mended"]).violations == [] and runs(tmp_path / "mended")
    for name, count in (("chakra", 3664), ("small_chakra", 7)):
        report = lint([*tmp_path.rglob(f"{name}.0.json")])
        assert (report.nodes, report.violations) == (count, [])


def test_the_feeder_s_json_is_checked(tmp_path: Path) -> None:
    """Its feeder knows no control dependencies, and never ends at a data dependency that lacks."""
    nodes = [
        {"Id": 1, "Name": "a", "NodeType": 4, "ctrlDeps": [7], "data_deps": [], "is_cpu_op": True},
        {"Id": 2, "Name": "b", "NodeType": 4, "data_deps": [1, 9], "is_cpu_op": False},
        {"Id": 2, "Name": "c", "NodeType": 4, "data_deps": [], "is_cpu_op": False},
        {"Id": 3, "Name": "d", "NodeType": 4, "data_deps": [3], "is_cpu_op": False},
    ]
    (tmp_path / "t.0.json").write_text(json.dumps({"workload_graph": nodes}))
    assert lint([tmp_path]).violations == [
        "t.0.json: has two nodes with the id 2",
        "t.0.json: node 2 waits for node 9, which the file lacks (data_deps)",
        "t.0.json: has a cycle: 3 waits for 3",
    ]
