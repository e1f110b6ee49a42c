"""What the benchmarks measure with: the accounting of whole processes."""

from __future__ import annotations

import gzip
import json
import os
import re
from pathlib import Path

import numpy as np
import pytest

from chopper_core.store.writer import write_store
from chopper_core.views import view_specs
from tests.programs.bench import __main__ as bench
from tests.programs.bench import analyses
from tests.programs.bench.__main__ import PARTS
from tests.programs.bench.budgets import at_most, row
from tests.programs.bench.data import for_original
from tests.programs.bench.page import Conditions, Section
from tests.programs.bench.processes import ROOT, in_turn, python, run
from tests.support import sample_run


@pytest.mark.sweep
def test_the_peak_is_that_of_the_process() -> None:
    """Also where the process that measures takes, or took, more."""
    large = np.ones(40_000_000)
    assert large.nbytes == 320e6
    written = run(python("data = b'x' * 200_000_000"))
    assert 200 < written.peak_mb < 250
    assert written.wall_s > 0 and written.cpu_s > 0


def test_a_budget_is_met_or_not_or_unknown() -> None:
    found = [at_most("a", 50, 49.6, "ms"), at_most("b", 50, 51, "ms"), at_most("c", 50, None, "ms")]
    assert [each.met for each in found] == [True, False, None]
    assert [row(each, "start") for each in found] == [
        "| a | ≤ 50 ms | 50 ms | yes | start |",
        "| b | ≤ 50 ms | 51 ms | **no** | start |",
        "| c | ≤ 50 ms | not measured here | – | start |",
    ]


def test_the_page_is_of_the_parts_of_one_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def measured(_: object) -> Section:
        return Section(["| open | 5 |"], [at_most("open", 50, 5, "ms")])

    path = tmp_path / "page.md"
    parts = {"ranks": ("A thousand ranks", measured), "reading": ("Reading", measured)}
    monkeypatch.setattr(bench, "PARTS", parts)
    monkeypatch.setattr("sys.argv", ["bench", "ranks", "--quick", "-o", str(path)])
    bench.main()
    page = path.read_text(encoding="utf-8")
    assert "| open | ≤ 50 ms | 5 ms | yes | ranks |" in page and "| reading |" not in page
    assert page.count("Measured 2") == 1 and "| open | 5 |" not in page
    assert "## A thousand ranks\n\n| open | 5 |" in capsys.readouterr().out


def test_the_page_has_what_its_parts_write() -> None:
    page = (ROOT / "docs" / "internals" / "benchmarks.md").read_text(encoding="utf-8")
    parts = re.findall(r"\| (\w+) \|$", page, re.MULTILINE)[1:]
    assert parts and set(parts) <= set(PARTS) and page.count("Measured 2") == 1


def test_the_time_of_others_is_not_ones_own() -> None:
    found = Conditions()
    run(python("sum(range(10_000_000))"))
    line = found.line()
    others = re.search(r"others kept (\d+\.\d) processors busy", line)
    assert others and float(others[1]) <= (os.cpu_count() or 1)


def test_what_fails_is_said_and_left_out() -> None:
    failed: list[str] = []
    costs = in_turn({"a": python("pass"), "b": python("raise ValueError('no')")}, 2, failed)
    assert list(costs) == ["a"] and len(costs["a"]) == 2
    assert failed == ["b failed (ValueError: no)"]


@pytest.mark.sweep
@pytest.mark.parametrize("is_ingested", [False, True])
def test_the_bench_of_views_asks_each_that_the_run_can_answer(
    tmp_path: Path, *, is_ingested: bool
) -> None:
    store = tmp_path / "store"
    write_store(sample_run(), store)
    found = analyses.measure(str(store), is_ingested=is_ingested)
    assert (found.pop(analyses.INGEST, None) is not None) == is_ingested
    assert [each.name for each in tmp_path.iterdir()] == ["store"]
    assert {name.partition(",")[0] for name in found} >= {"kernels", "launch", "ranks", "overlap"}
    known = {f"{each.name}, by {by}" for each in view_specs() for by in each.by}
    assert set(found) <= known | {analyses.OPEN} | {each.name for each in view_specs()}
    assert all(cold > 0 and again >= 0 for cold, *_, again in found.values())


def test_the_original_gets_a_trace_without_what_it_stops_at(tmp_path: Path) -> None:
    """Half a link, one outside annotations and a kernel without a launch, as at a window's edge."""

    def host(number: int, ts: float) -> dict[str, object]:
        return {"cat": "cpu_op", "name": "aten::mm", "ts": ts, "dur": 1} | {
            "args": {"External id": number}
        }

    def link(number: int, ts: float, **end: str) -> dict[str, object]:
        return {"cat": "fwdbwd", "id": number, "ts": ts} | end

    def kernel(number: int) -> dict[str, object]:
        return {"cat": "kernel", "name": "gemm", "args": {"correlation": number}}

    launch = {"cat": "cuda_runtime", "args": {"correlation": 1, "External id": 7}}
    range_ = {"cat": "user_annotation", "name": "f_mlp", "ts": 10, "dur": 5}
    layer = {"cat": "user_annotation", "name": "Layer1", "ts": 30, "dur": 5}
    whole = [link(1, 11), link(1, 50, bp="e")]
    half = [link(2, 51, bp="e")]
    outside = [link(3, 31), link(3, 52, bp="e")]
    hosts = [host(7, 11), host(8, 31), host(9, 50), host(10, 51), host(11, 52)]
    events = [range_, layer, *hosts, launch, *half, *whole, *outside, kernel(1), kernel(2)]
    with gzip.open(tmp_path / "rank0.json.gz", "wt", encoding="utf-8") as packed:
        json.dump({"schemaVersion": 1, "traceEvents": events}, packed)
    found = json.loads(for_original(tmp_path / "rank0.json.gz").read_text(encoding="utf-8"))
    assert found["traceEvents"] == [range_, layer, *hosts, launch, *whole, kernel(1)]
    assert found["schemaVersion"] == 1
