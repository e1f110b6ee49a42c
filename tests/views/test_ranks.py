"""Ranks: leads, waits and causes against plain loops, and what the demo's generator planted."""

from __future__ import annotations

import json
import statistics
from collections import defaultdict

import numpy as np
import pytest
from msgspec.structs import replace

from chopper_core.analyses import matched_kernels as occurrences
from chopper_core.analyses.matched_kernels import occurrences_of
from chopper_core.model.address import parse, render
from chopper_core.model.charts import HeatMap, LineChart
from chopper_core.model.inputs import NO_DEVICE
from chopper_core.model.run import Run
from chopper_core.model.table import Kind, Phase
from chopper_core.util.errors import UsageError
from chopper_core.views.query import query
from tests.support import Row, rows_of, run_of
from tests.views.conftest import DEMO
from tests.wording import Wording

GPUS = range(8)
SCOPES = ["", ":gpu=3/iteration=12", ":gpu=0/iteration=11/phase=backward/layer=7"]
PER_GPU = (
    "lead_ns,mean_lead_ns,starts_last_pct,work_ns,throughput_x,extra_work_ns,slower_pct,"
    "extra_host_ns,extra_launch_ns,span_ns,wait_ns,caused_ns,exposed_wait_ns,caused_exposed_ns"
)
PER_LABEL = "ahead_ns,behind,lead_change_ns,slower_pct,occurrences,wait_ns,straggler_wait_ns"


def others(values: dict[int, float], gpu: int) -> float:
    return statistics.median(value for other, value in values.items() if other != gpu)


class Plain:
    """The scope's figures by loops over its activities."""

    def __init__(self, run: Run, scope: str) -> None:
        table, view = run.table, parse(f"R{scope}")
        wanted = dict(view.scope)
        wanted.pop("gpu", None)
        self.run = run
        self.rows = [
            row
            for row in run.tree().node(()).rows.tolist()
            if table.iteration[row] >= 0
            and all(
                table.text_of(level, int(table.column(level)[row])) == text
                for level, text in wanted.items()
            )
        ]
        seen: dict[tuple[int, ...], int] = defaultdict(int)
        starts: dict[tuple[int, ...], dict[int, int]] = defaultdict(dict)
        for row in sorted(self.rows, key=lambda r: (int(table.start_ns[r]), int(table.stream[r]))):
            if table.kind[row] != Kind.COMPUTE:
                continue
            levels = ("iteration", "phase", "layer", "operation", "kernel")
            key = tuple(int(table.column(level)[row]) for level in levels)
            gpu = int(table.gpu[row])
            starts[(*key, seen[(gpu, *key)])][gpu] = row
            seen[(gpu, *key)] += 1
        found = [
            own
            for (*key, _), own in starts.items()
            if len(own) == 8 and len({seen[(gpu, *key)] for gpu in GPUS}) == 1
        ]
        self.found = sorted(found, key=self.last)

    def start(self, row: int) -> int:
        return int(self.run.table.start_ns[row])

    def last(self, own: dict[int, int]) -> int:
        return max(self.start(row) for row in own.values())

    def leads(self, own: dict[int, int]) -> dict[int, int]:
        return {gpu: self.last(own) - self.start(row) for gpu, row in own.items()}

    def behind(self) -> int:
        return min(GPUS, key=lambda gpu: sum(self.leads(own)[gpu] for own in self.found))


@pytest.mark.few(1)
@pytest.mark.parametrize("scope", SCOPES)
def test_each_gpu_against_a_plain_loop(run: Run, scope: str) -> None:
    plain, table = Plain(run, scope), run.table
    found = rows_of(query(run, parse(f"R{scope}?view=ranks&base=total&columns={PER_GPU}")))
    iterations = sorted({int(table.iteration[row]) for row in plain.rows})
    sums: dict[str, dict[int, float]] = {
        name: defaultdict(float) for name in ("lead", "last", "work", "host", "launch")
    }
    for own in plain.found:
        for gpu, lead in plain.leads(own).items():
            sums["lead"][gpu] += lead
            sums["last"][gpu] += lead == 0
            sums["work"][gpu] += int(table.duration_ns[own[gpu]]) / len(iterations)
    times: dict[int, list[int]] = {gpu: [] for gpu in GPUS}
    for row in plain.rows:
        gpu = int(table.gpu[row])
        sums["host"][gpu] += int(table.idle_host_ns[row]) / len(iterations)
        sums["launch"][gpu] += int(table.idle_launch_ns[row]) / len(iterations)
        sums["launch"][gpu] += int(table.idle_unknown_ns[row]) / len(iterations)
    for gpu in GPUS:
        for iteration in iterations:
            own = [r for r in plain.rows if table.gpu[r] == gpu and table.iteration[r] == iteration]
            ends = [plain.start(r) + int(table.duration_ns[r]) for r in own]
            times[gpu].append(max(ends) - min(map(plain.start, own)))
    for gpu in GPUS:
        row, count = found[str(gpu)], len(plain.found)
        work, slowest = sums["work"], max(sums["work"].values())
        assert row["lead_ns"] == sums["lead"][gpu]
        assert row["mean_lead_ns"] == pytest.approx(sums["lead"][gpu] / count)
        assert row["starts_last_pct"] == pytest.approx(100 * sums["last"][gpu] / count)
        assert row["work_ns"] == pytest.approx(work[gpu])
        assert row["throughput_x"] == pytest.approx(slowest / work[gpu])
        assert row["extra_work_ns"] == pytest.approx(work[gpu] - others(work, gpu))
        assert row["slower_pct"] == pytest.approx(100 * (work[gpu] / others(work, gpu) - 1))
        for name in ("host", "launch"):
            extra = sums[name].get(gpu, 0) - others({g: sums[name].get(g, 0) for g in GPUS}, gpu)
            assert row[f"extra_{name}_ns"] == pytest.approx(extra)
        assert row["span_ns"] == pytest.approx(statistics.median(times[gpu]))


def alone(run: Run, gpu: int, begin: int, end: int) -> int:
    """The time from begin to end without compute on a GPU."""
    table, left = run.table, [(begin, end)]
    for row in np.flatnonzero((table.gpu == gpu) & (table.kind == Kind.COMPUTE)).tolist():
        start = int(table.start_ns[row])
        stop = start + int(table.duration_ns[row])
        if stop <= begin or start >= end:
            continue
        left = [
            part
            for low, high in left
            for part in ((low, min(high, start)), (max(low, stop), high))
            if part[0] < part[1]
        ]
    return sum(high - low for low, high in left)


def test_waits_are_those_of_the_collectives(run: Run) -> None:
    scope = ":gpu=0/iteration=12/phase=optimizer"
    found = rows_of(query(run, parse(f"R{scope}?view=ranks&base=total&columns={PER_GPU}")))
    table = run.table
    waits: dict[str, dict[int, int]] = {name: defaultdict(int) for name in PER_GPU.split(",")}
    each = query(run, parse("R:gpu=0/iteration=12/phase=optimizer?view=comms&by=collective"))
    assert len(each)
    for number in range(len(each)):
        kernels = query(run, each.target(number))
        starts = {int(gpu): 0 for gpu in kernels.labels}
        for place, gpu in enumerate(kernels.labels):
            starts[int(gpu)] = kernels.row(place)["start_ns"] + run.origin_ns
        last = max(starts, key=lambda gpu: starts[gpu])
        for gpu, start in starts.items():
            wait = starts[last] - start
            row = next(r for r in np.flatnonzero(table.start_ns == start) if table.gpu[r] == gpu)
            exposed = min(alone(run, gpu, start, starts[last]), int(table.exposed_comm_ns[row]))
            waits["wait_ns"][gpu] += wait
            waits["caused_ns"][last] += wait
            waits["exposed_wait_ns"][gpu] += exposed
            waits["caused_exposed_ns"][last] += exposed
    for gpu in GPUS:
        for name in ("wait_ns", "caused_ns", "exposed_wait_ns", "caused_exposed_ns"):
            assert found[str(gpu)][name] == waits[name].get(gpu, 0), (gpu, name)


@pytest.mark.sweep
@pytest.mark.parametrize("by", ["iteration", "phase", "layer", "operation"])
def test_each_label_against_a_plain_loop(run: Run, by: str) -> None:
    plain, table = Plain(run, ""), run.table
    found = rows_of(query(run, parse(f"R?view=ranks&by={by}&base=total&columns={PER_LABEL}")))
    behind = plain.behind()
    leads: dict[str, list[dict[int, int]]] = defaultdict(list)
    changes: dict[str, float] = defaultdict(float)
    work: dict[str, dict[int, float]] = defaultdict(lambda: defaultdict(float))
    before: dict[int, tuple[str, float]] = {}
    for own in plain.found:
        label = table.text_of(by, int(table.column(by)[own[0]]))
        lead = plain.leads(own)
        leads[label].append(lead)
        for gpu, row in own.items():
            work[label][gpu] += int(table.duration_ns[row])
        ahead = statistics.fmean(lead[g] for g in GPUS if g != behind) - lead[behind]
        iteration = int(table.iteration[own[0]])
        if iteration in before:
            earlier, then = before[iteration]
            changes[earlier] += ahead - then
        before[iteration] = (label, ahead)
    assert {name for name, row in found.items() if row["occurrences"]} == set(leads)
    for label, own in leads.items():
        row = found[label]
        sums = {gpu: sum(lead[gpu] for lead in own) for gpu in GPUS}
        late = min(GPUS, key=lambda gpu: sums[gpu])
        ahead = statistics.fmean(sums[g] for g in GPUS if g != late) - sums[late]
        assert row["occurrences"] == len(own) * len(GPUS)
        assert row["behind"] == f"GPU {late}"
        assert row["ahead_ns"] == pytest.approx(ahead / len(own))
        assert row["lead_change_ns"] == pytest.approx(changes[label] * len(GPUS), abs=1e-2)
        rest = others(dict(work[label]), behind)
        assert row["slower_pct"] == pytest.approx(100 * (work[label][behind] / rest - 1))


def test_iterations_have_their_time_and_throughput(run: Run) -> None:
    truth = json.loads((DEMO / "truth.json").read_text())
    found = rows_of(query(run, parse("R?view=ranks&by=iteration")))
    assert list(found) == ["11", "12"]
    for label, row in found.items():
        longest = max(spans[label] for spans in truth["spans_ns"].values())
        assert row["span_ns"] == pytest.approx(longest, rel=1e-6)
    assert max(row["throughput_x"] for row in found.values()) > 1.0
    assert min(row["throughput_x"] for row in found.values()) == 1.0


def test_the_slow_gpu_is_named_with_its_cause(run: Run, wording: Wording) -> None:
    truth = json.loads((DEMO / "truth.json").read_text())["slow_gpu"]
    found = query(run, parse("R?view=ranks"))
    rows = rows_of(found)
    slow = str(truth["rank"])
    assert min(rows, key=lambda gpu: rows[gpu]["mean_lead_ns"]) == slow
    assert max(rows, key=lambda gpu: rows[gpu]["caused_ns"]) == slow
    assert {gpu: row["apart_by"] for gpu, row in rows.items() if row["apart_by"]} == {slow: "clock"}
    assert rows[slow]["slower_pct"] == pytest.approx(100 * (truth["compute_slowdown"] - 1), abs=1)
    assert rows[slow]["gfx_mhz"] == pytest.approx(truth["mhz"][slow], rel=0.01)
    first, second = found.headline
    waits, cause = second.split(" · ")
    assert first.startswith("straggler GPU 5 lags ") and " since forward layer " in first
    each = rows[slow]["caused_ns"] / 1e6
    wording(waits, f"{each:.4g} ms per step")
    assert cause.startswith("hardware-bound: ") and "(1,576 vs 1,680 MHz)" in cause
    assert "°C" in cause
    lines, heat = found.charts
    assert isinstance(lines, LineChart) and isinstance(heat, HeatMap)
    assert heat.numbers.sum(axis=1).mean() == pytest.approx(found.total["wait_ns"] / 1e6)
    for place, gpu in enumerate(sorted(found.labels)):
        assert heat.numbers[place].sum() == pytest.approx(rows[gpu]["wait_ns"] / 1e6)
        assert heat.numbers[:, place].mean() == pytest.approx(rows[gpu]["caused_ns"] / 1e6)


def test_the_host_bound_stretch_is_told_from_the_slow_clock(run: Run) -> None:
    truth = json.loads((DEMO / "truth.json").read_text())["host_bound_stretch"]
    scope = f":iteration={truth['iteration']}/phase={truth['phase']}/layer={truth['layers'][-1]}"
    order = "order=iteration,phase,layer"
    found = query(run, parse(f"R{scope}?{order}&view=ranks"))
    late = rows_of(found)[str(truth["rank"])]
    assert late["apart_by"] == "host"
    assert late["extra_host_ns"] > 1_000_000


def made(late: int = 0, slow: float = 1.0, gap: int = 0) -> Run:
    """Two steps of four layers on three GPUs, the last of them late, slow or with gaps."""
    rows = []
    for gpu in range(3):
        apart = gpu == 2
        for iteration in range(2):
            now = 1_000_000 * iteration
            for layer in range(4):
                now += late if apart else 0
                call = now
                now += gap if apart else 0
                cost = round(10_000 * (slow if apart else 1))
                place = {"gpu": gpu, "iteration": iteration, "layer": layer}
                rows.append(Row(now, cost, operation="mlp", launch=call, **place))
                now += cost
            rows.append(
                Row(now, 5_000, gpu=gpu, iteration=iteration, phase=Phase.OPTIMIZER, launch=now)
            )
    return run_of(rows)


@pytest.mark.parametrize(
    ("run_made", "cause", "word"),
    [
        (made(late=3_000), "host-bound: ", "host"),
        (made(slow=1.3), "kernel-bound: ", "kernels"),
        (made(gap=2_000), "launch-bound: ", "launch"),
    ],
)
def test_causes_are_told_apart(run_made: Run, cause: str, word: str) -> None:
    found = query(run_made, parse("R?view=ranks"))
    assert found.headline[0].startswith("straggler GPU 2 ")
    assert found.headline[-1].startswith(cause)
    assert rows_of(found)["2"]["apart_by"] == word
    assert rows_of(found)["0"]["wait_ns"] is None
    assert any("no collectives" in note for note in found.notes)


def test_nobody_is_blamed_where_nobody_is_late() -> None:
    found = query(made(), parse("R?view=ranks"))
    assert found.headline[0].startswith("no straggler: ")
    assert [row["apart_by"] for row in rows_of(found).values()] == [None] * 3


def test_throughput_is_compared_with_gpus_that_run_the_same() -> None:
    # Two stages of two GPUs, of 2 and of 5 layers, and a GPU that nothing is like.
    durations, layers = (100, 200, 1000, 1500, 70), (2, 2, 5, 5, 3)
    rows = [
        Row(2000 * (layers[gpu] * step + layer), durations[gpu], gpu=gpu, iteration=step,
            layer=layer, operation="op" if gpu < 4 else "other", kernel="gemm")
        for gpu in range(5) for step in range(2) for layer in range(layers[gpu])
    ]  # fmt: skip
    found = query(run_of(rows), parse("R?view=ranks&columns=work_ns,throughput_x"))
    rows_by_gpu = rows_of(found)
    assert [rows_by_gpu[gpu]["work_ns"] for gpu in "0123"] == [200, 400, 5000, 7500]
    assert [rows_by_gpu[gpu]["throughput_x"] for gpu in "0123"] == [2.0, 1.0, 1.5, 1.0]
    assert (rows_by_gpu["4"]["work_ns"], rows_by_gpu["4"]["throughput_x"]) == (None, None)


def test_what_cannot_be_compared_is_said(wording: Wording) -> None:
    with pytest.raises(UsageError, match="one GPU only"):
        query(run_of([Row(0, 5)]), parse("R?view=ranks"))
    apart = [Row(0, 5, operation="a"), Row(0, 5, gpu=1, operation="b")]
    with pytest.raises(UsageError, match="no compute kernel of the scope runs on all GPUs"):
        query(run_of(apart), parse("R?view=ranks&by=layer"))
    found = query(run_of(apart), parse("R?view=ranks"))
    (note,) = found.headline
    wording(note, "no compute kernel")
    assert found.labels == ["0", "1"]
    assert found.values["iteration_ns"].known().tolist() == [5, 5]


@pytest.mark.few(2)
@pytest.mark.parametrize("by", ["gpu", "iteration", "phase", "layer", "operation"])
def test_a_row_leads_somewhere(run: Run, by: str) -> None:
    found = query(run, parse(f"R:gpu=1/iteration=12?view=ranks&by={by}"))
    for number in range(min(len(found), 4)):
        address = found.addresses(number)
        assert render(parse(address)) == address
        there = query(run, parse(address))
        assert len(there)
        assert dict(there.view.scope)[by] == found.labels[number]


def test_a_kernel_that_one_gpu_has_once_more_takes_no_part(run: Run) -> None:
    """One copy of GPU 0 lacks its layer, so that it is the first of two of no layer there."""
    (found,) = occurrences_of(run)
    assert float(found.lead_ns.max()) < 30e6


def test_nodes_put_their_gpus_together(run: Run) -> None:
    assert query(run, parse("R?view=ranks&by=node")).labels == ["node 0"]
    nowhere = replace(run, gpus=tuple(replace(gpu, device=NO_DEVICE) for gpu in run.gpus))
    with pytest.raises(UsageError, match="give the nodes of the GPUs"):
        query(nowhere, parse("R?view=ranks&by=node"))
    hosts = ["left", "right", "left", "left", "right", "left", "right", "right"]
    of_rank = dict(enumerate(hosts))
    sources = tuple(replace(one, host=of_rank[one.rank]) for one in run.sources)
    named = replace(run, sources=sources)
    each = rows_of(
        query(named, parse(f"R?view=ranks&base=total&columns={PER_GPU},gfx_mhz,apart_by"))
    )
    found = query(named, parse("R?view=ranks&by=node&base=total"))
    assert found.labels == ["left", "right"]
    for number, label in enumerate(found.labels):
        row = found.row(number)
        own = {gpu: each[str(gpu)] for gpu in GPUS if hosts[gpu] == label}
        assert row["group_gpus"] == 4
        assert row["caused_ns"] == sum(one["caused_ns"] for one in own.values())
        assert row["wait_ns"] == sum(one["wait_ns"] for one in own.values())
        late = min(own, key=lambda gpu: own[gpu]["mean_lead_ns"])
        assert row["behind"] == f"GPU {late}"
        assert row["least_lead_ns"] == own[late]["mean_lead_ns"]
        for name in ("mean_lead_ns", "slower_pct", "span_ns", "gfx_mhz"):
            expected = statistics.median(one[name] for one in own.values())
            assert row[f"median_{name}"] == pytest.approx(expected)
        assert row["apart_gpus"] == ("1 clock" if label == "left" else None)
        address = found.addresses(number)
        assert render(parse(address)) == address
        assert sorted(query(named, parse(address)).labels) == [str(gpu) for gpu in own]


def test_registered_columns_answer_for_the_gpus_of_a_node(run: Run) -> None:
    hosts = ["left", "right", "left", "left", "right", "left", "right", "right"]
    sources = tuple(replace(one, host=hosts[one.rank]) for one in run.sources)
    named = replace(run, sources=sources)
    names = "columns=kernel_ns,elapsed_ns,busy_pct"
    for base, divided in (("total", 1), ("", 4)):
        tree = query(named, parse(f"R?base={base}&{names}" if base else f"R?{names}"))
        each = rows_of(tree)
        for view in ("ranks", "power"):
            shown = query(named, replace(tree.view, name=view, by="node"))
            assert shown.total["kernel_ns"] == pytest.approx(tree.total["kernel_ns"])
            assert sorted(shown.labels) == ["left", "right"]
            for label, row in rows_of(shown).items():
                own = [each[str(gpu)] for gpu in GPUS if hosts[gpu] == label]
                kernel = sum(one["kernel_ns"] for one in own) / divided
                assert row["kernel_ns"] == pytest.approx(kernel)
                busy = sum(one["busy_pct"] * one["elapsed_ns"] for one in own)
                lasted = sum(one["elapsed_ns"] for one in own)
                assert row["busy_pct"] == pytest.approx(busy / lasted)
    # Without hosts the numbers of the devices tell: all eight are of one node.
    (label,) = (power := query(run, parse(f"R?view=power&by=node&{names}"))).labels
    whole = query(run, parse(f"R?{names}")).total
    assert power.row(0) == pytest.approx({name: whole[name] for name in power.row(0)}), label


def test_of_too_many_activities_some_iterations_are_compared(
    run: Run, monkeypatch: pytest.MonkeyPatch, wording: Wording
) -> None:
    whole = rows_of(query(run, parse("R?view=ranks&by=iteration")))
    per_iteration = int((run.table.iteration == 12).sum())
    monkeypatch.setattr(occurrences, "MAX_MATCHED", per_iteration + 100)
    few = query(replace(run), parse("R?view=ranks&by=iteration"))
    assert len(few) == 1
    label = few.labels[0]
    assert label in ("11", "12")
    for name in ("ahead_ns", "behind", "occurrences", "span_ns", "wait_ns", "straggler_wait_ns"):
        assert few.row(0)[name] == whole[label][name]
    wording.among(few.notes, "1 of 2 steps")
    one = query(run, parse("R:iteration=11?order=iteration&view=ranks"))
    assert not any("compared" in note for note in one.notes)
    assert one.row(0)["lead_ns"] is not None
