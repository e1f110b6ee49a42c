"""The graph of a run for Graphviz and in GraphML: nodes, edges, bounds, and names of any kind."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from msgspec.structs import replace

from chopper_core.graph.dependencies import dependencies, time_order
from chopper_core.ingest.open import open_run
from chopper_core.model.run import Run
from chopper_core.render.exports import ExportOptions, export
from chopper_core.util.errors import DataError
from chopper_core.util.escape import clean
from tests.ingest.chakra_files import node, written
from tests.render.test_chakra_export import a_run
from tests.render.test_chakra_host import a_step, with_host
from tests.support import Row, run_of
from tests.wording import Wording

Nodes = dict[str, dict[str, str]]
Edges = list[tuple[str, str, str]]
_GRAPHML = "{http://graphml.graphdrawing.org/xmlns}"
_LIST = r' \[((?:\w+="(?:[^"\\]|\\.)*"(?:, )?)*)\]'
_NODE = re.compile(rf"    (\w+){_LIST}")
_EDGE = re.compile(rf"  (\w+) -> (\w+){_LIST}")
_VALUE = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
NAMES = (
    'a"b', "back\\slash", "end\\", "new\nline", "<b>&amp;</b>", "]]>", "\x00\x1b[31m", "\ud800",
    "µ→", "\\N\\G\\l", "{|}", "x" * 3000, "", "-- # // /*",
)  # fmt: skip


def read_dot(path: Path) -> tuple[str, Nodes, Edges]:
    """Every line of the file is one that is known here."""
    title, nodes, edges, rank = "", {}, [], ""
    for line in path.read_text("utf-8").splitlines():
        values = {
            name: re.sub(r"\\(.)", lambda at: {"n": "\n"}.get(at[1], at[1]), text)
            for name, text in _VALUE.findall(line)
        }
        if line.startswith("  graph ["):
            title = values["label"]
        elif line.startswith("    graph ["):
            rank = values["label"]
        elif match := _NODE.fullmatch(line):
            assert rank == f"rank {values['rank']}"
            nodes[match[1]] = {**values, "name": values["tooltip"]}
        elif match := _EDGE.fullmatch(line):
            edges.append((match[1], match[2], values["kind"]))
        else:
            assert re.fullmatch(
                r"digraph run \{|  subgraph cluster_\d+ \{|  node \[.*\]| *\}", line
            ), line
    return title, nodes, edges


def read_graphml(path: Path) -> tuple[str, Nodes, Edges]:
    def data(element: ElementTree.Element) -> dict[str, str]:
        found = {each.attrib["key"]: each.text or "" for each in element.findall(f"{_GRAPHML}data")}
        assert found.keys() <= keys[element.tag.removeprefix(_GRAPHML)]
        return found

    root = ElementTree.parse(path).getroot()
    keys: dict[str, set[str]] = {}
    for key in root.findall(f"{_GRAPHML}key"):
        keys.setdefault(key.attrib["for"], set()).add(key.attrib["id"])
    (graph,) = root.findall(f"{_GRAPHML}graph")
    nodes = {each.attrib["id"]: data(each) for each in graph.findall(f"{_GRAPHML}node")}
    edges = [
        (each.attrib["source"], each.attrib["target"], data(each)["kind"])
        for each in graph.findall(f"{_GRAPHML}edge")
    ]
    assert {end for source, target, _ in edges for end in (source, target)} <= nodes.keys()
    return data(graph)["title"], nodes, edges


READ = {"dot": read_dot, "graphml": read_graphml}


def drawn(
    run: Run, to: str, folder: Path, **options: Any
) -> tuple[list[str], tuple[str, Nodes, Edges]]:
    path = folder / f"{len([*folder.iterdir()])}.{to}"
    notes = export(run, to, path, ExportOptions(**options))
    return notes, READ[to](path)


@pytest.fixture(params=sorted(READ))
def to(request: pytest.FixtureRequest) -> str:
    found: str = request.param
    return found


def test_nodes_are_the_activities_and_edges_their_dependencies(to: str, tmp_path: Path) -> None:
    run = a_run()
    notes, (title, nodes, edges) = drawn(run, to, tmp_path)
    table = run.table
    assert (notes, title) == ([], "made (generated)")
    wanted: Edges = []
    for gpu in range(4):
        rows = time_order(table, (table.gpu == gpu).nonzero()[0])
        for number, row in enumerate(rows.tolist(), 1):
            found = nodes[f"g{gpu}n{number}"]
            assert found["name"] == table.names[table.kernel[row]]
            assert found["type"] == ("compute", "comm", "copy")[table.kind[row]]
            assert found["operation"] == table.operations[table.operation[row]]
            numbers = {"rank": gpu, "start_ns": table.start_ns[row], "stream": table.stream[row]}
            numbers |= {"duration_ns": table.duration_ns[row], "iteration": 1, "layer": 2}
            assert {name: found[name] for name in numbers} == {
                name: str(value) for name, value in numbers.items()
            }
        deps = dependencies(table, rows)
        wanted += [
            (f"g{gpu}n{before + 1}", f"g{gpu}n{after + 1}", kind)
            for after, before, kind in zip(
                deps.target.tolist(),
                deps.source.tolist(),
                [("stream", "queued", "unknown", "host")[each] for each in deps.evidence],
                strict=True,
            )
        ]
    assert sorted(each for each in edges if each[2] != "collective") == sorted(wanted)
    assert len(nodes) == len(table)
    # Two collectives of four, and one of two pairs.
    together = [
        {nodes[end]["operation"] for end in each[:2]} for each in edges if each[2] == "collective"
    ]
    assert Counter(min(each) for each in together) == {
        "all_gather": 3, "broadcast": 3, "all_reduce": 2
    }  # fmt: skip


def test_the_host_is_drawn_with_its_kinds_of_edges(to: str, tmp_path: Path) -> None:
    rows, entries = a_step()
    run = with_host(run_of(rows, "made"), entries)
    _, (_, nodes, edges) = drawn(run, to, tmp_path, host=True)
    assert Counter(each["type"] for each in nodes.values()) == {"compute": 3, "host": 6}
    assert Counter(kind for *_, kind in edges) == {
        "sequence": 5, "launch": 2, "caller": 3, "stream": 2, "blocked": 1
    }  # fmt: skip
    (call,) = (name for name, each in nodes.items() if each["name"] == "hipStreamSynchronize")
    assert [
        nodes[source]["name"]
        for source, target, kind in edges
        if (target, kind) == (call, "blocked")
    ] == ["late"]


def test_what_a_trace_states_is_named_so(to: str, tmp_path: Path) -> None:
    nodes = [node(1, 5), node(2, 3, 1, stream=2), node(3, 1, ctrl=[2], stream=1)]
    run = open_run(str(written(tmp_path / "t.0.et", nodes)), jobs=1)
    _, (title, _, edges) = drawn(run, to, tmp_path)
    assert sorted(kind for *_, kind in edges) == ["control", "stated"]
    assert title.endswith("(reconstructed)")


def test_what_is_cut_is_said(to: str, tmp_path: Path, wording: Wording) -> None:
    rows = [Row(10 * at, 8, gpu=at % 2, iteration=at // 20) for at in range(40)]
    run = run_of(rows, "made")
    notes, (_, nodes, edges) = drawn(run, to, tmp_path, nodes=12)
    (note,) = notes
    wording(note, "40 activities", "12 nodes", "--iteration N", "--nodes N")
    assert sorted(int(each["start_ns"]) for each in nodes.values()) == [*range(0, 120, 10)]
    assert {end for each in edges for end in each[:2]} <= nodes.keys()
    notes, (_, nodes, _) = drawn(run, to, tmp_path, iteration=1)
    assert (notes, len(nodes)) == ([], 20)
    notes, (_, nodes, _) = drawn(run, to, tmp_path, nodes=40)
    assert (notes, len(nodes)) == ([], 40)


def test_the_host_counts_among_the_nodes(to: str, tmp_path: Path) -> None:
    rows, entries = a_step()
    (later, after) = a_step(1_000_000)
    run = with_host(run_of([*rows, *later], "made"), [*entries, *after])
    notes, (_, nodes, _) = drawn(run, to, tmp_path, host=True, nodes=5)
    assert len(nodes) == 5 and len(notes) == 1
    assert max(int(each["start_ns"]) for each in nodes.values()) < 10_000


def test_names_of_any_kind_come_back(to: str, tmp_path: Path) -> None:
    """Control characters and what XML has no form for as Chopper shows them."""
    rows = [Row(10 * at, 5, gpu=at % 2, kernel=name) for at, name in enumerate(NAMES)]
    _, (title, nodes, _) = drawn(run_of(rows, 'na"me<&>.json'), to, tmp_path)
    assert title == 'na"me<&>.json (generated)'
    found = {int(each["start_ns"]) // 10: each["name"] for each in nodes.values()}
    assert [found[at] for at in range(len(NAMES))] == [clean(name) for name in NAMES]


def test_a_large_run_is_drawn_in_part(tmp_path: Path, wording: Wording) -> None:
    run = run_of([Row(10 * at, 8) for at in range(1_500)], "made")
    notes, (_, nodes, _) = drawn(run, "dot", tmp_path)
    assert len(nodes) == 1_000
    wording(notes[0], "1,500 activities")
    notes, (_, nodes, _) = drawn(run, "graphml", tmp_path)
    assert len(nodes) == 1_500 and notes == []


def test_a_run_without_times_has_no_graph(to: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="made has no graph: the counter run has no dispatch times"):
        export(replace(run_of([Row(0, 0), Row(1, 0)], "made")), to, tmp_path / "out")
    assert [*tmp_path.iterdir()] == []
