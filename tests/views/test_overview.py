"""The overview: its figures against the views that own them, with less data, and of two runs."""

from __future__ import annotations

import re
from collections.abc import Mapping

import numpy as np
import pytest
from msgspec.structs import replace

from chopper_core.analyses import leads
from chopper_core.analyses.step_account import step_of
from chopper_core.extensions.runs.figures import figures_of_run
from chopper_core.model import address
from chopper_core.model.charts import Card, Cards, Composition, Lanes
from chopper_core.model.column_names import AT_PEAK, BREAKDOWN
from chopper_core.model.inputs import Source
from chopper_core.model.phrases import time
from chopper_core.model.run import Run
from chopper_core.model.table import STATES, Phase
from chopper_core.model.view import Baseline, View
from chopper_core.render.glyphs import UNICODE
from chopper_core.util.errors import UsageError
from chopper_core.views.frame import Frame
from chopper_core.views.query import preview_frame, query
from chopper_core.views.shared import evidence
from chopper_tui.draw.charts import draw
from tests.support import Row, details, run_of, sample_run
from tests.tui.explorer import measured_run
from tests.wording import Wording

OVERVIEW = View("R", name="overview")


def composition(frame: Frame) -> Composition:
    return next(each for each in frame.charts if isinstance(each, Composition))


def cards(frame: Frame) -> Cards:
    return next(each for each in frame.charts if isinstance(each, Cards))


def lanes(frame: Frame) -> Lanes:
    return next(each for each in frame.charts if isinstance(each, Lanes))


def figures(frame: Frame) -> Mapping[str, float]:
    """The figures of the headline by the words around them."""
    found = {}
    for part in frame.headline[0].split(" · "):
        number = re.search(r"[\d.,]+", part)
        assert number
        found[re.sub(r"[\d.,]+", "#", part)] = float(number[0].replace(",", ""))
    return found


def test_a_scope_that_no_rule_can_check_says_why(
    run: Run, monkeypatch: pytest.MonkeyPatch, wording: Wording
) -> None:
    def fails(*_: object) -> tuple[Card, ...]:
        raise UsageError("there is no step to replay")

    monkeypatch.setattr(evidence, "finding_cards", fails)
    (card,) = cards(query(sample_run(), OVERVIEW)).cards
    assert card.text == ""
    wording(card.note, "not checked", "no step")
    assert address.parse(card.address).name == "findings"


def test_the_headline_has_the_figures_of_the_views_that_own_them(run: Run) -> None:
    frame = query(run, OVERVIEW)
    known = figures(frame)
    throughput = query(run, View("R", name="throughput"))
    (step,) = (known[word] for word in known if word.startswith("step # ms"))
    assert step == round(throughput.total["iteration_ns"] / 1e6, 1)
    rate = throughput.total["tokens_per_s"] * len(run.gpus)
    assert known["#k tok/s"] == pytest.approx(rate / 1e3, rel=0.001)
    finding = next(
        text for text in details(query(run, View("R", name="findings"))) if "xposed comm" in text
    )
    assert f", {known['exposed # %']:.1f} %)" in finding
    power = query(run, View("R", name="power"))
    assert known["# W"] == round(power.total["mean_power_w"])


def test_the_parts_are_those_of_the_complete_iterations_and_add_up(run: Run) -> None:
    table, whole = run.table, composition(query(run, OVERVIEW))
    cut = set().union(*run.partial_iterations.values())
    kept = ~np.isin(table.iteration, [-1, *cut])
    cells = len(set(zip(table.gpu[kept].tolist(), table.iteration[kept].tolist(), strict=True)))
    states = ("compute_ns", "overlap_ns", "exposed_comm_ns", "exposed_copy_ns", "idle_ns")
    sums = {name: int(table.column(name)[kept].sum()) / cells / 1e6 for name in states}
    every = {each.name: float(each.numbers[0]) for each in whole.series}
    parts = {name: number for name, number in every.items() if np.isfinite(number)}
    assert sum(parts.values()) == pytest.approx(sum(sums.values()), rel=1e-9)
    assert parts["exposed communication"] == pytest.approx(sums["exposed_comm_ns"], rel=1e-9)
    assert parts["idle"] == pytest.approx(sums["idle_ns"], rel=1e-9)
    assert len(every) >= 9 and len(parts) >= 5


def test_parts_of_some_gpus_divide_the_time_of_all() -> None:
    """Two of four GPUs have counters: 200 of 1,000 µs are lost in their matrix units.

    The bar is of all four, whose compute is divided as on these.
    """
    rows = [
        Row(1_000_000 * step, 1_000_000, gpu=gpu, iteration=step, operation="mlp_up")
        for gpu in range(4)
        for step in range(2)
    ]
    run = run_of(rows)
    table, nothing = run.table, np.full(len(run.table), np.nan)
    counted = np.isin(table.gpu, (1, 2))
    split = {
        "theoretical_ns": np.full(len(table), 300_000.0),
        "mfma_loss_ns": np.where(counted, 200_000.0, np.nan),
        "unmodelled_ns": np.where(counted, 500_000.0, 700_000.0),
    }
    columns = {name: split.get(name, nothing) for name in (*BREAKDOWN, AT_PEAK)}
    run = replace(run, table=table.with_measured(columns))
    chart = composition(query(run, OVERVIEW))
    assert len(chart.labels) == 1 and chart.some == "2/4"
    assert chart.divided == ("idle matrix units", "not explained")
    parts = {each.name: each.numbers.tolist() for each in chart.series}
    assert parts["ideal"] == pytest.approx([0.3])
    assert parts["idle matrix units"] == pytest.approx([0.2])
    assert parts["not explained"] == pytest.approx([0.5])
    text = "\n".join("".join(text for text, _ in line) for line in draw(chart, 120, 12, UNICODE))
    assert "idle matrix units ~0.2 ms ~20.0 %" in text and "explained ~0.5 ms ~50.0 %" in text
    assert "ideal 0.3 ms 30.0 %" in text and "~ as on 2/4 GPUs" in text
    for by in ("operation", "gpu"):
        losses = query(run, View("R", name="overheads", by=by))
        assert losses.total["mfma_loss_pct"] == pytest.approx(20)
        assert losses.total["theoretical_pct"] == pytest.approx(30)
        marked = {name for name, is_marked in losses.extrapolated_total.items() if is_marked}
        assert marked == {"mfma_loss_pct", "unmodelled_pct"}
    row = query(run, View("R", name="overheads", by="operation")).values["mfma_loss_pct"]
    assert row.at(0) == pytest.approx(20) and row.is_extrapolated(0)
    # A scope without such a GPU has no such part, one of them has it whole.
    alone = query(run, View("R", ("1",), name="overheads", by="operation"))
    assert alone.total["mfma_loss_pct"] == pytest.approx(20)
    assert not any(alone.extrapolated_total.values())
    none = query(run, View("R", ("0",), name="overheads", by="operation"))
    assert "mfma_loss_pct" not in none.total


def test_the_straggler_lags_and_the_others_hardly_do(run: Run) -> None:
    frame = query(run, OVERVIEW)
    lag = frame.values["lag_ns"].numbers
    assert frame.labels[int(lag.argmax())] == "5"
    ranks = query(run, View("R", name="ranks"))
    leads = ranks.values["mean_lead_ns"].numbers
    behind = dict(zip(ranks.labels, leads.max() - leads, strict=True))
    assert lag == pytest.approx([behind[label] for label in frame.labels])


def test_every_card_leads_to_its_evidence(run: Run, wording: Wording) -> None:
    found = cards(query(run, OVERVIEW)).cards
    rows = query(run, View("R", name="findings"))
    rules = [rows.values["rule"].cell(row) for row in range(len(rows))]
    known = [label for label, rule in zip(rows.labels, rules, strict=True) if rule != "missing"]
    assert [each.text.lstrip("└ ") for each in found] == [*known, ""]
    wording(found[-1].note, "GPUs 0 and 5", "hardware counters")
    for each in found:
        assert len(query(run, replace(address.parse(each.address), run="R")))


def test_rows_lead_into_the_tree(run: Run) -> None:
    frame = query(run, OVERVIEW)
    assert frame.labels[0] == "5"
    assert frame.target(0) == View("R", ("5",))


def test_a_preview_is_the_answer_without_lags_and_findings() -> None:
    run = replace(measured_run())  # of which nothing is known yet
    early = preview_frame(run, OVERVIEW)
    assert early.is_pending
    assert cards(early).is_pending
    assert not early.values["lag_ns"].present().any()
    whole = query(run, OVERVIEW)
    assert not whole.is_pending
    assert [each.name for each in early.columns] == [each.name for each in whole.columns]
    assert early.headline == whole.headline
    # Once it is known the answer is shown at once.
    assert not preview_frame(run, OVERVIEW).is_pending


def test_gpus_are_compared_once_for_lags_findings_and_ranks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run, compared, found = replace(measured_run()), [], leads._leads
    monkeypatch.setattr(leads, "_leads", lambda *given: compared.append(given) or found(*given))
    query(run, OVERVIEW)
    query(run, View("R", name="findings"))
    query(run, View("R", ("2",), name="ranks"))
    assert len(compared) == 1


def test_one_gpu_has_no_lag_and_a_trace_alone_says_so() -> None:
    frame = query(sample_run(gpus=1), OVERVIEW)
    assert "lag_ns" not in frame.values
    assert frame.headline[1].startswith("1 × ")
    assert frame.headline[1].endswith("trace only")
    assert "kW" not in frame.headline[0] and "W" not in frame.headline[0]
    assert {each.name for each in composition(frame).series} <= {
        "compute",
        "compute during communication",
        "exposed communication",
        "exposed copies",
        "idle",
    }


def test_many_gpus_are_nodes_where_hosts_are_known() -> None:
    run = sample_run(gpus=72, iterations=2, layers=2)
    by_gpu = query(run, replace(OVERVIEW, sort="name"))
    assert by_gpu.level == "gpu"
    nothing: dict[str, int] = {}
    sources = tuple(
        Source("t", 1, gpu.rank, "", nothing, nothing, nothing, (), "", {}, f"n{gpu.rank // 8}")
        for gpu in run.gpus
    )
    frame = query(replace(run, sources=sources), OVERVIEW)
    assert frame.level == "node"
    order = [int(label.removeprefix("n")) for label in frame.labels]
    assert sorted(order) == [*range(9)]
    assert (np.diff(frame.values["lag_ns"].numbers) <= 0).all()
    steps = by_gpu.values["iteration_ns"].numbers.reshape(9, 8)
    assert frame.values["max_iteration_ns"].numbers == pytest.approx(steps.max(axis=1)[order])
    assert frame.target(order.index(2)).filter == "gpu:16,17,18,19,20,21,22,23"
    assert not any(frame.values["max_iteration_ns"].is_partial(row) for row in range(9))
    assert len(query(run, frame.target(2))) == 8


@pytest.mark.few(1)
@pytest.mark.parametrize("gpus", [8, 72])
def test_gpus_that_lag_most_come_first(gpus: int) -> None:
    run = sample_run(gpus=gpus, iterations=2, layers=2)
    frame = query(run, OVERVIEW)
    lags = frame.values["lag_ns"].numbers
    assert frame.sort == "-lag_ns" and (np.diff(lags) <= 0).all() and lags[0] > lags[-1]
    lanes = next(each for each in frame.charts if isinstance(each, Lanes))
    assert lanes.owners == tuple(f"GPU {gpu}" for gpu in frame.labels)


def slower(run: Run, factor: float) -> Run:
    """The run with all time on a clock that runs faster."""
    names = ("start_ns", "duration_ns", "compute_ns", "overlap_ns", "exposed_comm_ns",
             "exposed_copy_ns", "idle_ns", "idle_host_ns", "idle_launch_ns")  # fmt: skip
    columns = {
        name: (run.table.column(name) * factor).astype(run.table.column(name).dtype)
        for name in names
    }
    return replace(run, table=replace(run.table, **columns))


def test_of_two_runs_the_later_is_compared_with_the_first_with_the_right_sign() -> None:
    fast = sample_run()
    slow = slower(fast, 1.5)
    view = replace(OVERVIEW, run="B", baseline=Baseline("A"))
    frame = query(replace(slow, others={"A": fast}), view)
    assert re.search(r"step .* → .* \(\+50\.0 %\)", frame.headline[0])
    assert frame.values["step_change_pct"].numbers == pytest.approx(50.0, abs=0.01)
    assert composition(frame).labels == ("B", "A")
    found = cards(frame)
    assert found.title == "what changed"
    assert all(card.figures[0].startswith("+") for card in found.cards)
    assert all("50.0 % longer" in card.text for card in found.cards)
    back = query(replace(fast, others={"B": slow}), replace(view, run="A", baseline=Baseline("B")))
    assert re.search(r"\(-33\.3 %\)", back.headline[0])


def test_lanes_show_the_time_in_which_anything_runs(run: Run) -> None:
    chart = lanes(query(run, OVERVIEW))
    step = step_of(run, OVERVIEW)
    at = step.times.typical
    begin, end = (int(times[at]) for times in step.spans_ns)
    table = run.table
    for row, owner in enumerate(chart.owners[:2]):
        own = (table.gpu == int(owner.removeprefix("GPU "))) & (table.start_ns < end)
        own &= table.start_ns + table.duration_ns > begin
        busy, until = 0, begin
        order = np.argsort(table.start_ns[own], kind="stable")
        starts = table.start_ns[own][order].tolist()
        ends = (table.start_ns + table.duration_ns)[own][order].tolist()
        for start, stop in zip(starts, ends, strict=True):
            busy += max(min(stop, end) - max(start, until), 0)
            until = max(until, min(stop, end))
        assert int(chart.cells(row, 50).busy_ns.sum()) == busy
    phases = [span.text for span in chart.bands(0, 60)[0].spans]
    assert phases == ["forward", "backward", "optimizer"]


def test_every_place_has_the_same_step_time() -> None:
    """The mean over complete steps and GPUs of the time charged to them."""
    run = sample_run(iterations=5)
    longer = run.table.iteration == run.table.iteration.max()
    idle = run.table.idle_ns.copy()
    idle[np.flatnonzero(longer)[0]] += 10**9
    run = replace(run, table=replace(run.table, idle_ns=idle))
    table = run.table
    charged = sum(int(table.column(state).sum()) for state in STATES)
    cells = set(zip(table.gpu.tolist(), table.iteration.tolist(), strict=True))
    step_ns = charged / len(cells)
    overview = query(run, OVERVIEW)
    parts = sum(float(each.numbers[0]) for each in composition(overview).series)
    assert parts * 1e6 == pytest.approx(step_ns)
    assert overview.total["iteration_ns"] == pytest.approx(step_ns)
    assert overview.values["iteration_ns"].numbers.mean() == pytest.approx(step_ns)
    shown = time(step_ns)
    each = step_of(run, OVERVIEW).times.each_ns
    assert overview.headline[0].startswith(f"step {shown} (")
    assert f"to {time(each.max())} ▁▁▁▁█)" in overview.headline[0]
    for by in ("iteration", "gpu"):
        throughput = query(run, View("R", name="throughput", by=by))
        assert throughput.total["iteration_ns"] == pytest.approx(step_ns)
        assert throughput.values["iteration_ns"].numbers.mean() == pytest.approx(step_ns)
    findings = query(run, View("R", name="findings"))
    assert f" · {shown} per step" in findings.headline[0]
    for row in range(len(findings)):
        for name in ("saving_ns", "saving_low_ns", "saving_high_ns"):
            assert (findings.values[name].at(row) or 0.0) <= step_ns
    assert figures_of_run(run).figures["step_time_ns"] == pytest.approx(step_ns)


def test_a_run_of_one_gpu_starts_with_its_operations(wording: Wording) -> None:
    """Without a straggler to look for: the operations, their gaps, and one line of what lacks."""
    rows = [
        *(Row(1_000 * n, 500, operation="gemm", kernel="g", phase=Phase.DECODE) for n in range(8)),
        *(Row(1_000 * n + 700, 100, operation="norm", phase=Phase.DECODE) for n in range(8)),
    ]
    run = run_of(rows)
    frame = query(run, OVERVIEW)
    assert frame.level == "operation" and frame.labels == ["gemm", "norm"]
    values = {name: frame.values[name].numbers.tolist() for name in ("kernel_ns", "idle_ns")}
    assert values == {"kernel_ns": [4_000, 800], "idle_ns": [7 * 200, 8 * 200]}
    assert frame.values["kernel_pct"].at(0) == pytest.approx(100 * 4_000 / 4_800)
    assert frame.values["mean_ns"].at(1) == 100
    *_, last = cards(frame).cards
    assert not last.text
    wording(last.note, "without hardware counters")
    assert lanes(frame).lanes == ("GPU 0",)
    assert address.parse(frame.addresses(0)).name == "kernels"
    # Its lane stays whole where the rows are filtered.
    filtered = query(run, replace(OVERVIEW, filter="norm"))
    assert filtered.labels == ["norm"] and lanes(filtered).lanes == ("GPU 0",)


@pytest.mark.parametrize("phase", [Phase.BACKWARD, Phase.PREFILL])
def test_gpus_are_rows_where_several_train(phase: Phase) -> None:
    rows = [Row(1_000 * n, 500, gpu=gpu, phase=phase) for n in range(8) for gpu in range(2)]
    level = query(run_of(rows), OVERVIEW).level
    assert level == ("gpu" if phase == Phase.BACKWARD else "operation")
