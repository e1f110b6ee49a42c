"""Kernels over a scope: against plain dictionaries, and each row leads to where it occurs."""

from __future__ import annotations

import statistics
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chopper_core.model import groups as reductions
from chopper_core.model.address import parse, render
from chopper_core.model.run import Run
from chopper_core.model.table import STATES, Category
from chopper_core.util.arrays import Int64
from chopper_core.util.errors import UsageError
from chopper_core.views.query import query
from chopper_core.work.kernel_classes import kernel_class
from tests.align.traces import GEMM, TinyTrace, align
from tests.support import Row, counted_rows, run_of, sample_run
from tests.wording import Wording

SCOPES = ["", ":gpu=3", ":gpu=1/iteration=11/phase=backward"]


@pytest.mark.few(1)
@pytest.mark.parametrize("scope", SCOPES)
@pytest.mark.parametrize("by", ["name", "class", "operation"])
def test_figures_are_those_of_a_plain_count(run: Run, scope: str, by: str) -> None:
    found = query(
        run,
        parse(
            f"R{scope}?view=kernels&by={by}&base=total&columns=kernels,kernel_ns,"
            "activities,elapsed_ns,kernel_pct,mean_ns,median_ns,p95_ns,min_ns,max_ns"
        ),
    )
    durations: dict[str, list[int]] = {}
    kernels: dict[str, int] = {}
    table = run.table
    for row in counted_rows(run, dict(parse(f"R{scope}").scope)):
        name = table.names[table.kernel[row]]
        label = {
            "name": name,
            "class": kernel_class(name),
            "operation": table.text_of("operation", int(table.operation[row])),
        }[by]
        durations.setdefault(label, []).append(int(table.duration_ns[row]))
        kernels[label] = kernels.get(label, 0) + (table.category[row] == Category.KERNEL)
    assert set(found.labels) == set(durations)
    whole = sum(map(sum, durations.values()))
    for number, label in enumerate(found.labels):
        row, times = found.row(number), durations[label]
        assert row["kernels"] == kernels.get(label, 0)
        assert row["kernel_ns"] == sum(times)
        assert row["kernel_pct"] == pytest.approx(100 * sum(times) / whole)
        if not row["activities"]:
            assert {row[f"{name}_ns"] for name in ("mean", "median", "p95", "min", "max")} == {None}
            continue
        assert row["mean_ns"] == pytest.approx(statistics.fmean(times))
        assert row["median_ns"] == pytest.approx(statistics.median(times))
        assert row["p95_ns"] == pytest.approx(np.quantile(times, 0.95))
        assert (row["min_ns"], row["max_ns"]) == (min(times), max(times))
    tree = query(run, parse(f"R{scope}?base=total"))
    assert sum(found.values["elapsed_ns"].numbers.tolist()) == tree.total["elapsed_ns"]


@pytest.mark.parametrize("scope", SCOPES)
@pytest.mark.parametrize("by", ["name", "class", "operation"])
def test_a_row_leads_to_where_it_occurs(run: Run, scope: str, by: str) -> None:
    found = query(run, parse(f"R{scope}?view=kernels&by={by}&base=total"))
    # As its heading says, whatever the rows are: the collectives were last.
    times = found.values["kernel_ns"].numbers.tolist()
    assert times == sorted(times, reverse=True)
    for number in (0, len(found) - 1):
        address = found.addresses(number)
        assert render(parse(address)) == address
        there = query(run, parse(address))
        counted = there.values["kernels"].numbers[there.counted()]
        assert counted.sum() == found.row(number)["kernels"]


def test_words_can_be_filtered_and_sorted(run: Run) -> None:
    found = query(run, parse("R?view=kernels&filter=class:gemm&sort=class"))
    assert {found.row(n)["class"] for n in range(len(found))} == {"gemm"}
    assert found.hidden and len(found) + found.hidden == len(query(run, parse("R?view=kernels")))
    assert len(query(run, parse("R?view=kernels&filter=attention"))) > 0
    with pytest.raises(UsageError, match="is a word"):
        query(run, parse("R?view=kernels&filter=class>3"))


def test_the_roof_is_the_smaller_of_peak_and_bandwidth(run: Run) -> None:
    names = "intensity,roof_tflops,roof_pct,mfma_tflops,fabric_read_gbps,fabric_write_gbps"
    found = query(run, parse(f"R:gpu=0?view=kernels&columns={names}"))
    assert run.hardware is not None
    known = 0
    for number in range(len(found)):
        row = found.row(number)
        parts = [row[name] for name in ("mfma_tflops", "fabric_read_gbps", "fabric_write_gbps")]
        # Nothing counts the demo's vector operations: without matrix FLOPs it has no intensity.
        if None in parts or parts[1] + parts[2] == 0 or not parts[0]:
            assert row["intensity"] is None and row["roof_tflops"] is None
            continue
        known += 1
        flop_per_byte = parts[0] * 1e12 / ((parts[1] + parts[2]) * 1e9)
        roof = min(304 * 2048 * 2.1e9 / 1e12, flop_per_byte * 5300e9 / 1e12)
        assert row["intensity"] == pytest.approx(flop_per_byte)
        assert row["roof_tflops"] == pytest.approx(roof)
        if roof:
            assert row["roof_pct"] == pytest.approx(100 * parts[0] / roof)
    assert known or all(found.row(n)["intensity"] is None for n in range(len(found)))


def test_what_a_view_cannot_do_is_said(run: Run) -> None:
    with pytest.raises(UsageError, match=r"unknown view 'krenel'; did you mean kernels"):
        query(run, parse("R?view=krenel"))
    with pytest.raises(UsageError, match=r"takes by=name, class, operation, shape, .*not 'colour'"):
        query(run, parse("R?view=kernels&by=colour"))
    with pytest.raises(UsageError, match="unknown column 'nonsense'"):
        query(run, parse("R?view=kernels&columns=nonsense"))


@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 2**50) | st.integers(0, 9)), min_size=1)
)
def test_quantiles_piece_by_piece_are_those_of_numpy(rows: list[tuple[int, int]]) -> None:
    made = run_of([Row(at, took, gpu=gpu) for at, (gpu, took) in enumerate(rows)])
    nodes = made.tree().children(()).groups
    shares = (0.0, 0.25, 0.5, 0.95, 1.0)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(reductions, "_MAX_SORTED", 0)
        found = reductions.quantiles(nodes, "duration_ns", shares)
    for number, gpu in enumerate(sorted({gpu for gpu, _ in rows})):
        own = [took for other, took in rows if other == gpu]
        np.testing.assert_allclose(found[number], np.quantile(own, shares), rtol=1e-12)


def test_kernels_split_by_the_requests_of_their_step(tmp_path: Path) -> None:
    trace, at = TinyTrace(), 0
    for requests, kernels in ((8, 3), (2, 1), (8, 2)):
        trace.note(f"execute_context_0(0)_generation_{requests}({requests})", at, at + 100)
        for place in range(kernels):
            trace.launch(GEMM, at + 10 * place + 5)
        at += 200
    frame = query(
        align(trace, tmp_path).run,
        parse("R?view=kernels&by=batch&base=total&columns=kernels&cut=1"),
    )
    kernels = [frame.row(row)["kernels"] for row in range(len(frame))]
    # The idle time outside steps has no kernels.
    assert dict(zip(frame.labels, kernels, strict=True)) == {"8": 5, "2": 1, "none": 0}


def test_a_baseline_adds_what_changed_of_each_kernel(wording: Wording) -> None:
    """Per step, against sums over rows; the other GPU is the baseline."""
    run = sample_run()
    frame = query(run, parse("sample.json:gpu=0?view=kernels&base=gpu=1"))
    table = run.table
    whole = ~np.isin(table.iteration, [-1, *run.cut_iterations])
    steps = len({*table.iteration[whole].tolist()})

    charged: Int64 = np.sum([getattr(table, state) for state in STATES], axis=0)

    def each(gpu: int, label: str, times: Int64 = table.duration_ns) -> float:
        own = whole & (table.gpu == gpu) & (table.kernel == table.names.index(label))
        return float(times[own].sum()) / steps

    assert len(frame.labels) > 2
    changes = "kernel_ns_delta,elapsed_ns_delta"
    both = query(run, parse(f"sample.json:gpu=0?view=kernels&base=gpu=1&columns={changes}"))
    for row, label in enumerate(frame.labels):
        ours, base = each(0, label), each(1, label)
        assert frame.row(row)["kernel_ns_delta"] == pytest.approx(ours - base)
        assert frame.row(row)["kernel_ns_delta_pct"] == pytest.approx(100 * (ours - base) / base)
        # The time charged to the same kernel is a column too, as Compare has it.
        ours, base = each(0, label, charged), each(1, label, charged)
        assert both.row(row)["elapsed_ns_delta"] == pytest.approx(ours - base)
    wording.among(frame.headline, "kernel time")
    alone = query(run, parse("sample.json:gpu=0?view=kernels"))
    assert "kernel_ns_delta" not in alone.row(0)
    assert not any("Δ" in line for line in alone.headline)
