"""Generated Chakra traces: they keep all rules, open marked as generated, and have exact times."""

from __future__ import annotations

from pathlib import Path

import pytest

from chopper_core.extensions.chakra.lint import lint
from chopper_core.extensions.chakra.schema import Node, NodeType
from chopper_core.extensions.chakra.synthetic import PATTERNS, GeneratorSettings, generate
from chopper_core.ingest.open import open_run
from chopper_core.model.run import Run
from chopper_core.render.exports import export
from chopper_core.util.errors import UsageError
from chopper_tui.cli import main
from tests.ingest.chakra_files import sorted_rows
from tests.render.test_check_rules import runs
from tests.render.test_feeder_rules import issued_by_classic, issued_by_v3, nodes_of
from tests.wording import Wording


def made(folder: Path, pattern: str, **settings: int) -> tuple[Run, list[list[Node]]]:
    chosen = GeneratorSettings(**settings)
    generate(pattern, chosen, folder / pattern)
    paths = [folder / pattern / f"generated_{pattern}.{rank}.et" for rank in range(chosen.ranks)]
    assert sorted(folder.rglob("*.et")) == sorted(paths)
    return open_run(str(folder / pattern), jobs=1), [nodes_of(path) for path in paths]


@pytest.mark.parametrize("ranks", [2, 3, pytest.param(8, marks=pytest.mark.sweep)])
@pytest.mark.parametrize("pattern", PATTERNS)
def test_every_pattern_keeps_the_rules_and_opens(pattern: str, ranks: int, tmp_path: Path) -> None:
    run, nodes = made(tmp_path, pattern, ranks=ranks, iterations=2, bytes=12_345)
    assert lint([tmp_path / pattern]).violations == [] and runs(tmp_path / pattern)
    for own in nodes:
        ids = [node.id for node in own]
        assert sorted(issued_by_classic(own)) == sorted(issued_by_v3(own)) == ids
        assert all(node.name.startswith("generated_") for node in own)
    assert run.marks[0] == "generated" and f"chopper generate {pattern}" in str(run.generated)
    assert len(run.table) == sum(map(len, nodes)) and {*run.table.iteration.tolist()} == {0, 1}
    # Written again from the opened run, it is the same.
    assert export(run, "chakra", tmp_path / "again") == []
    assert lint([tmp_path / "again"]).violations == []
    assert sorted_rows(open_run(str(tmp_path / "again"), jobs=1)) == sorted_rows(run)


@pytest.mark.parametrize("pattern", PATTERNS)
def test_equal_settings_give_equal_bytes(pattern: str, tmp_path: Path) -> None:
    for name in ("one", "two"):
        generate(pattern, GeneratorSettings(ranks=3), tmp_path / name)
    one, two = (sorted((tmp_path / name).iterdir()) for name in ("one", "two"))
    assert [each.read_bytes() for each in one] == [each.read_bytes() for each in two]


@pytest.mark.parametrize(
    ("pattern", "moved"),
    [
        ("all_reduce", 1.75), ("all_gather", 7), ("reduce_scatter", 0.875),
        ("all_to_all", 0.875), ("broadcast", 1),
    ],
)  # fmt: skip
def test_collectives_take_as_long_as_a_ring(pattern: str, moved: float, tmp_path: Path) -> None:
    run, nodes = made(tmp_path, pattern, ranks=8, bytes=4_000_000, gb_s=50)
    assert {*run.table.duration_ns.tolist()} == {round(4_000_000 * moved / 50)}
    assert {node.get("comm_size") for own in nodes for node in own} == {4_000_000}
    # Of an all-gather the table has the output.
    assert {*run.table.bytes.tolist()} == {4_000_000 * (8 if pattern == "all_gather" else 1)}


def test_a_ring_passes_on_what_it_received(tmp_path: Path) -> None:
    run, nodes = made(tmp_path, "ring", ranks=4, bytes=4_000_000, gb_s=100)
    for rank, own in enumerate(nodes):
        sends = [node for node in own if node.type == NodeType.COMM_SEND]
        receives = [node for node in own if node.type == NodeType.COMM_RECV]
        assert len(sends) == len(receives) == 6
        assert {node.get("comm_dst") for node in sends} == {(rank + 1) % 4}
        for before, after in zip(receives, sends[1:], strict=False):
            assert before.id in after.data_deps
    assert int((run.table.start_ns + run.table.duration_ns).max()) == 6 * 10_000


def test_gradients_are_reduced_behind_the_backward_pass(tmp_path: Path) -> None:
    _, nodes = made(tmp_path, "data_parallel", ranks=2, layers=3, compute_us=100, bytes=10_000_000)
    own = nodes[0]
    ends = {node.id: node.get("ts_ns") + node.get("dur_ns") for node in own}
    passes = {
        (node.get("phase"), node.get("layer")): node for node in own if node.get("stream") == 0
    }
    reduced = [node for node in own if node.type == NodeType.COMM_COLL]
    assert [node.get("layer") for node in reduced] == [2, 1, 0]
    for node in reduced:
        assert passes["backward", node.get("layer")].id in node.data_deps
    assert [node.get("ts_ns") for node in reduced] == [500_000, 700_000, 900_000]
    optimizer = passes["optimizer", None]
    assert reduced[-1].id in optimizer.data_deps
    assert optimizer.get("ts_ns") == ends[reduced[-1].id] == 1_000_000


def test_a_pipeline_has_its_bubble(tmp_path: Path) -> None:
    """Stages wait for all others once: micro-batches + stages - 1 passes, and the optimizer."""
    run, nodes = made(
        tmp_path, "pipeline", ranks=4, layers=2, microbatches=6, compute_us=100, bytes=100, gb_s=100
    )
    table = run.table
    passes = (6 + 4 - 1) * 2 * (100_000 + 200_000)
    span = int((table.start_ns + table.duration_ns).max())
    # A message takes 1 ns.
    assert passes + 100_000 < span < passes + 100_000 + 100
    assert {node.get("layer") for node in nodes[3] if node.get("phase") == "forward"} == {
        None,
        6,
        7,
    }
    sends = [node for node in nodes[1] if node.type == NodeType.COMM_SEND]
    assert [node.get("comm_dst") for node in sends] == [2] * 6 + [0] * 6


def test_the_command_says_that_they_are_generated(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], wording: Wording
) -> None:
    out = tmp_path / "out"
    assert main(["generate", "all_reduce", "ranks=4", "bytes=64Mi", "-o", str(out)]) == 0
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err == f"chopper: wrote {out}: 4 generated traces, 4 nodes\n"
    assert nodes_of(out / "generated_all_reduce.3.et")[0].get("comm_size") == 64 << 20
    assert main(["show", str(out)]) == 0
    wording.among(capsys.readouterr().out, "generated data")


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (["mesh"], "unknown pattern 'mesh'; the patterns are all_reduce, "),
        (["ring", "layers=3"], "ring takes no 'layers'; it takes ranks, bytes, iterations, gb_s"),
        (["ring", "ranks=1"], "'ranks=1' is not a number of at least 2, such as ranks=4"),
        (["ring", "bytes=0"], "'bytes=0' is not a number of at least 1, such as bytes=4"),
        (["ring", "bytes=-1K"], "'bytes=-1K' is not a number"),
        (["ring", "bytes="], "'bytes=' is not a number"),
        (["ring", "bytes=9999G"], "'bytes=9999G' is not a number"),
        (["ring", "ranks"], "'ranks' is not a number"),
    ],
)
def test_settings_that_are_not_any_are_refused(
    given: list[str], says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["generate", *given, "-o", str(tmp_path / "out")]) == 2
    assert capsys.readouterr().err.startswith(f"chopper: {says}")
    assert [*tmp_path.iterdir()] == []


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("keep me")
    with pytest.raises(UsageError, match="exists already"):
        generate("ring", GeneratorSettings(ranks=2), tmp_path)
