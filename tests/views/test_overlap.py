"""Overlap: ratios, correlations and slowdowns against plain loops and what was planted."""

from __future__ import annotations

import json
import math
import statistics
from collections import defaultdict
from dataclasses import dataclass

import numpy as np
import pytest
from msgspec.structs import replace

from chopper_core.analyses.overlap import Overlaps, overlaps_in
from chopper_core.model.address import parse, render
from chopper_core.model.charts import LineChart
from chopper_core.model.run import Run
from chopper_core.model.table import NO_LABEL_TEXT, Kind
from chopper_core.util.errors import UsageError
from chopper_core.views.query import query
from tests.demo import demo_run
from tests.support import Row, details, run_of
from tests.views.conftest import DEMO
from tests.wording import Wording

LEVELS = ("gpu", "iteration", "phase", "layer", "operation")
COLUMNS = (
    "overlap_pct,overlap_copies_pct,slowdown_x,overlap_cost_ns,pearson_r,cosine,"
    "median_overlap_pct,p5_overlap_pct,p95_overlap_pct,operation_instances,instance_ns,"
    "beside_comm_ns"
)


@dataclass
class Instance:
    labels: dict[str, str]
    elapsed: int
    comm: int
    masked: int
    kernels: tuple[tuple[float, ...], ...]

    @property
    def share(self) -> float:
        return self.comm / self.elapsed


def covered(begin: int, end: int, others: list[tuple[int, int]]) -> int:
    """How much of begin to end any of the others covers."""
    until, total = begin, 0
    for start, stop in sorted(others):
        low, high = max(start, until), min(stop, end)
        if high > low:
            total += high - low
            until = high
    return total


def visits_of(run: Run) -> dict[int, int]:
    """How often each compute kernel's stream has turned to another place before it."""
    table = run.table
    ours = [
        row
        for row in range(len(table))
        if table.kind[row] == Kind.COMPUTE
        and not table.text_of("operation", int(table.operation[row])).startswith("FSDP::")
    ]
    ours.sort(key=lambda row: (table.gpu[row], table.stream[row], table.start_ns[row], row))
    visit, found, last = 0, {}, None
    for row in ours:
        levels = LEVELS[:4] if table.layer[row] >= 0 else LEVELS
        place = (table.stream[row], *(table.column(level)[row] for level in levels))
        visit, last = visit + (place != last), place
        found[row] = visit
    return found


def sizes(run: Run, row: int) -> tuple[float, ...]:
    """The shape and the FLOPs of an activity, -1 where unknown."""
    values = [run.table.measured[name][row] for name in ("call_shape", "model_flops")
              if name in run.table.measured]  # fmt: skip
    return tuple(-1.0 if math.isnan(value) else float(value) for value in values)


def plain(run: Run, scope: str) -> list[Instance]:
    table = run.table
    rows: dict[tuple[str, ...], list[tuple[int, int]]] = defaultdict(list)
    visit = visits_of(run)
    kernels: dict[tuple[str, ...], list[tuple[float, ...]]] = defaultdict(list)
    comm: dict[str, list[tuple[int, int]]] = defaultdict(list)
    masked: dict[str, list[tuple[int, int]]] = defaultdict(list)
    wanted = set(run.tree().node(parse(f"R{scope}").path).rows.tolist())
    for row in range(len(table)):
        start = int(table.start_ns[row])
        span = (start, start + int(table.duration_ns[row]))
        gpu = str(table.gpu[row])
        name = table.text_of("operation", int(table.operation[row]))
        if table.kind[row] == Kind.COMM:
            comm[gpu].append(span)
            masked[gpu].append(span)
        elif name.startswith("FSDP::"):
            masked[gpu].append(span)
        elif table.kind[row] == Kind.COMPUTE and row in wanted:
            key = tuple(table.text_of(level, int(table.column(level)[row])) for level in LEVELS)
            key += (str(visit[row]),)
            rows[key].append(span)
            kernels[key].append((int(table.kernel[row]), *sizes(run, row)))
    found = []
    for key, spans in rows.items():
        begin, end = min(low for low, _ in spans), max(high for _, high in spans)
        near = [
            [one for one in of[key[0]] if one[1] > begin and one[0] < end] for of in (comm, masked)
        ]
        labels = dict(zip(LEVELS, key[:-1], strict=True))
        beside = (sum(covered(*span, own) for span in spans) for own in near)
        took = sum(high - low for low, high in spans)
        found.append(Instance(labels, took, *beside, tuple(sorted(kernels[key]))))
    return found


def cosine(x: list[float], y: list[float]) -> float | None:
    size = math.sqrt(sum(a * a for a in x) * sum(b * b for b in y))
    return sum(a * b for a, b in zip(x, y, strict=True)) / size if size > 1e-9 * len(x) else None


SCOPES = [":gpu=2/iteration=12", ":gpu=5/iteration=11/phase=backward"]


@pytest.mark.sweep
@pytest.mark.parametrize("scope", SCOPES)
@pytest.mark.parametrize("by", ["operation", "phase", "layer"])
def test_each_row_against_a_plain_loop(run: Run, scope: str, by: str) -> None:
    frame = query(run, parse(f"R{scope}?view=overlap&by={by}&columns={COLUMNS}"))
    expected: dict[str, list[Instance]] = defaultdict(list)
    for one in plain(run, scope):
        expected[one.labels[by]].append(one)
    assert set(frame.labels) == set(expected)
    slowed = 0
    for number, label in enumerate(frame.labels):
        row, own = frame.row(number), expected[label]
        elapsed = sum(one.elapsed for one in own)
        assert row["operation_instances"] == len(own)
        assert row["instance_ns"] == elapsed
        assert row["beside_comm_ns"] == sum(one.comm for one in own)
        assert row["overlap_pct"] == pytest.approx(100 * sum(one.comm for one in own) / elapsed)
        assert row["overlap_copies_pct"] == pytest.approx(
            100 * sum(one.masked for one in own) / elapsed
        )
        shares = [100 * one.share for one in own]
        assert row["median_overlap_pct"] == pytest.approx(statistics.median(shares))
        assert row["p5_overlap_pct"] == pytest.approx(np.quantile(shares, 0.05))
        assert row["p95_overlap_pct"] == pytest.approx(np.quantile(shares, 0.95))
        alike: dict[tuple[object, ...], list[Instance]] = defaultdict(list)
        for one in own:
            labels = (one.labels[name] for name in ("gpu", "phase", "operation"))
            alike[*labels, one.kernels].append(one)
        x, y, share, relative = [], [], [], []
        low_sum = high_sum = cost = 0.0
        for like in alike.values():
            mean = statistics.fmean(one.elapsed for one in like)
            usual = statistics.fmean(one.share for one in like)
            share += [one.share for one in like]
            relative += [one.elapsed / mean for one in like]
            x += [one.share - usual for one in like]
            y += [one.elapsed / mean - 1 for one in like]
            least, most = min(one.share for one in like), max(one.share for one in like)
            quarter = (most - least) / 4
            low = [one.elapsed for one in like if one.share <= least + quarter]
            high = [one.elapsed for one in like if one.share >= most - quarter]
            if most - least >= 0.1 and len(low) > 1 and len(high) > 1:
                difference = statistics.median(high) - statistics.median(low)
                low_sum += len(like) * statistics.median(low)
                high_sum += len(like) * statistics.median(high)
                cost += len(high) * difference
        slowed += low_sum > 0
        for name, pair in (("pearson_r", (x, y)), ("cosine", (share, relative))):
            known = cosine(*pair)
            assert row[name] == (None if known is None else pytest.approx(known, abs=1e-6))
        assert row["slowdown_x"] == (pytest.approx(high_sum / low_sum) if low_sum else None)
        assert row["overlap_cost_ns"] == (pytest.approx(cost) if low_sum else None)
    assert slowed or by == "layer"


@pytest.mark.sweep
def test_of_one_operation_it_is_the_plain_correlation(run: Run) -> None:
    scope = ":gpu=2/iteration=12/phase=forward"
    own = [one for one in plain(run, scope) if one.labels["operation"] == "attn_op"]
    frame = query(run, parse(f"R{scope}?view=overlap"))
    row = frame.row(list(frame.labels).index("attn_op"))
    shares, times = [one.share for one in own], [float(one.elapsed) for one in own]
    assert row["pearson_r"] == pytest.approx(statistics.correlation(shares, times))
    assert row["cosine"] == pytest.approx(cosine(shares, times))


def test_the_planted_slowdown_is_found(run: Run) -> None:
    truth = json.loads((DEMO / "truth.json").read_text())["overlap_slowed_operation"]
    place = f"phase={truth['phase']}/operation={truth['operation']}"
    frame = query(run, parse(f"R:{place}?order=phase,operation&view=overlap&by=gpu"))
    assert len(frame) == 8
    for number, gpu in enumerate(frame.labels):
        each = truth["per_rank"][gpu]
        expected = each["fully"]["mean_ns"] / each["alone"]["mean_ns"]
        # The truth's means are of the whole iterations, the medians of the cut one too.
        assert frame.row(number)["slowdown_x"] == pytest.approx(expected, rel=0.02)
    for iteration in (11, 12):
        path = f"R:iteration={iteration}/{place}?order=iteration,phase,operation"
        ones = query(run, parse(f"{path}&view=overlap&by=instance"))
        assert len(ones) == 8 * 32
    overall = query(run, parse("R?view=overlap"))
    assert overall.headline[1].startswith("attn_op +")


def test_counts_of_alone_partly_and_fully_are_the_planted_ones(run: Run) -> None:
    truth = json.loads((DEMO / "truth.json").read_text())["overlap_slowed_operation"]
    found: dict[str, dict[str, int]] = defaultdict(lambda: defaultdict(int))
    for iteration in (11, 12):
        path = f"R:iteration={iteration}/phase=forward/operation=attn_op"
        address = f"{path}?order=iteration,phase,operation&view=overlap&by=instance"
        frame = query(run, parse(address))
        for number in range(len(frame)):
            row = frame.row(number)
            share = row["overlap_pct"]
            kind = "alone" if share == 0 else "fully" if share == 100 else "partly"
            found[str(row["gpu"])][kind] += 1
    expected = {
        rank: {kind: one["count"] for kind, one in kinds.items()}
        for rank, kinds in truth["per_rank"].items()
    }
    assert found == expected


@pytest.mark.sweep
def test_instances_lead_to_their_operation(run: Run) -> None:
    scope = ":gpu=1/iteration=12/phase=backward/layer=9"
    frame = query(run, parse(f"R{scope}?view=overlap&by=instance"))
    expected = {
        one.labels["operation"]: one
        for one in plain(run, scope)
        if not one.labels["operation"].startswith("FSDP::")
    }
    assert sorted(frame.labels) == sorted(expected)
    for number, label in enumerate(frame.labels):
        row, one = frame.row(number), expected[label]
        assert row["instance_ns"] == one.elapsed and row["beside_comm_ns"] == one.comm
        assert row["overlap_pct"] == pytest.approx(100 * one.share)
        address = frame.addresses(number)
        assert render(parse(address)) == address
        there = query(run, parse(address))
        assert dict(there.view.scope) == one.labels


@pytest.mark.sweep
def test_the_cumulative_curves_are_shares_of_instances(run: Run) -> None:
    frame = query(run, parse("R:iteration=12?order=iteration&view=overlap&by=gpu"))
    chart = frame.charts[0]
    assert isinstance(chart, LineChart) and len(chart.series) == 8
    own: dict[str, list[float]] = defaultdict(list)
    for gpu in ("2", "5"):
        own[gpu] = [100 * one.share for one in plain(run, f":gpu={gpu}/iteration=12")]
        line = next(line for line in chart.series if line.name == f"GPU {gpu}")
        for x, y in zip(chart.x[0], line.numbers, strict=True):
            share = sum(one <= x + 1e-9 for one in own[gpu]) / len(own[gpu])
            assert y == pytest.approx(100 * share)


def test_a_table_made_by_hand() -> None:
    comm = {"kind": Kind.COMM, "stream": 7, "operation": "all_gather"}
    rows = [
        Row(0, 100, layer=0, operation="mlp"),
        Row(200, 150, layer=1, operation="mlp"),
        Row(400, 100, layer=2, operation="mlp"),
        Row(600, 150, layer=3, operation="mlp"),
        # Two collectives at once count once; the copy counts for the other ratio alone.
        Row(190, 200, **comm),
        Row(250, 50, **comm | {"stream": 8}),
        Row(590, 200, **comm),
        Row(440, 20, stream=9, layer=2, operation="FSDP::all_gather_copy_out"),
    ]
    row = query(run_of(rows), parse(f"R?view=overlap&columns={COLUMNS}")).row(0)
    assert row["overlap_pct"] == pytest.approx(60) and row["beside_comm_ns"] == 300
    assert row["overlap_copies_pct"] == pytest.approx(64)
    assert row["slowdown_x"] == pytest.approx(1.5) and row["overlap_cost_ns"] == 100
    assert row["pearson_r"] == pytest.approx(1.0)


def test_without_communication_nothing_is_claimed(wording: Wording) -> None:
    found = query(run_of([Row(0, 10), Row(20, 10)]), parse(f"R?view=overlap&columns={COLUMNS}"))
    row = found.row(0)
    assert row["overlap_pct"] == 0 and row["operation_instances"] == 1
    assert row["slowdown_x"] is row["pearson_r"] is row["cosine"] is None
    wording(found.headline[0], "no communication")
    only = run_of([Row(0, 10, Kind.COMM, operation="all_reduce")])
    with pytest.raises(UsageError, match="no overlap: the scope has no compute"):
        query(only, parse("R?view=overlap"))


@pytest.mark.sweep
@pytest.mark.parametrize("stat", ["mean", "median", "p95", "max", "min", "spread"])
@pytest.mark.parametrize("by", ["operation", "gpu", "iteration"])
def test_a_statistic_goes_over_the_instances_of_a_row(run: Run, stat: str, by: str) -> None:
    found = query(run, parse(f"R?view=overlap&by={by}&stat={stat}&columns={COLUMNS}"))
    assert found.over == LEVELS
    each: dict[str, list[Instance]] = defaultdict(list)
    for one in plain(run, ""):
        step = one.labels["iteration"]
        if step != NO_LABEL_TEXT and int(step) not in run.cut_iterations:
            each[one.labels[by]].append(one)
    makes = {
        "mean": statistics.fmean,
        "median": statistics.median,
        "p95": lambda values: float(np.quantile(values, 0.95)),
        "max": max,
        "min": min,
        "spread": lambda values: max(values) - min(values),
    }
    seen = 0
    for number, label in enumerate(found.labels):
        row, own = found.row(number), each.get(label, [])
        if not own:
            assert row["instance_ns"] is None and row["overlap_pct"] is None
            continue
        seen += 1
        make = makes[stat]
        assert row["instance_ns"] == pytest.approx(make([one.elapsed for one in own]))
        assert row["beside_comm_ns"] == pytest.approx(make([one.comm for one in own]))
        shares = [100 * one.share for one in own]
        assert row["overlap_pct"] == pytest.approx(make(shares), abs=1e-9)
    assert seen >= 2
    titles = {column.name: column.title for column in found.columns}
    assert titles["instance_ns"].startswith(stat) and titles["slowdown_x"] == "slowdown"


def test_overlap_has_its_own_instances(run: Run) -> None:
    with pytest.raises(UsageError, match="no other over="):
        query(run, parse("R?view=overlap&stat=max&over=gpu"))


def test_micro_steps_are_instances_of_their_own() -> None:
    """Two passes over two layers: the gradient's sum of the first one is unlike the others."""
    rows, now = [], 0
    for step in range(4):
        for layer in (0, 1):
            beside = step == 3
            took = 150 if beside else 100
            kernels = [("mul", took)] if step or layer else [("mul", took), ("sum", 5)]
            for kernel, duration in kernels:
                place = {"iteration": 0, "layer": layer, "kernel": kernel, "operation": "mul"}
                rows.append(Row(now, duration, **place))
                now += duration
            if beside:
                rows.append(Row(now - took, took, Kind.COMM, 1, iteration=0, layer=layer))
    found = query(run_of(rows), parse("R?view=overlap&by=instance&columns=instance_ns,overlap_pct"))
    assert [found.row(n)["instance_ns"] for n in range(8)] == [
        105,
        100,
        100,
        100,
        100,
        100,
        150,
        150,
    ]
    assert [found.row(n)["overlap_pct"] for n in range(8)] == [0] * 6 + [100, 100]
    whole = query(run_of(rows), parse(f"R?view=overlap&by=operation&columns={COLUMNS}")).row(0)
    assert whole["slowdown_x"] == 1.5 and whole["overlap_cost_ns"] == 100
    assert whole["overlap_pct"] == pytest.approx(100 * 300 / 905)


def test_a_collective_between_two_kernels_overlaps_neither() -> None:
    """As under tensor parallelism: a reduction between two kernels of an operation."""
    rows = []
    for step in range(6):
        at = 10_000 * step
        rows += [
            Row(at, 1000, iteration=step, layer=0, operation="q_ip"),
            Row(at + 1000, 800, Kind.COMM, 9, iteration=step, layer=0, operation="all_reduce"),
            Row(at + 1800, 500, iteration=step, layer=0, operation="q_ip"),
        ]
    frame = query(run_of(rows), parse("R?view=overlap"))
    row = frame.row(0)
    assert (row["overlap_pct"], row["instance_ns"], row["beside_comm_ns"]) == (0, 1500, 0)
    assert not [f for f in details(query(run_of(rows), parse("R?view=findings"))) if "slow" in f]


def test_like_instances_have_equal_shapes() -> None:
    """One of twice the FLOPs, beside communication, isn't slowed by that."""
    rows = []
    for step in range(8):
        at, took = 10_000 * step, 1000 * (1 + step % 2)
        rows.append(Row(at, took, iteration=step, layer=0, operation="q_ip"))
        if step % 2:
            rows.append(Row(at, took, Kind.COMM, 9, iteration=step, layer=0, operation="ag"))
    run = run_of(rows)
    flops = np.where(run.table.kind == Kind.COMPUTE, run.table.duration_ns * 1e6, np.nan)
    sized = replace(run, table=run.table.with_measured({"model_flops": flops}))
    for each, slowed in ((run, 2.0), (sized, None)):
        assert query(each, parse("R?view=overlap")).row(0).get("slowdown_x") == slowed


def test_kernels_of_one_name_outside_of_layers_may_be_of_any_size() -> None:
    """The second of a step, beside communication, is larger, and so it is without that."""
    rows = []
    for step in range(8):
        for number, took in enumerate((1000, 2000)):
            at = 10_000 * step + 4_000 * number
            rows.append(Row(at, took, iteration=step, operation="mm"))
            rows.append(Row(at + 3_000, 500, iteration=step, operation="norm"))
        rows.append(Row(at, 2_000, Kind.COMM, 9, iteration=step, operation="ag"))
    rows.sort(key=lambda row: (row.iteration, row.operation, row.start))
    assert query(run_of(rows), parse("R?view=overlap")).row(0).get("slowdown_x") is None


@pytest.mark.parametrize(
    "path", ["gpu=1", "gpu=1/iteration=11", "gpu=0/iteration=11/phase=backward"]
)
def test_a_gpu_has_the_same_instances_by_itself_and_among_all(path: str) -> None:
    view = parse(f"R:{path}?view=overlap")
    alone = overlaps_in(replace(demo_run()), view)
    together = replace(demo_run())
    overlaps_in(together, parse("R?view=overlap"))
    among = overlaps_in(together, view)
    assert len(alone)
    for name in Overlaps.__struct_fields__[1:]:
        assert np.array_equal(getattr(alone, name), getattr(among, name)), name
