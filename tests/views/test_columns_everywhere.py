"""Every registered column answers, or says why it is missing, where rows stand for activities."""

from __future__ import annotations

from collections import Counter
from typing import Final

import numpy as np
import pytest
from msgspec.structs import replace

from chopper_core.analyses.leads import leads
from chopper_core.analyses.sample_definitions import DECLARED
from chopper_core.analyses.step_parts import COMPUTE_PARTS, part_column
from chopper_core.columns import METRICS, Reduces
from chopper_core.graph.collectives import collectives_of
from chopper_core.model.address import parse
from chopper_core.model.column_names import AT_PEAK, CALL_SHAPE
from chopper_core.model.run import Run
from chopper_core.model.table import STATES, Kind
from chopper_core.model.view import View, complete_order
from chopper_core.views.frame import Frame
from chopper_core.views.query import query
from tests.demo import demo_run, small_run
from tests.support import sample_run

VIEWS_OF_ACTIVITIES: Final = (
    "kernels", "roofline", "overheads", "launch", "icicle", "heatmap", "grid", "ranks", "overlap",
    "throughput", "determinism", "power", "comms", "graph", "overview", "cpu", "live",
    "compare&base=gpu=0",
)  # fmt: skip
"""Those of the demo; the rows of others are findings, allocations, questions, lanes."""
SUMS: Final = ("kernel_ns", "elapsed_ns", "idle_ns", "activities")


@pytest.fixture(scope="module")
def run() -> Run:
    return demo_run()


def frame(run: Run, view: str, *columns: str, scope: str = "") -> Frame:
    return query(run, parse(f"R{scope}?view={view}&columns={','.join(columns)}"))


@pytest.mark.parametrize("view", VIEWS_OF_ACTIVITIES)
def test_every_column_answers_or_says_why(view: str) -> None:
    run = small_run()
    scope = ":gpu=1" if view.startswith("compare") else ""
    found = frame(run, view, *METRICS, scope=scope)
    assert {column.name for column in found.columns} >= set(METRICS)
    for column in found.columns:
        values = found.values[column.name]
        assert len(values) == len(found)
        assert values.present().all() or column.missing_because, column.name


@pytest.mark.parametrize("view", ["ranks", "throughput&by=gpu", "determinism", "kernels&by=gpu"])
def test_a_figure_of_a_gpu_is_the_same_in_every_view(run: Run, view: str) -> None:
    names = (*SUMS, "busy_pct", "mean_ns", "p95_ns", "kernel_pct", "model_roof_pct")
    tree = query(run, View("R", columns=names))
    found = frame(run, view, *names)
    assert sorted(found.labels) == sorted(tree.labels)
    for name in names:
        if METRICS[name] not in found.columns:
            continue
        there = dict(zip(tree.labels, tree.values[name].known().tolist(), strict=True))
        here = dict(zip(found.labels, found.values[name].known().tolist(), strict=True))
        assert here == pytest.approx(there, nan_ok=True), name
        assert found.total[name] == pytest.approx(tree.total[name]), name


@pytest.mark.parametrize("view", ["overlap", "compare&base=gpu=0"])
def test_the_total_is_that_of_the_rows_above_it(run: Run, view: str) -> None:
    """By a loop over the activities with a row's label."""
    found = frame(run, view, "kernel_ns", "mean_ns", scope=":gpu=1/iteration=11")
    table, labels = run.table, set(found.labels)
    durations = [
        int(table.duration_ns[row])
        for row in range(len(table))
        if table.gpu[row] == 1
        and table.iteration[row] == 11
        and table.text_of("operation", int(table.operation[row])) in labels
    ]
    assert found.total["kernel_ns"] == sum(durations)
    assert found.total["mean_ns"] == pytest.approx(sum(durations) / len(durations))


def test_quantiles_are_columns_of_the_tree(run: Run) -> None:
    found = query(run, parse("R:gpu=2/iteration=11?columns=median_ns,p95_ns,kernel_pct"))
    table = run.table
    of_phase: dict[str, list[int]] = {}
    for row in np.flatnonzero((table.gpu == 2) & (table.iteration == 11)).tolist():
        label = table.text_of("phase", int(table.phase[row]))
        of_phase.setdefault(label, []).append(int(table.duration_ns[row]))
    whole = [took for own in of_phase.values() for took in own]
    for number, label in enumerate(found.labels):
        row, own = found.row(number), of_phase[label]
        assert row["median_ns"] == pytest.approx(np.median(own))
        assert row["p95_ns"] == pytest.approx(np.quantile(own, 0.95))
        assert row["kernel_pct"] == pytest.approx(100 * sum(own) / sum(whole))
    assert found.total["p95_ns"] == pytest.approx(np.quantile(whole, 0.95))
    assert found.total["kernel_pct"] == pytest.approx(100)


@pytest.mark.parametrize("order", ["layer", "phase", "gpu", "operation"])
def test_waits_and_bandwidths_are_columns_of_the_tree(run: Run, order: str) -> None:
    """By a loop over the matched collectives: a row has those of which it has a kernel."""
    names = ("wait_ns", "caused_ns", "times_last", "bus_gbps", "last_gpu", "exposed_pct")
    found = query(run, parse(f"R?order={order}&base=total&columns={','.join(names)}"))
    table, whole = run.table, collectives_of(run)
    assert whole is not None
    counted = set(run.tree_of(found.view).node(()).rows.tolist())
    waits, caused, times, last = Counter[str](), Counter[str](), Counter[str](), {}
    moved, took, exposed, lasted = Counter[str](), Counter[str](), Counter[str](), Counter[str]()
    for number in range(len(whole)):
        place = np.flatnonzero(whole.member_set == number)
        rows = whole.rows[place].tolist()
        labels = [table.text_of(order, int(table.column(order)[row])) for row in rows]
        for row, label, wait in zip(rows, labels, whole.member_wait_ns[place], strict=True):
            if row not in counted:
                continue
            waits[label] += int(wait)
            exposed[label] += int(table.exposed_comm_ns[row])
            lasted[label] += int(table.duration_ns[row])
            if whole.complete[number] and table.gpu[row] == whole.last_gpu[number]:
                caused[label] += int(whole.member_wait_ns[place].sum())
                times[label] += 1
        if not whole.complete[number]:
            continue
        ranks = int(whole.size[number])
        kind = table.operations[int(whole.kind[number])]
        factor = (2 if kind == "all_reduce" else 1) * (ranks - 1) / ranks
        for label in {label for row, label in zip(rows, labels, strict=True) if row in counted}:
            if whole.bytes[number] >= 0:
                moved[label] += factor * int(whole.bytes[number])  # type: ignore[assignment]
                took[label] += int(whole.transfer_ns[number])
            last.setdefault(label, Counter())[f"GPU {whole.last_gpu[number]}"] += 1
    assert last and took
    for number, label in enumerate(found.labels):
        row = found.row(number)
        assert (row["wait_ns"], row["caused_ns"], row["times_last"]) == (
            waits[label],
            caused[label],
            times[label],
        )
        if took[label]:
            assert row["bus_gbps"] == pytest.approx(moved[label] / took[label])
        if label in last:
            most = last[label][str(row["last_gpu"])]
            assert most == max(last[label].values())
        if lasted[label]:
            assert row["exposed_pct"] == pytest.approx(100 * exposed[label] / lasted[label])
        else:
            assert row["bus_gbps"] is row["last_gpu"] is row["exposed_pct"] is None
    assert found.total["wait_ns"] == sum(waits.values())
    assert found.total["bus_gbps"] == pytest.approx(
        query(run, parse("R?view=comms&base=total&columns=bus_gbps")).total["bus_gbps"]
    )


@pytest.mark.parametrize("order", ["operation", "gpu"])
def test_calls_are_columns_of_the_tree(run: Run, order: str) -> None:
    """By a loop over the activities: what served a row, and the work of a call of its one shape."""
    names = ("call_flops", "call_bytes", "served_by", "charged_power_w", "energy_j", "elapsed_ns")
    asked = f"R:phase=forward?order=phase,{order}&base=total&columns={','.join(names)}"
    found = query(run, parse(asked))
    table = run.table
    code_of = table.measured[CALL_SHAPE]
    shapes: dict[str, set[float]] = {}
    lasted: dict[str, Counter[str]] = {}
    for row in run.tree_of(found.view).node(("forward",)).rows.tolist():
        label = table.text_of(order, int(table.column(order)[row]))
        shapes.setdefault(label, set()).add(float(np.nan_to_num(code_of[row], nan=-1.0)))
        kernel = table.text_of("kernel", int(table.kernel[row]))
        lasted.setdefault(label, Counter())[kernel] += int(table.duration_ns[row])
    several, calls = 0, 0
    for number, label in enumerate(found.labels):
        row, times = found.row(number), lasted[label]
        served, _, others = str(row["served_by"]).partition(" +")
        assert times[served] == max(times.values())
        assert int(others or 0) == len(times) - 1
        texts = {table.shapes[int(code)].label if code >= 0 else "" for code in shapes[label]}
        if len(texts) == 1 and texts != {""}:
            shape = table.shapes[int(min(shapes[label]))]
            assert (row["call_flops"], row["call_bytes"]) == (shape.flops, shape.bytes)
            calls += 1
        else:
            assert row["call_flops"] is row["call_bytes"] is None
            several += len(texts) > 1
        if row["energy_j"] is not None:
            power = 1e9 * float(row["energy_j"]) / float(row["elapsed_ns"] or 1)
            assert row["charged_power_w"] == pytest.approx(power)
    assert several
    assert bool(calls) == (order == "operation")
    assert found.total["charged_power_w"] == pytest.approx(
        1e9 * found.total["energy_j"] / found.total["elapsed_ns"]
    )


@pytest.mark.parametrize("name", [name for name, each in METRICS.items() if each.has_words])
def test_words_have_no_statistic(run: Run, name: str) -> None:
    plain, median = (
        query(run, parse(f"R?order=operation&columns={name}{stat}"))
        for stat in ("", "&stat=median")
    )
    words = {label: plain.row(row)[name] for row, label in enumerate(plain.labels)}
    assert {label: median.row(row)[name] for row, label in enumerate(median.labels)} == words
    (title,) = (each.title for each in median.columns if each.name == name)
    assert title == METRICS[name].title


def test_every_column_of_words_says_so(run: Run) -> None:
    found = query(run, View("R", order=complete_order(["iteration"]), columns=tuple(METRICS)))
    wordy = [each for each in found.columns if found.values[each.name].words is not None]
    assert len(wordy) > 5
    for column in wordy:
        assert column.has_words or column.reduces == Reduces.COMMON, column.name


@pytest.mark.parametrize("split", ["class", "stream"])
def test_an_instance_of_several_rows_is_split_in_the_view_too(run: Run, split: str) -> None:
    """The view has the parts of instances that the column has: their time is that of the rows."""
    names = ("instance_ns", "beside_comm_ns", "overlap_pct", "operation_instances", "slowdown_x")
    asked = f"by={split}&base=total&columns={','.join(names)},compute_busy_ns"
    kernels = query(run, parse(f"R?view=kernels&{asked}"))
    found = query(run, parse(f"R?view=overlap&by={split}&base=total&columns={','.join(names)}"))
    rows = {label: kernels.row(number) for number, label in enumerate(kernels.labels)}
    assert len(found) > 1
    for number, label in enumerate(found.labels):
        row = found.row(number)
        assert row == pytest.approx({name: rows[label][name] for name in names}, nan_ok=True)
    table, took = run.table, Counter[str]()
    for own in run.tree_of(found.view).node(()).rows.tolist():
        label = table.text_of("operation", int(table.operation[own]))
        if table.kind[own] == Kind.COMPUTE and not label.startswith("FSDP::"):
            took["all"] += int(table.duration_ns[own])
    assert sum(found.values["instance_ns"].numbers.tolist()) == took["all"]
    whole = query(run, parse("R?view=overlap&base=total")).total
    assert found.total["overlap_pct"] == pytest.approx(whole["overlap_pct"])


@pytest.mark.parametrize("level", ["operation", "phase", "layer", "iteration", "gpu"])
def test_figures_of_overlap_are_columns_of_the_tree(run: Run, level: str) -> None:
    names = (
        *("overlap_pct", "overlap_copies_pct", "slowdown_x", "overlap_cost_ns", "pearson_r"),
        *("cosine", "median_overlap_pct", "p95_overlap_pct", "instance_ns", "beside_comm_ns"),
    )
    tree = query(run, parse(f"R?order={level}&base=total&columns={','.join(names)}"))
    found = query(run, parse(f"R?view=overlap&by={level}&base=total&columns={','.join(names)}"))
    assert len(found)
    for name in names:
        there = dict(zip(tree.labels, tree.values[name].known().tolist(), strict=True))
        here = dict(zip(found.labels, found.values[name].known().tolist(), strict=True))
        assert here == pytest.approx({label: there[label] for label in here}, nan_ok=True), name
        if name in ("overlap_pct", "instance_ns", "beside_comm_ns"):
            assert found.total[name] == pytest.approx(tree.total[name]), name
    table, busy = run.table, Counter[str]()
    for row in run.tree_of(tree.view).node(()).rows.tolist():
        if table.kind[row] == Kind.COMPUTE:
            label = table.text_of(level, int(table.column(level)[row]))
            if not table.text_of("operation", int(table.operation[row])).startswith("FSDP::"):
                busy[label] += int(table.duration_ns[row])
    for label, took in zip(tree.labels, tree.values["instance_ns"].known().tolist(), strict=True):
        assert took == busy[label]


@pytest.mark.parametrize("level", ["gpu", "iteration"])
def test_figures_of_steps_are_columns_of_the_tree(run: Run, level: str) -> None:
    """By a loop over the GPUs and steps of each row, and as the view throughput shows them."""
    names = ("iteration_ns", "step_tokens", "tokens_per_s", "spread_pct", "span_ns")
    tree = query(run, parse(f"R?order={level}&columns={','.join(names)},slowest,state"))
    shown = query(run, parse(f"R?view=throughput&by={level}"))
    table = run.table
    steps: dict[tuple[int, int], list[int]] = {}
    for row in range(len(table)):
        pair = int(table.gpu[row]), int(table.iteration[row])
        steps.setdefault(pair, []).append(row)

    def took(pair: tuple[int, int]) -> int:
        return sum(int(table.column(state)[row]) for row in steps[pair] for state in STATES)

    def span(pair: tuple[int, int]) -> int:
        start = [int(table.start_ns[row]) for row in steps[pair]]
        end = [int(table.start_ns[row] + table.duration_ns[row]) for row in steps[pair]]
        return max(end) - min(start)

    for number, label in enumerate(tree.labels):
        row = tree.row(number)
        own = [pair for pair in steps if str(pair[level == "iteration"]) == label]
        own = [pair for pair in own if pair[1] not in run.cut_iterations and pair[1] >= 0]
        times = {pair: took(pair) for pair in own}
        if not times:
            assert row["step_tokens"] is row["tokens_per_s"] is None
            assert row["iteration_ns"] is None or row["state"] == "cut"
            continue
        mean = sum(times.values()) / len(times)
        assert row["iteration_ns"] == pytest.approx(mean)
        assert row["step_tokens"] == 8192
        assert row["tokens_per_s"] == pytest.approx(8192e9 / mean)
        spread = max(times.values()) - min(times.values())
        assert row["spread_pct"] == pytest.approx(100 * spread / min(times.values()))
        spans = [span(pair) for pair in own]
        if level == "iteration":
            assert row["slowest"] == f"GPU {max(times, key=lambda pair: times[pair])[0]}"
            assert (row["state"], row["span_ns"]) == ("steady", max(spans))
        else:
            assert row["slowest"] is row["state"] is None
            assert row["span_ns"] == pytest.approx(np.median(spans))
    for name in names:
        for text in shown.labels if name in shown.values else ():
            here, there = (each.row(each.labels.index(text))[name] for each in (tree, shown))
            assert here == pytest.approx(there), name
        if name in shown.total:
            assert tree.total[name] == pytest.approx(shown.total[name]), name
    partly = query(run, parse(f"R?order=operation&columns={','.join(names[:4])}"))
    assert not any(partly.values[name].present().any() for name in names[:4])
    assert partly.total["iteration_ns"] == pytest.approx(tree.total["iteration_ns"])


@pytest.mark.parametrize("level", ["operation", "layer", "gpu"])
def test_the_compute_of_each_part_is_a_column_and_adds_up(run: Run, level: str) -> None:
    names = [part_column(part) for part in COMPUTE_PARTS]
    tree = query(run, parse(f"R?order={level}&columns={','.join(names)},compute_busy_ns"))
    of_parts = np.sum([tree.values[name].numbers for name in names], axis=0)
    assert of_parts == pytest.approx(tree.values["compute_busy_ns"].numbers)
    assert sum(tree.total[name] or 0 for name in names) == pytest.approx(
        tree.total["compute_busy_ns"]
    )
    shown = query(run, parse("R?view=throughput&by=gpu"))
    for name in {*names} & {*shown.total}:
        assert tree.total[name] == pytest.approx(shown.total[name]), name
    if level == "operation":
        of = {label: tree.row(number) for number, label in enumerate(tree.labels)}
        assert of["mlp_gp"]["forward_gemm_ns"] + of["mlp_gp"]["backward_gemm_ns"] == (
            pytest.approx(of["mlp_gp"]["compute_busy_ns"])
        )
        assert of["attn_fa"]["forward_gemm_ns"] == 0


@pytest.mark.parametrize("level", ["operation", "gpu", "phase"])
def test_losses_are_columns_of_the_tree(run: Run, level: str) -> None:
    """As the views of losses have them, and by their definitions."""
    names = ("lost_ns", "largest_loss", "mfu_pct", "hfu_pct", "theoretical_pct", "idle_pct")
    asked = (*names, "theoretical_ns", "elapsed_ns", "idle_ns", "loss_ns", "loss_pct")
    tree = query(run, parse(f"R?order={level}&columns={','.join(asked)}"))
    shown = query(run, parse(f"R?view=overheads&by={level}&columns={','.join(names)}"))
    losses = query(run, parse(f"R?view=losses&by={level}&columns=loss_ns"))
    step_ns = tree.total["elapsed_ns"]
    for number, label in enumerate(tree.labels):
        row = tree.row(number)
        there = shown.row(shown.labels.index(label))
        assert {name: row[name] for name in names} == pytest.approx(there, nan_ok=True), label
        assert row["loss_ns"] == pytest.approx(losses.row(losses.labels.index(label))["loss_ns"])
        ideal, elapsed = row["theoretical_ns"] or 0, row["elapsed_ns"]
        assert row["loss_ns"] == pytest.approx(elapsed - ideal)
        # Both are per step and GPU here: of a GPU on its own steps.
        assert row["loss_pct"] == pytest.approx(100 * row["loss_ns"] / step_ns)
        assert row["idle_pct"] == pytest.approx(100 * row["idle_ns"] / elapsed)
        if row["theoretical_ns"] is not None:
            assert row["lost_ns"] == pytest.approx(elapsed - ideal)
            assert row["theoretical_pct"] == pytest.approx(100 * ideal / elapsed)
    for name in names:
        assert tree.total[name] == pytest.approx(shown.total[name]), name
    assert tree.total["loss_ns"] == pytest.approx(losses.total["loss_ns"])
    assert tree.total["loss_pct"] == pytest.approx(100 * tree.total["loss_ns"] / step_ns)


@pytest.mark.parametrize("level", ["operation", "gpu", "phase"])
def test_the_longest_path_is_a_column_of_the_tree(run: Run, level: str) -> None:
    names = ("path_ns", "path_gap_ns", "path_activities", "path_pct", "gap_host_ns")
    tree = query(run, parse(f"R?order={level}&columns={','.join(names)}"))
    shown = query(run, parse(f"R?view=graph&by={level}&columns={','.join(names)}"))
    for number, label in enumerate(tree.labels):
        there = shown.row(shown.labels.index(label))
        assert tree.row(number) == pytest.approx(there, nan_ok=True), label
    # Each activity of the path is a row of its own here, of both steps.
    each = query(run, parse("R?view=graph&by=node"))
    assert tree.total["path_ns"] == pytest.approx(each.values["path_ns"].numbers.sum() / 2) != 0
    for name in names:
        assert tree.total[name] == pytest.approx(shown.total[name]), name


def test_parts_of_some_gpus_are_divided_in_every_view(run: Run) -> None:
    """Half of the GPUs lack the FLOPs: the MFU of a row is divided as on the others, marked."""
    measured = dict(run.table.measured)
    lacks = run.table.gpu % 2 == 1
    ideal, rest = measured["theoretical_ns"], measured["unmodelled_ns"]
    moved = np.where(lacks, np.nan_to_num(rest) + np.nan_to_num(ideal), rest)
    measured |= {"theoretical_ns": np.where(lacks, np.nan, ideal), "unmodelled_ns": moved}
    measured[AT_PEAK] = np.where(lacks, np.nan, measured[AT_PEAK])
    half = replace(run, table=run.table.with_measured(measured), cubes=None)
    tree = query(half, parse("R?order=phase&columns=mfu_pct"))
    shown = query(half, parse("R?view=overheads&by=phase&columns=mfu_pct"))
    known = tree.values["mfu_pct"]
    there = {label: shown.row(number)["mfu_pct"] for number, label in enumerate(shown.labels)}
    assert {label: tree.row(n)["mfu_pct"] for n, label in enumerate(tree.labels)} == there
    assert known.extrapolated is not None and known.extrapolated.any()
    assert tree.total_mark("mfu_pct") == "~"
    of_all = query(run, parse("R?order=phase&columns=mfu_pct")).total["mfu_pct"]
    assert tree.total["mfu_pct"] == pytest.approx(of_all, rel=0.1)


def test_samples_in_the_time_of_a_row_are_columns_of_the_tree(run: Run) -> None:
    """By a loop over the samples of a GPU and the activities of an operation on it."""
    names = ("mean_gfx_mhz", "peak_power_w", "peak_at_ns", "lowest_gfx_mhz", "p95_power_w")
    asked = f"R:gpu=2/phase=backward?order=gpu,phase,operation&columns={','.join(names)}"
    found = query(run, parse(asked))
    rows = run.tree_of(found.view).node(("2", "backward")).rows.tolist()
    table = run.table
    label = next(label for label in found.labels if label.startswith("mlp_dp"))
    spans = sorted(
        (int(table.start_ns[row]), int(table.start_ns[row] + table.duration_ns[row]))
        for row in rows
        if table.text_of("operation", int(table.operation[row])) == label
    )

    def samples(name: str) -> list[tuple[float, int, int]]:
        """Value, time in which the operation runs, and middle of each sample with any."""
        curve = run.measured[name].curves[2]
        edges = curve.edges_ns.reshape(-1, 2).tolist()
        known = []
        for (begin, end), value in zip(edges, curve.interval_values().tolist(), strict=True):
            inside, at = 0, begin
            for first, last in spans:
                at = max(at, first)
                inside += max(min(last, end) - at, 0)
                at = max(at, min(last, end))
            if inside:
                known.append((value, inside, begin + (end - begin) // 2))
        return known

    clock, power = samples("gfx_mhz"), samples("power_w")
    row = found.row(found.labels.index(label))
    whole = sum(weight for _, weight, _ in clock)
    assert row["mean_gfx_mhz"] == pytest.approx(sum(v * w for v, w, _ in clock) / whole)
    assert row["lowest_gfx_mhz"] == min(value for value, _, _ in clock)
    most = max(power)[0]
    assert row["peak_power_w"] == most
    assert row["peak_at_ns"] in [at - run.origin_ns for value, _, at in power if value == most]
    below = 0
    for value, weight, _ in sorted(power):
        below += weight
        if below >= 0.95 * sum(each for _, each, _ in power):
            assert row["p95_power_w"] == value
            break


def test_samples_of_gpus_are_those_of_the_view_power(run: Run) -> None:
    names = [name for name in DECLARED if name in METRICS]
    tree = query(run, parse(f"R?columns={','.join(names)}"))
    shown = query(run, parse(f"R?view=power&columns={','.join(names)}"))
    for name in names:
        assert tree.values[name].known() == pytest.approx(
            shown.values[name].known(), nan_ok=True
        ), name
        assert tree.total[name] == pytest.approx(shown.total[name]), name
    peaks = {label: tree.row(number) for number, label in enumerate(tree.labels)}
    highest = max(peaks, key=lambda label: float(peaks[label]["peak_power_w"] or 0))
    assert tree.total["peak_at_ns"] == peaks[highest]["peak_at_ns"]
    assert tree.total["peak_power_w"] == peaks[highest]["peak_power_w"]


OF_RANKS: Final = (
    *("lead_ns", "mean_lead_ns", "starts_last_pct", "least_lead_ns", "occurrences", "behind"),
    "lag_ns",
    *("ahead_ns", "lead_change_ns", "work_ns", "throughput_x", "extra_work_ns", "slower_pct"),
    *("straggler_wait_ns", "delay_ns", "extra_host_ns", "extra_launch_ns", "apart_by"),
)


@pytest.mark.parametrize("level", ["gpu", "operation", "iteration"])
def test_figures_of_ranks_are_columns_of_the_tree(run: Run, level: str) -> None:
    tree = query(run, parse(f"R?order={level}&columns={','.join(OF_RANKS)}"))
    shown = query(run, parse(f"R?view=ranks&by={level}&columns={','.join(OF_RANKS)}"))
    for label in shown.labels:
        here, there = (each.row(each.labels.index(label)) for each in (tree, shown))
        assert here == pytest.approx(there, nan_ok=True), label
    if level == "gpu":
        shown = query(run, parse("R?view=overview"))
        lags = dict(zip(shown.labels, shown.values["lag_ns"].numbers.tolist(), strict=True))
        for label, lag in lags.items():
            assert tree.row(tree.labels.index(label))["lag_ns"] == pytest.approx(lag)
    for name in ("delay_ns", "extra_host_ns", "apart_by"):
        assert tree.values[name].present().any() == (level == "gpu"), name
    assert tree.values["behind"].present().any() == (level != "gpu")


def test_leads_and_work_of_one_gpu_are_those_of_its_matched_kernels(run: Run) -> None:
    """By a loop over the kernels that all GPUs run."""
    names = ("lead_ns", "mean_lead_ns", "lag_ns", "work_ns", "extra_work_ns", "slower_pct",
             "occurrences")  # fmt: skip
    asked = f"R:gpu=5?order=gpu,operation&base=total&columns={','.join(names)}"
    found = query(run, parse(asked))
    (peers,) = leads(run, View(run.name))[0].peers
    place, table = peers.gpus.index(5), run.table
    lead: Counter[str] = Counter()
    leads_of: dict[str, list[list[int]]] = {}
    took: dict[str, list[list[int]]] = {}
    steps: dict[str, set[int]] = {}
    for number, rows in enumerate(peers.rows.tolist()):
        label = table.text_of("operation", int(table.operation[rows[place]]))
        starts = [int(table.start_ns[row]) for row in rows]
        lead[label] += max(starts) - starts[place]
        leads_of.setdefault(label, []).append([max(starts) - start for start in starts])
        steps.setdefault(label, set()).add(int(table.iteration[rows[place]]))
        took.setdefault(label, [])
        if peers.is_same[number]:
            took[label].append([int(table.duration_ns[row]) for row in rows])
        else:
            took[label].append([0] * len(rows))
    assert len(lead) > 10
    for label, each in took.items():
        row = found.row(found.labels.index(label))
        own = np.sum(each, axis=0) / len(steps[label])
        usual = float(np.median(np.delete(own, place)))
        assert row["occurrences"] == len(each)
        assert row["lead_ns"] == pytest.approx(lead[label])
        assert row["mean_lead_ns"] == pytest.approx(lead[label] / len(each))
        means = np.mean(leads_of[label], axis=0)
        assert row["lag_ns"] == pytest.approx(max(means) - means[place])
        assert row["work_ns"] == pytest.approx(own[place])
        assert row["extra_work_ns"] == pytest.approx(own[place] - usual)
        assert row["slower_pct"] == pytest.approx(100 * (own[place] / usual - 1))


@pytest.mark.parametrize("view", ["explore", "kernels", "launch", "comms", "ranks", "throughput"])
def test_a_column_asked_for_that_has_no_figure_says_why(view: str) -> None:
    """The trace alone: nothing measures power, and kernels are known."""
    for columns in ("power_w,kernels", "%2Bpower_w,%2Bkernels"):
        told = query(sample_run(gpus=2), parse(f"R?view={view}&columns={columns}")).notes
        (note,) = [each for each in told if "unavailable" in each]
        assert note.startswith("power_w unavailable: the run has no telemetry of it"), note
