"""Findings: what the generators planted, nothing where nothing is, and each rule on its own."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from importlib import import_module
from pathlib import Path
from statistics import fmean, median
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from chopper_core.analyses.time_parts import LOSSES
from chopper_core.findings import MODULES, RULES
from chopper_core.findings.rule import GENERAL, MEANING, Threshold
from chopper_core.findings.titles import MAX_TITLE
from chopper_core.model.address import parse
from chopper_core.model.charts import Cards
from chopper_core.model.column_names import integral_of, known_of, samples_in
from chopper_core.model.hardware import specifications
from chopper_core.model.overrides import Overrides
from chopper_core.model.phrases import time
from chopper_core.model.run import Run
from chopper_core.model.side_table import HostStack, HostState, HostTime
from chopper_core.model.signals import Signal, nearest_values
from chopper_core.model.table import Kind, Phase, Rule
from chopper_core.model.units import Unit
from chopper_core.render.exchange import as_json
from chopper_core.render.glyphs import UNICODE
from chopper_core.render.text import as_markdown, as_text
from chopper_core.views.findings import OWN
from chopper_core.views.frame import Frame
from chopper_core.views.query import query
from chopper_tui.draw.table import plan
from tests.demo import demo_run, generated_run
from tests.support import Row, rows_of, run_of
from tests.test_readme import check
from tests.views.conftest import DEMO
from tests.wording import Wording

MS = 1_000_000
ROOT = Path(__file__).resolve().parent.parent.parent
GPUS = range(8)


@pytest.fixture(scope="session")
def truth() -> dict[str, Any]:
    return json.loads((DEMO / "truth.json").read_text())


@pytest.fixture(scope="session")
def other_run() -> Run:
    """The second demo run: FSDP1, with memory that isn't deterministic."""
    return demo_run("fsdp1", named=str(DEMO.parent / "fsdp1"))


@pytest.fixture(scope="session")
def other_truth() -> dict[str, Any]:
    return json.loads((DEMO.parent / "fsdp1" / "truth.json").read_text())


def findings(run: Run, scope: str = "") -> Frame:
    return query(run, parse(f"R{scope}?view=findings"))


ABOUT = {
    "side-work": {"elapsed_ns"},
    "clock": {"sd_gfx_mhz", "sd_mem_mhz", "gfx_mhz", "mem_mhz"},
    "slow-transfer": {"bus_gbps"},
    "clock-drop": {"mean_gfx_mhz", "gfx_mhz"},
    "contention": {"overlap_cost_ns", "instance_ns"},
    "copies": {"exposed_copy_ns"},
    "exposed": {"exposed_comm_ns"},
    "uneven-experts": {"expert_ns"},
    "gpu-operation": {"mean_ns", "compute_busy_ns_delta"},
    "host-bound": {"idle_host_ns"},
    "iteration": {"iteration_ns"},
    "late-host": {"idle_host_ns"},
    "launch-bound": {"idle_latency_ns"},
    "layer": {"mean_ns"},
    "long-stage": {"stage_x"},
    "low-clock": {"mean_gfx_mhz", "mean_mem_mhz", "gfx_mhz"},
    "memory-roof": {"kernel_ns"},
    "moved-data": {"kernel_ns"},
    "missing": {"unmodelled_pct", "idle_unknown_ns", "idle_ns", "calls", "kernel_ns"},
    "operation": {"mean_ns", "kernel_ns"},
    "overhead": {f"{name.removesuffix('_ns')}_pct" for name in LOSSES},
    "products": {"kernel_ns"},
    "queue-bound": {"idle_queued_ns"},
    "slow-link": {"bus_gbps"},
    "slow-start": {"kernel_ns"},
    "small-kernels": {"kernel_ns"},
    "slow-stage": {"kernel_ns", "idle_host_ns"},
    "straggler": {
        "delay_ns",
        "slower_pct",
        "extra_host_ns",
        "extra_launch_ns",
        "mean_lead_ns",
        "compute_busy_ns",
    },
    "throttled": {"throttled_pct", "throttle_pct"},
    "unfused-attention": {"kernel_ns"},
    "wide-type": {"kernel_ns"},
}
"""Rule → the columns of which its evidence shows one at least, in the narrowest terminal."""


def found(run: Run, rule: str = "", scope: str = "") -> list[dict[str, Any]]:
    """The findings of a rule; without one those of all that don't speak of missing data.

    Each of them leads to a table that shows the column it is about.
    """
    frame = findings(run, scope)
    rows = [
        frame.row(number)
        | {"name": frame.labels[number], "said": frame.row(number)["detail"]}
        | {"at": frame.addresses(number)}
        for number in range(len(frame))
    ]
    for row in rows:
        evidence = query(run, parse(row["at"]))
        shown = {column.name for column in plan(evidence, 80, UNICODE).columns}
        about = ABOUT[row["rule"]]
        assert about & shown, (row["said"], row["at"], shown)
        # The row that it is about is at the top.
        if "calls" not in about & shown:
            assert evidence.sort.removeprefix("-") in about, (row["said"], row["at"])
        if row["rule"] == "straggler" and [row["rule"] for row in rows].count("straggler") == 1:
            assert row["said"].startswith(f"GPU {evidence.labels[0]} "), row["at"]
    return [row for row in rows if row["rule"] == rule or (not rule and row["rule"] != "missing")]


def only(run: Run, rule: str, scope: str = "") -> dict[str, Any]:
    rows = found(run, rule, scope)
    assert len(rows) == 1, rows
    return rows[0]


def near(number: float) -> Any:
    """What is planted, to a tenth of its size."""
    return pytest.approx(number, rel=0.1)


# The generated runs


@pytest.mark.few(1)
@pytest.mark.parametrize("which", ["fsdp2", "fsdp1"])
def test_the_slow_clocked_gpu(which: str, request: pytest.FixtureRequest, wording: Wording) -> None:
    names = ("run", "truth") if which == "fsdp2" else ("other_run", "other_truth")
    run, planted = (request.getfixturevalue(name) for name in names)
    slow = planted["slow_gpu"]
    own = str(slow["rank"])
    times = {
        gpu: fmean(each[str(iteration)] for iteration in (11, 12))
        for gpu, each in slow["compute_kernel_ns"].items()
    }
    extra = times[own] - median(time for gpu, time in times.items() if gpu != own)
    row = only(run, "straggler")
    assert row["said"].startswith(f"GPU {own} runs at a ")
    assert "lower clock" in row["said"] and "11 °C hotter" in row["said"]
    # Generated again without the hot GPU, an iteration is 37.2 and 37.6 ms shorter. Its kernels
    # take longer by more than that: the others wait less for its own waits.
    assert extra * 0.99 > 37.6 * MS
    true_ns, part = (37.22 * MS, 0.1) if which == "fsdp2" else (37.6 * MS, 0.15)
    assert row["saving_ns"] == pytest.approx(true_ns, rel=part)
    assert row["saving_low_ns"] < 37.2 * MS < row["saving_high_ns"]
    slower = float(row["said"].split(" at a ")[1].split(" %")[0]) / 100
    mhz = slow["mhz"]
    usual = median(each for gpu, each in mhz.items() if gpu != own)
    assert slower == near(1 - mhz[own] / usual)
    assert row["confidence"] == "high"
    assert row["at"] == "R?view=ranks&sort=-delay_ns"
    # Which of its many figures is the step's is said once for all findings.
    assert any("quote that" in note for note in query(run, parse("R?view=findings")).notes)
    notes = query(run, parse(row["at"])).notes
    wording.among(notes, "costs", "saves")
    assert only(run, "throttled")["said"].startswith(f"GPU {own} is throttled 8")


def test_exposed_communication(
    run: Run, truth: dict[str, Any], other_run: Run, wording: Wording
) -> None:
    per_rank = truth["exposed_communication"]["per_rank"]
    total = sum(per_rank[str(gpu)][str(iteration)] for gpu in GPUS for iteration in (11, 12))
    row = only(run, "exposed")
    assert row["gpu_time_ns"] == near(total)
    # One figure to quote, which is what it costs; that with its waits is in brackets.
    cost = f"{row['cost_ns'] / MS:.4g} ms per GPU and step"
    wording(row["said"], f"{total / 16e6:.4g} ms", cost)
    # Named is the operation with the most of it in all phases, not the largest part in a phase:
    # of what the finding costs, which is without waiting, as is the share in its title.
    table, exposed = run.table, Counter[str]()
    for place in np.flatnonzero(np.isin(table.iteration, (11, 12))):
        exposed[table.text_of("operation", table.operation[place])] += table.exposed_comm_ns[place]
    waits = query(run, parse("R?view=comms&by=kind&columns=exposed_wait_ns"))
    for place, label in enumerate(waits.labels):
        exposed[label] -= round(16 * waits.row(place)["exposed_wait_ns"])
    assert row["cost_ns"] == near(exposed.total() / 16)
    step_ns = query(run, parse("R?view=overview")).total["iteration_ns"]
    share = f"{100 * row['cost_ns'] / step_ns:.1f} % of the step"
    name, part = exposed.most_common(1)[0]
    largest = f"{100 * part / exposed.total():.1f} % of it {name}"
    assert row["name"] == f"Exposed communication costs {share}, {largest}"
    wording(row["said"], f"({share};")
    # Most of it waits for GPU 5, whose own is at the ends of the step: hiding it saves little, and
    # nothing hides more than all of it.
    assert 0 <= row["saving_low_ns"] < row["saving_ns"] == row["saving_high_ns"] < total / 160
    # In the other run communication is exposed at the ends of the step only.
    assert found(other_run, "exposed") == []


def test_the_late_host(run: Run, truth: dict[str, Any], wording: Wording) -> None:
    planted = truth["host_bound_stretch"]
    row = only(run, "late-host")
    wording(
        row["said"],
        f"GPU {planted['rank']}'s host",
        "forward",
        f"step {planted['iteration']}",
        "layers 10 to 12",
    )
    assert planted["layers"] == [10, 11, 12]
    assert row["gpu_time_ns"] == near(planted["total_idle_host_ns"])
    # Generated again without it, an iteration is 6.51 ms shorter: a part hides the lag of GPU 5.
    assert row["saving_ns"] == near(6.51 * MS)
    assert row["saving_ns"] < planted["total_idle_host_ns"] / 2


def test_where_the_allocator_asked_anew(other_run: Run, other_truth: dict[str, Any]) -> None:
    places = other_truth["allocator_retries"]["places"]
    row = only(other_run, "late-host")
    assert f"at {len(places)} places in forward" in row["said"]
    # The longest three are named, the others counted.
    longest = sorted(places, key=lambda place: -place["idle_host_ns"])[:3]
    for place in longest:
        where = f"on GPU {place['rank']}, step {place['iteration']}, layer {place['layer']}"
        size = row["said"].split(where)[0].rsplit(" ms", 1)[0].split()[-1]
        assert float(size) * MS == near(place["idle_host_ns"])
    assert f"and {len(places) - 3} more" in row["said"]
    assert row["gpu_time_ns"] == near(sum(place["idle_host_ns"] for place in places))


@pytest.mark.parametrize("which", ["fsdp2", "fsdp1"])
def test_the_operation_that_suffers_from_overlap(
    which: str, request: pytest.FixtureRequest
) -> None:
    names = ("run", "truth") if which == "fsdp2" else ("other_run", "other_truth")
    run, truth = (request.getfixturevalue(name) for name in names)
    planted = truth["overlap_slowed_operation"]
    row = only(run, "contention")
    evidence = query(run, parse(row["at"])).row(0)
    assert f"takes {100 * (float(evidence['slowdown_x']) - 1):.1f} % longer" in row["said"]
    assert f"(correlation {float(evidence['pearson_r']):.2f})" in row["said"]
    assert row["said"].startswith(f"{planted['operation']} in {planted['phase']} takes ")
    slowdown = float(row["said"].split(" takes ")[1].split(" %")[0]) / 100
    assert slowdown == near(planted["slowdown"] - 1)
    lost = sum(
        each["fully"]["count"] * (each["fully"]["mean_ns"] - each["alone"]["mean_ns"])
        for each in planted["per_rank"].values()
        if each["alone"]["count"] and each["fully"]["count"]
    )
    assert row["gpu_time_ns"] == near(lost)


def test_the_slow_layer(run: Run, truth: dict[str, Any], wording: Wording) -> None:
    planted = truth["slow_layer"]
    row = only(run, "layer")
    wording(row["said"], planted["operation"], f"layer {planted['layer']}")
    total = 0.0
    for phase in ("forward", "backward"):
        own = planted[phase]
        longer = own["mean_ns"] / own["mean_ns_elsewhere"] - 1
        said = row["said"].split(f" % longer in {phase}")[0].split()[-1]
        assert float(said) / 100 == near(longer)
        # Both are in iterations 11 and 12 alone: of 10 the end of the backward is seen.
        kernels = 2 * len(GPUS) * (1 if phase == "forward" else 2)
        total += kernels * (own["mean_ns"] - own["mean_ns_elsewhere"])
    assert row["gpu_time_ns"] == near(total)
    evidence = query(run, parse(row["at"]))
    assert evidence.level == "layer"
    assert evidence.labels[0] == str(planted["layer"])


def test_the_largest_overhead(wording: Wording, run: Run, truth: dict[str, Any]) -> None:
    row = only(run, "overhead")
    wording(row["said"], "A clock below nominal")
    # The clock is known on all GPUs, as the bar of the overview has it; the next loss on two.
    wording(row["said"], "13.7 %", "GPUs 0 and 5")
    sums: dict[str, float] = dict.fromkeys(("frequency_ns", "mfma_underutilisation_ns"), 0.0)
    for gpu in truth["breakdown"]["per_gpu"].values():
        for phase in gpu.values():
            for operation in phase.values():
                for name in sums:
                    sums[name] += operation[name]
    assert sums["frequency_ns"] > sums["mfma_underutilisation_ns"]
    # The truth tells operations with matrix products alone; all compute runs at the same clocks.
    shares = [
        (1 - mean_mhz / 2100) * sum(truth["slow_gpu"]["compute_kernel_ns"][gpu][it] for it in its)
        for gpu, its in ((str(number), ("11", "12")) for number in range(8))
        for mean_mhz in [truth["stability"]["per_gpu"][gpu]["gfx_mhz"]["11"]["mean"]]
    ]
    assert row["gpu_time_ns"] == near(sum(shares))


def test_clocks_that_are_not_steady(
    wording: Wording, other_run: Run, other_truth: dict[str, Any]
) -> None:
    gfx, memory = sorted(found(other_run, "clock"), key=lambda row: row["cost_ns"] is None)
    for row in (gfx, memory):
        wording(row["said"], "GPUs 0 to 7")
        there = parse(row["at"])
        assert there.name == "power" and there.signal in {"gfx_mhz", "mem_mhz"}
    for row, name in ((gfx, "gfx_mhz"), (memory, "mem_mhz")):
        gpu = row["said"].split("on GPU ")[1].split(":")[0]
        own = other_truth["stability"]["per_gpu"][gpu][name].values()
        said = float(row["said"].split(" MHz over all the time")[0].split()[-1])
        assert said == near(fmean(each["deviation"] for each in own))
        evidence = rows_of(query(other_run, parse(row["at"])))
        assert said == round(float(evidence[gpu][f"sd_{name}"] or 0))
        around = float(row["said"].split(") of ")[1].split(" MHz")[0].replace(",", ""))
        assert around == pytest.approx(fmean(each["mean"] for each in own), rel=0.02)


def test_a_steady_run_has_steady_clocks(run: Run, truth: dict[str, Any]) -> None:
    assert not truth["stability"]["unsteady"]
    assert found(run, "clock") == []


@pytest.fixture(scope="session")
def clean() -> Run:
    """A generated run of two GPUs in which nothing is planted."""
    return generated_run("clean", ranks=2, iterations=2, clean=True)


@pytest.mark.sweep
def test_a_clean_run_is_quiet(wording: Wording, clean: Run) -> None:
    frame = findings(clean)
    assert list(frame.labels) == []
    of_traces = sum(not (each.of_samples or each.of_logs) for each in RULES)
    wording(frame.headline[0], "nothing")
    assert f" {of_traces} rules " in frame.headline[0]
    text = as_text(frame, width=80)
    assert "nothing stands out" in text and "\n\n\n" not in text


def test_scopes_are_looked_at_by_themselves(run: Run) -> None:
    there = only(run, "contention", ":gpu=2")
    assert there["at"].startswith("R:gpu=2/phase=forward/operation=attn_op?")
    assert found(run, scope=":gpu=3/iteration=11/phase=optimizer") == []
    late = only(run, "late-host", ":gpu=2")
    assert late["gpu_time_ns"] == only(run, "late-host")["gpu_time_ns"]


@pytest.mark.parametrize("which", ["run", "other_run"])
def test_every_finding_leads_to_its_evidence(which: str, request: pytest.FixtureRequest) -> None:
    run = request.getfixturevalue(which)
    frame = findings(run)
    rows = json.loads(as_json(frame))["rows"]
    names = [row["group"] for row in rows]
    assert names == sorted(names, key=["fix first", "could be better", "not known"].index)
    for group in set(names):
        own = [row for row in rows if row["group"] == group and row["part_of"] is None]
        replayed = [row["saving_ns"] for row in own if row["saving_ns"] is not None]
        assert replayed == sorted(replayed, reverse=True)
        others = own[len(replayed) :]
        assert all(row["saving_ns"] is None for row in others)
        costs = [row["cost_ns"] for row in others if row["cost_ns"] is not None]
        assert costs == sorted(costs, reverse=True)
        assert all(row["cost_ns"] is None for row in others[len(costs) :])
    for row in rows:
        assert 0 < len(row["name"]) <= MAX_TITLE and "\n" not in row["name"], row["name"]
        assert len(row["detail"]) >= len(row["name"])
        if row["cost_ns"] is not None:
            # The cost of the column is in the sentence, however the title counts.
            assert time(row["cost_ns"]) in row["detail"], row["detail"]
        if row["part_of"] is not None and row["saving_ns"] is not None:
            whole = rows[row["part_of"] - 1]
            assert row["saving_ns"] <= whole["saving_ns"]
            assert row["cost_ns"] <= 1.01 * whole["cost_ns"]
        if re.search(r"hidden|x0(?![.\d])", row["remedy"] or ""):
            # No change saves more than a bound: there is one upper limit.
            assert row["saving_high_ns"] == row["saving_ns"]
        if row["saving_ns"] is not None:
            assert row["saving_low_ns"] <= row["saving_ns"] <= row["saving_high_ns"]
            assert row["remedy"]
    for number in range(len(frame)):
        assert len(query(run, parse(frame.addresses(number)))) > 0


def test_a_baseline_stays_on_the_way_to_the_evidence(run: Run, other_run: Run) -> None:
    beside = replace(run, others={"B": other_run})
    frame = query(beside, parse("R?view=findings&base=B"))
    assert list(frame.labels) == list(findings(run).labels)
    for number in range(len(frame)):
        assert frame.addresses(number).endswith("&base=B")
        assert len(query(beside, parse(frame.addresses(number)))) > 0


@pytest.mark.parametrize("which", ["run", "other_run"])
def test_every_evidence_shows_the_column_of_its_finding(
    which: str, request: pytest.FixtureRequest
) -> None:
    """Of all rules; `found` looks at each finding of the runs made by hand, too."""
    of_traces = [each.name for each in RULES if not (each.of_samples or each.of_logs)]
    assert {*of_traces} == set(ABOUT)
    assert len({row["rule"] for row in found(request.getfixturevalue(which))}) >= 5


def test_text_and_markdown_have_whole_sentences(run: Run) -> None:
    frame = findings(run)
    lines = as_text(frame, width=80).splitlines()
    table = lines[lines.index("") + 1 :]
    assert all(len(line) <= 80 for line in table if not line.lstrip().startswith(("R", "chopper")))
    width = table[0].index("costs ms")
    words = " ".join(" ".join(line[:width].split()) for line in table)
    assert [sentence for sentence in frame.labels if sentence not in words] == []
    assert {f"  {frame.addresses(row)}" for row in range(len(frame))} <= {
        f"  {line.lstrip()}" for line in lines if line.startswith("  ")
    }
    assert f"`{frame.addresses(0)}`" in as_markdown(frame)


# Runs built by hand, for one rule each

Change = Callable[[Row], Row]
OPERATIONS = ("attn_fa", "mlp_up", "mlp_dp")


def rows(gpus: int = 2, iterations: int = 3, layers: int = 6, ahead: int = 5 * MS) -> list[Row]:
    """A step without a gap: three operations of 1 ms in every layer, launched well ahead."""
    made = []
    for gpu in range(gpus):
        now = 100 * MS
        for iteration in range(iterations):
            for phase in (Phase.FORWARD, Phase.BACKWARD):
                for layer in range(layers):
                    for operation in OPERATIONS:
                        made.append(
                            Row(now, MS, Kind.COMPUTE, 0, gpu, iteration, phase, layer, operation)
                        )
                        now += MS
    return [replace(row, launch=row.start - ahead) for row in made]


def stretched(made: Iterable[Row], extra: Callable[[Row], int], idle: bool = False) -> list[Row]:
    """The rows with more time for some, or before some, and all later ones of the GPU shifted."""
    later: dict[int, int] = {}
    out = []
    for row in made:
        more, shift = extra(row), later.get(row.gpu, 0)
        start = row.start + shift + (more if idle else 0)
        duration = row.duration + (0 if idle else more)
        assert row.launch is not None
        # A host that is late launches just before the start.
        launch = start - 5_000 if idle and more else row.launch + shift
        out.append(replace(row, start=start, duration=duration, launch=launch))
        later[row.gpu] = shift + more
    return out


def with_columns(run: Run, **columns: Sequence[float] | np.ndarray) -> Run:
    measured = {name.replace("__", " "): np.asarray(v, float) for name, v in columns.items()}
    return replace(run, table=run.table.with_measured(measured))


def clocked(run: Run, name: str, values: np.ndarray) -> Run:
    """The run with telemetry: a value for every activity."""
    duration = run.table.duration_ns.astype(float)
    table = run.table.with_measured(
        {
            integral_of(name): values * duration,
            known_of(name): duration,
            samples_in(name): np.full(len(values), 2.0),
        }
    )
    return replace(run, table=table)


def test_a_run_without_anything_is_quiet() -> None:
    assert found(run_of(rows())) == []


def test_a_gpu_that_is_host_bound_holds_the_others_back(wording: Wording) -> None:
    run = run_of(stretched(rows(4), lambda row: (row.gpu == 3) * 100_000, idle=True))
    row = only(run, "straggler")
    wording(row["said"], "GPU 3", "its host", " 3.")
    # 36 kernels an iteration, each 95 µs before its launch call and 5 µs after it.
    assert row["cost_ns"] == pytest.approx(36 * 100_000, rel=0.02)


def test_a_gpu_with_slower_kernels_at_the_same_clock(wording: Wording) -> None:
    run = run_of(stretched(rows(4), lambda row: (row.gpu == 1) * 80_000))
    run = clocked(run, "gfx_mhz", np.full(len(run.table), 1700.0))
    row = only(run, "straggler")
    wording(row["said"], "GPU 1", "slower kernels", "same clock")
    assert row["cost_ns"] == 36 * 80_000


def test_a_layer_that_is_slow_on_one_gpu_is_the_place_of_its_slower_kernels(
    wording: Wording,
) -> None:
    run = run_of(stretched(rows(4), lambda row: (row.gpu == 1 and row.layer == 3) * 400_000))
    row = only(run, "straggler")
    # Six of 36 kernels of 1 ms.
    wording(findings(run).labels[0], "GPU 1", "6.7 %", "layer 3")
    wording(row["said"], "6.7 %", "2.4 ms", "layer 3")


def test_a_step_that_takes_longer_in_one_phase_says_so(wording: Wording) -> None:
    where = 3, Phase.FORWARD
    made = stretched(rows(1, 6), lambda row: ((row.iteration, row.phase) == where) * 300_000)
    row = only(run_of(made), "iteration")
    wording(row["said"], "5.4 ms", "forward", "30.0 %")


def test_a_gpu_as_slow_as_gpus_of_one_product_are_is_no_finding(wording: Wording) -> None:
    """Everything 0.9 % slower is a usual GPU; the same time in one operation has a cause."""
    assert found(run_of(stretched(rows(4), lambda row: (row.gpu == 1) * 9_000)), "straggler") == []
    where = Phase.FORWARD, "mlp_up"
    one = stretched(rows(4), lambda r: (r.gpu == 1 and (r.phase, r.operation) == where) * 54_000)
    wording(only(run_of(one), "straggler")["said"], "100.0 %", "mlp_up", "forward")


@pytest.mark.parametrize(
    ("mhz", "power_w", "says"),
    [
        (2_050, 450, None),
        (1_800, 690, None),
        (1_800, 450, "14.3 % below nominal on the GPUs (1,800 vs 2,100 MHz), though compute draws"),
        (1_600, 690, "23.8 % below nominal on the GPUs (1,600 vs 2,100 MHz), and about 20.0 %"),
    ],
)
def test_clocks_below_nominal_with_power_to_spare(
    mhz: float, power_w: float, says: str | None, wording: Wording
) -> None:
    """All GPUs alike: the power tells whether power management is the reason."""
    run = replace(
        run_of([replace(row, kernel="Cijk_MT256") for row in rows(4)]),
        overrides=Overrides(hardware="MI300X"),
    )
    for name, value in (("gfx_mhz", mhz), ("power_w", power_w)):
        run = clocked(run, name, np.full(len(run.table), float(value)))
    said = found(run, "low-clock")
    assert [says is not None and says in row["said"] for row in said] == [True] * (says is not None)
    for row in said:
        # The title, the sentence and the question of the replay have one clock.
        aim = 2_100 if power_w < 500 else 1_680
        wording(row["said"], f"{aim:,} MHz")
        assert row["name"].endswith(f"{aim:,} MHz"), row["name"]
        assert row["remedy"] in (None, f"clock={aim}"), row["remedy"]


def test_low_clocks_of_all_gpus_say_since_when(wording: Wording) -> None:
    """From step 4 of 6 on all run at 1,500 MHz, before at 1,680, which is usual."""
    made = [replace(row, kernel="Cijk_MT256") for row in rows(4, 6)]
    run = replace(run_of(made), overrides=Overrides(hardware="MI300X"))
    noise = np.random.default_rng(3).normal(0, 4, len(run.table))
    for before, says in ((1680.0, True), (1500.0, False)):
        mhz = np.where(run.table.iteration >= 4, 1500.0, before) + noise
        own = clocked(clocked(run, "gfx_mhz", mhz), "power_w", np.full(len(run.table), 690.0))
        row = only(own, "low-clock")
        assert ("since step" in row["name"]) == says
        if says:
            assert row["name"] == "Clocks run at 1,500 of a usual 1,680 MHz since step 4"
            wording(row["said"], "1,500 vs 1,680 MHz since step 4")


@pytest.mark.parametrize(
    ("longer", "flops", "says"), [(0.4, 1e9, True), (0.1, 1e9, False), (0.4, 2e9, False)]
)
def test_products_that_always_run_beside_communication(
    longer: float, flops: float, says: bool, wording: Wording
) -> None:
    """mlp_up always does; attn_fa is the same kernel and never does."""
    made = stretched(rows(2), lambda row: int(longer * MS) * (row.operation == "mlp_up"))
    beside = [
        replace(row, kind=Kind.COMM, stream=5, operation="all_gather", kernel="nccl")
        for row in made
        if row.operation == "mlp_up"
    ]
    run = run_of(sorted([*made, *beside], key=lambda row: (row.gpu, row.start, row.stream)))
    table = run.table
    names = [table.operations[code] for code in table.operation]
    work = {"mlp_up": 1e9, "attn_fa": flops}
    run = with_columns(run, model_flops=[work.get(name, 0.0) for name in names])
    said = [row["said"] for row in found(run, "contention")]
    assert [each.startswith("mlp_up in") for each in said] == [True, True] * says
    for each in said:
        wording(each, "40.0 % longer")


def test_one_gpu_alone_is_no_straggler() -> None:
    assert found(run_of(rows(1)), "straggler") == []


def test_a_phase_that_waits_for_its_host(wording: Wording) -> None:
    late = stretched(rows(), lambda row: (row.phase == Phase.FORWARD) * 250_000, idle=True)
    row = only(run_of(late), "host-bound")
    wording(row["said"], "Forward", "host-bound", "4.328 ms")
    # Before the very first kernel of a GPU there is no time that could be idle.
    assert row["gpu_time_ns"] == 2 * (3 * 18 - 1) * 245_000
    assert row["at"] == "R:phase=forward?view=launch&order=phase&sort=-idle_host_ns"


@pytest.mark.parametrize(
    ("late_ns", "said"),
    [
        (100_000, "Launch latency is exposed: 3.567 ms of idle time per GPU"),
        (300_000, "The step is launch-bound: 10.7 ms of idle time per GPU"),
    ],
)
def test_a_phase_that_waits_after_launch_calls(late_ns: int, said: str) -> None:
    """Less than a tenth of the step doesn't bound it."""
    late = [
        replace(row, launch=row.start - late_ns)
        for row in stretched(rows(), lambda row: late_ns, idle=True)
    ]
    run = run_of(late)
    assert only(run, "launch-bound")["said"].startswith(said)
    assert found(run, "host-bound") == []


def test_a_phase_in_which_launched_work_waits(wording: Wording) -> None:
    """Launches lie 10 µs before the end of the kernel before, so the queue is never empty."""
    late = [
        replace(row, launch=row.start - 210_000)
        for row in stretched(rows(), lambda row: (row.phase == Phase.FORWARD) * 200_000, idle=True)
    ]
    run = run_of(late)
    row = only(run, "queue-bound")
    wording(row["said"], "forward", "queue-bound", "3.533 ms")
    # Before the very first kernel of a GPU there is no time that could be idle.
    assert row["gpu_time_ns"] == 2 * (3 * 18 - 1) * 200_000
    assert row["at"] == "R:phase=forward?view=launch&order=phase&sort=-idle_queued_ns"
    assert found(run, "host-bound") == found(run, "launch-bound") == []


def test_a_host_that_is_late_just_once(wording: Wording) -> None:
    there = {(1, 2, 3), (1, 2, 4)}

    def extra(row: Row) -> int:
        late = (row.gpu, row.iteration, row.layer) in there and row.phase == Phase.BACKWARD
        return 200_000 * late

    row = only(run_of(stretched(rows(4), extra, idle=True)), "late-host")
    wording(row["said"], "GPU 1", "backward", "step 2", "layers 3 and 4", "1.17")
    assert row["gpu_time_ns"] == 6 * 195_000
    where = "R:gpu=1/iteration=2/phase=backward"
    assert row["at"] == f"{where}?view=launch&by=layer&sort=-idle_host_ns"


def test_an_operation_that_is_slow_in_one_layer_of_one_phase(wording: Wording) -> None:
    def extra(row: Row) -> int:
        return 300_000 * (row.operation == "mlp_up" and row.layer == 4 and row.phase == 1)

    run = run_of(stretched(rows(), extra))
    row = only(run, "layer")
    wording(row["said"], "mlp_up", "layer 4", "30.0 %", "backward")
    assert row["gpu_time_ns"] == 2 * 3 * 300_000
    assert row["cost_ns"] == 300_000


def test_a_layer_that_is_slow_on_one_gpu_alone_is_none() -> None:
    def extra(row: Row) -> int:
        return 300_000 * (row.operation == "mlp_up" and row.layer == 4 and row.gpu == 0)

    assert found(run_of(stretched(rows(4), extra)), "layer") == []


def test_layers_that_scatter_are_none() -> None:
    random = np.random.default_rng(3)
    run = run_of(stretched(rows(), lambda row: int(random.integers(0, 400_000))))
    assert found(run, "layer") == []


def test_an_operation_that_is_slow_in_one_iteration(wording: Wording) -> None:
    def extra(row: Row) -> int:
        return 120_000 * (row.operation == "mlp_up" and row.iteration == 3)

    run = run_of(stretched(rows(iterations=5), extra))
    row = only(run, "operation")
    wording(row["said"], "mlp_up", "step 3", "12.0 %")
    assert row["gpu_time_ns"] == 2 * 12 * 120_000
    assert row["cost_ns"] == 12 * 120_000 / 5
    assert query(run, parse(row["at"])).labels[0] == "3"
    # That the iteration takes longer is the same time.
    assert found(run) == [row, {**only(run, "iteration"), "part_of": 1}]


def test_an_iteration_that_takes_longer(wording: Wording) -> None:
    slow = stretched(rows(1, 8), lambda row: 200_000 * (row.iteration == 5))
    row = only(run_of(slow), "iteration")
    wording(row["said"], "Step 5", "43.2 ms", "8", "36 ms", "compute, 7.2 ms")
    assert row["cost_ns"] == pytest.approx(36 * 200_000 / 8)
    assert found(run_of(slow), "operation") == []


@pytest.mark.parametrize("step", [0, 3])
def test_what_happens_only_in_a_first_step_that_warms_up_costs_no_step(step: int) -> None:
    """A GPU that is late in it and the step itself alike; in any other step both cost time."""
    made = stretched(rows(iterations=6), lambda r: (r.gpu, r.iteration) == (1, step) and MS // 3)
    late, long = only(run_of(made), "straggler"), only(run_of(made), "iteration")
    for row in (late, long):
        is_setup = "set-up" in row["name"] and "set-up time isn't counted" in row["said"]
        assert (row["cost_ns"] is None) == is_setup == (step == 0), row


def test_the_share_of_a_slow_layer_is_that_of_the_rows_it_leads_to() -> None:
    """Of an operation that is slower by unlike shares in two phases, the title has that of both."""
    slower = {"forward": 2 * MS // 10, "backward": 6 * MS // 10}
    made = stretched(
        rows(),
        lambda r: (r.operation, r.layer) == ("mlp_up", 4) and slower.get(r.phase.name.lower(), 0),
    )
    run = run_of(made)
    row = only(run, "layer")
    there = rows_of(query(run, parse(row["at"])))
    means = {name: float(each["mean_ns"] or 0) for name, each in there.items()}
    ratio = means.pop("4") / median(means.values())
    assert row["name"].startswith(f"mlp_up takes {100 * (ratio - 1):.1f} % longer in layer 4")


def test_what_is_missing_says_what_to_record(run: Run, other_run: Run) -> None:
    """What a run lacks, and what is lacking of some GPUs, comes with what would tell it."""
    for each in (run, other_run, run_of(rows(4))):
        frame = findings(each)
        lacks = [row for row in map(frame.row, range(len(frame))) if row["rule"] == "missing"]
        assert lacks and all(str(row["advice"]).startswith("Record ") for row in lacks)


def test_what_no_replay_tells_says_why(run: Run) -> None:
    """A saving is missing with its reason: of a run, of a part of one, and of a finding."""
    made = stretched(rows(4), lambda r: r.operation == "mlp_up" and r.gpu == 2 and MS // 5)
    texts = [row["said"] for row in found(run_of(made)) if row["saving_ns"] is None]
    assert texts and all("the run has no calls of hosts" in each for each in texts)
    inside = [row for row in found(run, scope=":gpu=5") if row["cost_ns"] is not None]
    assert inside and all("only steps of the whole run" in each["said"] for each in inside)
    whole = [row for row in found(run) if row["saving_ns"] is not None]
    assert whole and not any("is unknown:" in each["said"] for each in whole)


def test_the_first_iteration_may_take_long_and_is_left_out(wording: Wording) -> None:
    run = run_of(stretched(rows(1, 8), lambda row: 5 * MS * (row.iteration == 0)))
    assert not found(run, "iteration")
    wording.among(findings(run).notes, "step 0 is warm-up", "cut=1")


def test_an_iteration_that_takes_long_is_left_out_of_what_is_usual(wording: Wording) -> None:
    run = run_of(stretched(rows(1, 8), lambda row: 5 * MS * (row.iteration == 3)))
    assert only(run, "iteration")["cost_ns"] is not None
    wording.among(findings(run).notes, "step 3", "2 times", "other 7", "36 ms", "all 8")


def test_a_step_is_left_out_by_its_mean_over_gpus(wording: Wording) -> None:
    """One of four GPUs takes 2.5 times as long in a step, all of them 1.4 times."""
    run = run_of(stretched(rows(4, 8), lambda row: 3 * MS // 2 * (row.gpu == row.iteration == 0)))
    assert not any("2 times the median" in note for note in findings(run).notes)
    wording(only(run, "iteration")["said"], "step 0", "37.5 % longer")


def test_steps_that_differ_are_one_finding(wording: Wording) -> None:
    def longer(row: Row) -> int:
        return 3 * MS * (row.iteration >= 2 and row.operation == "mlp_up")

    run = run_of(stretched(rows(2, 5), longer))
    row = only(run, "iteration")
    # Twelve activities of 3 ms in three of five steps of 36 ms.
    wording(row["said"], "36 ms", "72 ms", "2.0 times", "step 2")
    assert row["cost_ns"] == pytest.approx(36 * MS * 3 / 5)
    even = run_of(stretched(rows(2, 5), lambda row: MS // 20 * (row.iteration == 1)))
    wording(only(even, "iteration")["said"], "Step 1", "37.8 ms")
    warm_up = run_of(stretched(rows(2, 3), lambda row: MS * (row.iteration == 0)))
    assert only(warm_up, "iteration")["cost_ns"] is None


def test_the_cause_and_the_time_of_long_steps_are_beyond_the_same_steps(wording: Wording) -> None:
    """Three of five steps wait for one call 0.5 ms before each of 36 kernels: that is usual only
    among all five, the time beyond the other two."""

    def late(row: Row) -> int:
        return MS // 2 * (row.iteration >= 2)

    run = run_of(stretched(rows(1, 5), late, idle=True))
    table = run.table
    idle = np.flatnonzero(table.idle_host_ns > 0)
    pieces = HostTime(
        (HostStack(call="hipFree"),),
        table.gpu[idle],
        table.start_ns[idle] - table.idle_ns[idle],
        table.idle_host_ns[idle],
        np.zeros(len(idle), np.int32),
        np.full(len(idle), HostState.LATE, np.int8),
    )
    row = only(replace(run, side_tables={HostTime: pieces}), "iteration")
    wording(row["said"], "step 2", "before launch calls", "17.82 ms", "hipFree")


def test_of_steps_that_vary_the_first_says_nothing_if_it_warms_up(wording: Wording) -> None:
    def longer(row: Row) -> int:
        # By up to a third, evenly; the first by 27 times.
        return 40 * MS if row.iteration == 0 else MS * row.iteration // 48

    row = only(run_of(stretched(rows(1, 16), longer)), "iteration")
    wording(row["said"], "36.75 ms", "47.25 ms")


def test_the_clock_of_a_straggler_is_that_of_the_iterations_in_which_it_is_late(
    wording: Wording,
) -> None:
    """And a clock that drops there, and is unsteady only by that, is the same finding."""
    made = stretched(rows(4, 6), lambda row: (row.gpu, row.iteration) == (2, 3) and MS // 5)
    run = run_of(made)
    low = (run.table.gpu == 2) & (run.table.iteration == 3)
    run = clocked(run, "gfx_mhz", np.where(low, 1400.0, 1680.0))
    (row,) = (each for each in found(run) if each["rule"] != "iteration")
    wording(row["said"], "GPU 2", "16.7 %", "1,400", "1,680 MHz", "20.0 %", "7.2 ms", "step 3")


def test_copies_are_named_by_their_own_launch_and_not_by_where_the_host_is_by_then(
    wording: Wording,
) -> None:
    def copied(row: Row) -> Row:
        is_copy = (row.phase, row.layer, row.operation) == (Phase.FORWARD, 0, "attn_fa")
        name = "Memcpy HtoD (Host -> Device)"
        more = (row.gpu == 2) * 4 * MS
        placed = replace(row, kernel=name, kind=Kind.COPY, operation="to", phase=Phase.DATA)
        return replace(placed, duration=MS + more) if is_copy else row

    late = stretched(rows(4), lambda row: copied(row).duration - row.duration)
    run = run_of([copied(replace(row, duration=MS)) for row in late])
    table = run.table
    copies = np.flatnonzero(table.kind == Kind.COPY)
    pieces = HostTime(
        (HostStack(operator="aten::item"),),
        table.gpu[copies],
        table.start_ns[copies],
        table.exposed_copy_ns[copies],
        np.zeros(len(copies), np.int32),
        np.full(len(copies), HostState.COPYING, np.int8),
    )
    row = only(replace(run, side_tables={HostTime: pieces}), "straggler")
    wording(row["said"], "GPU 2", "4 ms", "Memcpy HtoD", "launched by to")


def test_a_gpu_with_more_work() -> None:
    more = rows(4)
    last = max(row.start for row in more if row.gpu == 2)
    for number in range(20):
        more.append(replace(more[-1], gpu=2, start=last + (number + 1) * MS, launch=last))
    row = only(run_of(more), "straggler")
    said = "GPU 2 has more work, 55.6 % more kernels: its compute takes 20 ms longer, mostly mlp_dp"
    assert row["said"].startswith(said) and " in step 2" in row["said"]
    # The others have 20 kernels less in three iterations.
    assert row["cost_ns"] == pytest.approx(20 / 3 * MS, abs=1)


def beside(made: list[Row], chosen: Callable[[Row], bool]) -> list[Row]:
    """The rows with a collective beside some of them."""
    comm = [
        replace(row, kind=Kind.COMM, stream=7, operation="all_gather", kernel="nccl")
        for row in made
        if chosen(row)
    ]
    return sorted([*made, *comm], key=lambda row: (row.gpu, row.start))


def test_an_operation_that_communication_slows_down(wording: Wording) -> None:
    def chosen(row: Row) -> bool:
        return row.operation == "mlp_up" and row.layer >= 3 and row.phase == Phase.FORWARD

    made = stretched(rows(), lambda row: 400_000 * chosen(row))
    row = only(run_of(beside(made, chosen)), "contention")
    wording(row["said"], "mlp_up", "forward", "40.0 %")
    assert row["gpu_time_ns"] == 2 * 3 * 3 * 400_000
    assert found(run_of(beside(rows(), chosen)), "contention") == []


def test_communication_that_nothing_hides(wording: Wording) -> None:
    made = [
        replace(row, kind=Kind.COMM, operation="all_gather", kernel="nccl")
        if row.operation == "mlp_dp" and row.phase == Phase.BACKWARD
        else row
        for row in rows()
    ]
    row = only(run_of(made), "exposed")
    wording(row["said"], "6 ms", "16.7 %", "all_gather", "backward")
    assert row["gpu_time_ns"] == 2 * 3 * 6 * MS
    assert row["cost_ns"] == 6 * MS
    few = [row for row in made if row.kind == Kind.COMPUTE or row.layer in (0, 5)]
    assert found(run_of(few), "exposed") == []
    hidden = beside(rows(), lambda row: row.layer < 2)
    assert found(run_of(hidden), "exposed") == []


def test_clocks_within_an_operation(wording: Wording) -> None:
    run = run_of(rows())
    steady = np.where(run.table.phase == Phase.FORWARD, 1700.0, 1500.0)
    assert found(clocked(run, "gfx_mhz", steady), "clock") == []
    shaken = steady * np.where(np.arange(len(steady)) % 2, 1.03, 0.97)
    row = only(clocked(run, "gfx_mhz", shaken), "clock")
    wording(row["said"], "48 MHz", "3.0 %", "1,600 MHz")
    # Half of the time runs 3 % below the mean.
    assert row["cost_ns"] == pytest.approx(36 * MS * 0.03 / 2, rel=0.01)


def test_two_samples_are_no_deviation() -> None:
    run = run_of(rows(1, 1, 1))
    shaken = np.where(np.arange(len(run.table)) % 2, 1900.0, 1500.0)
    assert found(clocked(run, "gfx_mhz", shaken), "clock") == []


def test_throttled_gpus(wording: Wording) -> None:
    run = run_of(rows(4))
    share = np.where(run.table.gpu >= 2, 40.0, 3.0)
    row = only(clocked(run, "throttle_pct", share), "throttled")
    wording(row["said"], "GPUs 2 and 3", "40 %")
    assert row["cost_ns"] is None
    assert found(clocked(run, "throttle_pct", share / 10), "throttled") == []


def test_the_share_of_throttled_iterations_is_told_from_that_of_the_run(wording: Wording) -> None:
    run = run_of(stretched(rows(2, 6), lambda row: MS // 5 * (row.iteration >= 3)))
    share = np.where(run.table.iteration >= 3, 80.0, 0.0)
    wording(
        only(clocked(run, "throttle_pct", share), "throttled")["said"],
        "GPUs 0 and 1",
        "44 %",
        "80 %",
        "step 3",
    )


def test_the_limiter_is_named_where_it_is_known(wording: Wording) -> None:
    run = clocked(run_of(rows(2)), "throttle_pct", np.full(2 * 108, 30.0))
    times = np.arange(100 * MS, 220 * MS, MS)
    for name, share in (("ppt", 5.0), ("hbm_thermal", 25.0)):
        curves = {
            gpu: nearest_values(times, np.full(len(times), share), 2 * MS) for gpu in range(2)
        }
        signal = Signal(f"throttle_pct.{name}", name, Unit.PERCENT, curves, 0.0, 100.0)
        run = replace(run, measured={**run.measured, signal.name: signal})
    said = only(run, "throttled")["said"]
    wording(said, "GPUs 0 and 1", "30 %", "hbm_thermal")


PRODUCT = "Cijk_Alik_Bljk_BBS_MT256x256"


def products(share: float) -> Run:
    """A run whose mlp_up are products that reach a share of the peak."""
    made = [replace(row, kernel=PRODUCT) if row.operation == "mlp_up" else row for row in rows()]
    run = run_of(made)
    gemm = run.table.operation == list(run.table.operations).index("mlp_up")
    return with_columns(
        run,
        model_flops=np.where(gemm, 1e9, np.nan),
        model_flops_peak_ns=np.where(gemm, share * MS, np.nan),
    )


def test_large_products_that_reach_little(wording: Wording) -> None:
    row = only(products(0.3), "products")
    wording(row["said"], "mlp_up", "30 %", "12 ms")
    assert row["cost_ns"] == pytest.approx(12 * MS * (1 - 30 / 40), rel=0.001)
    run = products(0.3)
    other = (run.table.layer == 0) & (run.table.kernel == list(run.table.names).index(PRODUCT))
    codes = np.where(other, list(run.table.names).index("kernel"), run.table.kernel)
    partly = replace(run, table=replace(run.table, kernel=codes.astype(np.int32)))
    row = only(partly, "products")
    wording(row["said"], "mlp_up", "30 %", "10 ms", "12 ms")
    assert rows_of(query(partly, parse(row["at"])))["mlp_up"]["kernel_ns"] == 12 * MS
    assert found(products(0.5), "products") == []


def test_large_products_that_leave_the_matrix_units_idle_by_counters(wording: Wording) -> None:
    run = replace(products(0.3), described_hardware=specifications()["MI300X"])
    gemm = np.isfinite(run.table.measured["model_flops"])
    # 304 compute units with 4 SIMDs; the cycles are the sum over 8 XCCs.
    cycles = 8 * 2.1e6
    for share, expected in ((0.35, 1), (0.65, 0)):
        counted = with_columns(
            run,
            SQ_VALU_MFMA_BUSY_CYCLES=np.where(gemm, share * 2.1e6 * 304 * 4, np.nan),
            GRBM_GUI_ACTIVE=np.where(gemm, cycles, np.nan),
        )
        rows = found(counted, "products")
        assert len(rows) == expected
        if rows:
            wording(rows[0]["said"], "mlp_up", "35 %", "12 ms")
            assert rows[0]["cost_ns"] == pytest.approx(12 * MS * (1 - 35 / 50), rel=0.001)
            assert rows[0]["confidence"] == "high"
            assert query(counted, parse(rows[0]["at"])).labels == ["mlp_up"]


def test_the_summary_counts_findings_as_their_view_does() -> None:
    """Its cards are parts, a line of what isn't known, and opportunities, too."""
    run = demo_run()
    cards = next(
        each for each in query(run, parse("R?view=overview")).charts if isinstance(each, Cards)
    )
    (headline,) = findings(run).headline
    number, parts = re.match(r"(\d+) findings? ?(with \d+ parts?)?", headline).groups()
    assert cards.number == " ".join(filter(None, (number, parts)))
    assert len(cards.cards) != int(number)


def test_missing_data_has_no_cost(wording: Wording) -> None:
    said = found(run_of(rows()), "missing")
    assert [row["cost_ns"] for row in said] == [None]
    wording(said[0]["said"], "counters", "telemetry")
    bare = [replace(row, launch=None, layer=-1) for row in rows()]
    told = " ".join(row["said"] for row in found(run_of(bare), "missing"))
    wording(told, "No activity has a layer", "216 activities", "launch record")


def unlabelled(run: Run) -> list[str]:
    """What is said about labels that are missing."""
    said = [row["said"] for row in found(run, "missing")]
    return [each for each in said if " of the model's compute" in each or " of the time is" in each]


def test_work_of_no_layer_has_no_unknown_layer(wording: Wording) -> None:
    """The head takes as long as the layers, and sends that nothing hides as long as both."""
    own = rows(1, 1)
    after = own[-1].start + MS
    head = replace(own[-1], operation="head", layer=-1, start=after, duration=len(own) * MS)
    sends = replace(head, kernel="ncclSend", kind=Kind.COMM, start=head.start + head.duration)
    run = run_of([*own, head, replace(sends, duration=2 * head.duration)])
    assert unlabelled(run) == []
    rules = np.where(run.table.layer < 0, Rule.NONE, run.table.layer_rule)
    unknown = replace(run, table=replace(run.table, layer_rule=rules.astype(np.int8)))
    (note,) = unlabelled(unknown)
    wording(note, "The layer", "50.0 %")


def test_a_gap_between_two_programs_is_said_and_one_within_a_step_is_not(wording: Wording) -> None:
    alone = [replace(row, iteration=-1) for row in rows()]
    far = [replace(row, start=row.start + 3_600 * 10**9) for row in alone]
    told = [row["said"] for row in found(run_of([*alone, *far]), "missing")]
    wording.among(told, "60 min")
    assert not any("is one gap" in row["said"] for row in found(run_of(alone), "missing"))


def test_of_too_many_activities_some_iterations_are_looked_at(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("chopper_core.analyses.matched_kernels.MAX_MATCHED", 200)

    def extra(row: Row) -> int:
        return 300_000 * (row.operation == "mlp_up" and row.layer == 4)

    run = run_of(stretched(rows(iterations=9), extra))
    row = only(run, "layer")
    assert row["cost_ns"] == 2 * 300_000
    frame = findings(run)
    (note,) = (each for each in frame.notes if " of 9 steps, evenly chosen, are analysed" in each)
    assert 0 < int(note.split()[0]) < 9


@pytest.mark.few(12)
@pytest.mark.parametrize("seed", range(40))
def test_whatever_is_in_a_run_is_looked_at(seed: int) -> None:
    random = np.random.default_rng(seed)
    made = []
    for gpu in range(int(random.integers(1, 4))):
        now = 0
        for _ in range(int(random.choice([1, 2, 12, 120]))):
            now += int(random.choice([0, 100, 5_000]))
            made.append(
                Row(
                    now,
                    int(random.choice([0, 100, 1_000, 100_000])),
                    Kind(int(random.choice([0, 0, 0, 1, 2]))),
                    int(random.integers(0, 2)),
                    gpu,
                    int(random.integers(-1, 6)),
                    int(random.integers(-1, 5)),
                    int(random.integers(-1, 6)),
                    str(random.choice(["a", "b"])),
                    str(random.choice(["Cijk_x", "k"])),
                    None if random.random() < 0.2 else now - int(random.choice([5, 50_000])),
                )
            )
            now += made[-1].duration * int(random.integers(0, 2))
    run = run_of(made)
    for name in ("gfx_mhz", "throttle_pct"):
        run = clocked(run, name, random.uniform(0.0, 100.0, len(made)))
    if not run.table.duration_ns.any():
        return
    frame = findings(run)
    for number, label in enumerate(frame.labels):
        assert "nan" not in label and "inf" not in label
        assert len(query(run, parse(frame.addresses(number)))) > 0


# The page


def tables() -> dict[str, str]:
    """The tables of docs/findings.md, as markdown by the name of their block."""
    limits = [("several", each) for each in GENERAL]
    limits += [(f"`{rule.name}`", each) for rule in RULES for each in rule.thresholds]
    return {
        "columns": table(
            ("column", "meaning"),
            ((f"`{each.name}`", each.definition) for each in OWN),
        ),
        "confidence": table(
            ("confidence", "meaning"), ((each.text, text) for each, text in MEANING.items())
        ),
        "rules": table(
            ("rule", "looks for", "cost", "group", "needs"),
            (
                (f"`{each.name}`", each.looks_for, each.cost, each.group.text, each.needs)
                for each in RULES
            ),
        ),
        "thresholds": table(
            ("rule", "threshold", "value", "why"),
            ((rule, each.name, f"{each.value:g} {each.unit}", each.why) for rule, each in limits),
        ),
    }


def test_each_threshold_is_listed_by_a_rule() -> None:
    listed = {id(each) for each in GENERAL}
    listed |= {id(each) for rule in RULES for each in rule.thresholds}
    names = [f"chopper_core.findings.{name}" for name in MODULES]
    declared = [(name, *each) for name in names for each in vars(import_module(name)).items()]
    limits = [each for each in declared if isinstance(each[2], Threshold)]
    assert len(limits) > 20
    assert [f"{name}.{own}" for name, own, each in limits if id(each) not in listed] == []


def table(titles: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = (titles, (":--",) * len(titles), *rows)
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


@pytest.mark.golden
@pytest.mark.parametrize("name", tables())
def test_the_page_has_the_tables_of_the_rules(name: str) -> None:
    check(name, tables()[name], ROOT / "docs" / "findings.md")


def test_every_module_of_a_rule_is_registered() -> None:
    folder = ROOT / "chopper_core" / "findings"
    modules = {path.stem for path in folder.glob("*.py") if "@rule(" in path.read_text()}
    assert modules - {"rule"} == set(MODULES)
    names = [rule.name for rule in RULES]
    assert len(names) == len(set(names))
    assert all(rule.looks_for.endswith(".") and rule.cost for rule in RULES)


def test_an_operation_slow_on_one_gpu(wording: Wording) -> None:
    def extra(row: Row) -> int:
        return 150_000 * (row.operation == "mlp_up" and row.gpu == 2)

    made = stretched(rows(4), extra)
    row = only(run_of(made), "gpu-operation")
    wording(row["said"], "mlp_up", "GPU 2", "15.0 %")
    assert row["cost_ns"] == pytest.approx(12 * 150_000, rel=0.01)
    # Nothing replays the steps of a run made by hand: no saving is claimed.
    assert row["saving_ns"] is row["saving_low_ns"] is row["saving_high_ns"] is None
    assert query(run_of(made), parse(row["at"])).labels[0] == "2"
    # It is the cause of the GPU's lag, which is a part: it says less about where.
    assert only(run_of(made), "straggler")["part_of"] == 1
    # A GPU on which everything takes longer has no slow operation, nor has an unsteady one.
    slow = stretched(rows(4), lambda row: 150_000 * (row.gpu == 2))
    once = stretched(rows(4), lambda row: extra(row) * (row.iteration == 2))
    assert found(run_of(slow), "gpu-operation") == found(run_of(once), "gpu-operation") == []


def test_an_operation_that_only_one_layer_has(wording: Wording) -> None:
    def with_cast(layer: int) -> list[Row]:
        made = []
        for row in rows():
            made.append(row)
            if row.operation == "mlp_up" and row.layer == layer:
                made.append(replace(row, operation="_to_copy", kernel="cast", stream=5))
        return made

    row = only(run_of(with_cast(3)), "layer")
    wording(row["said"], "_to_copy", "layer 3", "1")
    assert "kernel only there" in row["said"]
    # What the first layer has may be the embedding's, unless the host was in that layer.
    assert len(found(run_of(with_cast(0)), "layer")) == 1
    guessed = run_of(with_cast(0))
    rules = np.full(len(guessed.table), Rule.NEIGHBOUR, np.int8)
    guessed = replace(guessed, table=replace(guessed.table, layer_rule=rules))
    assert found(guessed, "layer") == []


def test_copies_that_nothing_hides(wording: Wording) -> None:
    def copying(row: Row) -> Row:
        is_copy = row.operation == "mlp_dp" and row.layer == 1
        return replace(row, kind=Kind.COPY, kernel="Memcpy HtoD") if is_copy else row

    made = [copying(row) for row in rows()]
    row = only(run_of(made), "copies")
    wording(row["said"], "2 ms", "5.6 %")
    assert row["cost_ns"] == 2 * MS
    hidden = [*rows(), *(replace(row, stream=9) for row in made if row.kind == Kind.COPY)]
    assert found(run_of(sorted(hidden, key=lambda row: (row.gpu, row.start))), "copies") == []


def test_a_clock_that_drops_from_an_iteration_on(wording: Wording) -> None:
    run = run_of(rows(2, 6))
    low = (run.table.gpu == 1) & (run.table.iteration >= 4)
    row = only(clocked(run, "gfx_mhz", np.where(low, 1800.0, 2000.0)), "clock-drop")
    wording(row["said"], "GPU 1", "10.0 %", "step 4")
    assert row["cost_ns"] == pytest.approx(36 * MS * 0.1 * 2 / 6, rel=1e-6)
    noise = np.random.default_rng(1).normal(2000, 5, len(run.table))
    assert found(clocked(run, "gfx_mhz", noise), "clock-drop") == []
