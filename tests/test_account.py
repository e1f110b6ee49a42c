"""One account: wherever a quantity appears, it is the same to the digits shown.

`QUANTITIES` of `chopper_core.columns.quantities` has the places where each appears: columns of
views and of `runs`, headlines, bars and sentences. Each pair agrees, in runs of many kinds and in
their parts; a table shows the same at any width, as JSON and as CSV; and `info` and the report show
what the views do.
"""

from __future__ import annotations

import csv
import json
import math
import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from html import unescape
from importlib import import_module
from itertools import combinations
from pathlib import Path
from pkgutil import walk_packages
from typing import Any, Final

import numpy as np
import pytest
from msgspec.structs import replace

from chopper_core import analyses, findings, views
from chopper_core.analyses.step_times import step_times
from chopper_core.columns import METRICS, Metric
from chopper_core.columns.quantities import QUANTITIES, Quantity
from chopper_core.extensions.runs.figures import RUN_COLUMNS, figures_of_run, with_settings
from chopper_core.extensions.runs.run_set import open_runs
from chopper_core.model.address import parse
from chopper_core.model.charts import BarChart, Cards, Composition
from chopper_core.model.column_names import AT_PEAK, BREAKDOWN
from chopper_core.model.run import Run
from chopper_core.model.table import LEVELS, Kind, Phase
from chopper_core.model.view import View
from chopper_core.render import info, render_frame
from chopper_core.render.cells import column_texts
from chopper_core.render.glyphs import UNICODE
from chopper_core.render.names import row_names
from chopper_core.util.errors import ChopperError
from chopper_core.views import view_spec, view_specs
from chopper_core.views.frame import Frame
from chopper_core.views.live import newest
from chopper_core.views.query import preview_frame, query
from chopper_tui.draw.charts import draw
from chopper_tui.draw.table import plan
from tests.charllm import directory
from tests.demo import as_kept, demo_run, kept_files, opened
from tests.pipelines import pipeline_run
from tests.programs.bench.causes import planted
from tests.render.test_report import page_of
from tests.support import Row, details, run_of
from tests.training import Rank, step
from tests.tui.explorer import explorer

_SCALES: Final = {
    "ns": 1e-9, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "W": 1.0, "kW": 1e3, "J": 1.0, "kJ": 1e3,
    "mJ": 1e-3, "k": 1e3, "M": 1e6, "%": 1.0, "": 1.0,
}  # fmt: skip
_NUMBER: Final = r"(\d[\d,]*(?:\.\d+)?) ?(ns|µs|ms|s|kW|W|kJ|mJ|J|k|M|%|)(?![\w.])"


class Shown:
    """A number in a text: its value, and half a unit of its last digit."""

    def __init__(self, text: str, unit: str) -> None:
        scale, plain = _SCALES[unit], text.replace(",", "")
        self.value = float(plain) * scale
        self.half = 0.5000001 * scale * 10.0 ** -len(plain.partition(".")[2])
        self.text = f"{text} {unit}".rstrip()

    def __repr__(self) -> str:
        return self.text


MS: Final = 1_000_000
Place = Callable[[Run, str], Shown | float | None]
"""From a run and a scope, as an address has it, to what the place shows."""


def _frame(run: Run, asked: str, scope: str = "") -> Frame | None:
    levels = [part.partition("=")[0] for part in scope.split("/")] if scope else []
    order = ",".join(dict.fromkeys((*levels, *LEVELS)))
    view = parse(f"R{f':{scope}' if scope else ''}?{asked}&order={order}")

    def made() -> Frame | None:
        # Of parts, the overview without its findings, which are compared in runs.
        asks = preview_frame if scope and view.name == "overview" else query
        with suppress(ChopperError):
            return asks(run, view)
        return None

    return run.memo(("frame of places", view), made)  # Many places are of one frame.


def said(view: str, words: str) -> Place:
    """The number at `#` in the first headline of a view, or label of a finding, with such words."""
    before, _, after = words.partition("#")
    pattern = re.compile(f"{before}{_NUMBER}{after}")

    def found(run: Run, scope: str) -> Shown | None:
        frame = _frame(run, f"view={view}", scope)
        lines = () if frame is None else (*frame.headline, *frame.labels)
        if frame is not None and "detail" in frame.values:
            lines = (*lines, *details(frame))
        match = next((match for line in lines if (match := pattern.search(line))), None)
        return match and Shown(match[1], match[2])

    return found


def total(asked: str, name: str, scale: float, of_gpus: Callable[..., float] | None) -> Place:
    """A figure of the total row, or of all rows."""

    def found(run: Run, scope: str) -> float | None:
        frame = _frame(run, asked, scope)
        if frame is None or name not in frame.values:
            return None
        value, values = frame.total.get(name), frame.values[name]
        if value is None and of_gpus and len(values) and values.present().all():
            value = float(of_gpus(values.numbers))
        if not isinstance(value, int | float):
            return None
        return float(value) * scale

    return found


def bar(title: str) -> Place:
    """A part of the overview's bar of all GPUs, or all of it, in s."""

    def found(run: Run, scope: str) -> float | None:
        frame = _frame(run, "view=overview", scope)
        charts = () if frame is None else frame.charts
        bars = next((each for each in charts if isinstance(each, Composition)), None)
        if bars is None:
            return None
        found = [float(each.numbers[0]) for each in bars.series if title in ("", each.name)]
        known = [number for number in found if math.isfinite(number)]
        return sum(known) * _SCALES[bars.unit] if known else None

    return found


def of_runs(quantity: str, name: str, scale: float) -> Place:
    """A figure of the run in a table of runs; its power is the mean of the GPUs."""

    def found(run: Run, _: str) -> float | None:
        row = run.memo(("figures of places",), lambda: figures_of_run(run))
        value = with_settings(row, row.settings).figures.get(name)
        times = scale * (len(run.gpus) if quantity == "power" else 1)
        return float(value) * times if isinstance(value, int | float) else None

    return found


def first_row(asked: str, name: str, scale: float) -> Place:
    """A figure of the first row."""

    def found(run: Run, scope: str) -> float | None:
        frame = _frame(run, asked, scope)
        if frame is None or not len(frame) or name not in frame.values:
            return None
        value = frame.values[name].at(0)
        return None if value is None else value * scale

    return found


def card(run: Run, scope: str) -> Shown | None:
    """The saving of the overview's first card."""
    frame = _frame(run, "view=overview", scope)
    charts = () if frame is None else frame.charts
    cards = [each for chart in charts if isinstance(chart, Cards) for each in chart.cards]
    figures = [each.figures[-1] for each in cards[:1] if each.figures]
    match = re.fullmatch(_NUMBER, figures[0]) if figures else None
    return match and Shown(match[1], match[2])


def of_newest_step(words: str) -> Place:
    """The number in the live view's headline, which is about the newest complete step."""
    place = said("live", words)

    def found(run: Run, scope: str) -> Shown | float | None:
        if run.is_sampled_only or not len(run.table):
            return None
        number = newest(step_times(run, View(run.name)))
        about = "" if number is None else f"iteration={number}"
        return place(run, "") if scope == about else None

    return found


WORDS: Final[Mapping[str, Mapping[str, str]]] = {
    "step time": {
        "overview headline": r"^(?:iteration|step) #",
        "live headline": r"^(?:step \d+: (?:step )?|step )#",
        "throughput headline": "step #",
        "findings headline": "· # per step",
        "whatif headline": "instead of #,",
    },
    "tokens/s": {
        "overview headline": "· # tok/s",
        "live headline": "· # tok/s",
        "throughput headline": r"per GPU, # on \d+ GPUs",
    },
    "tokens/s per GPU": {"throughput headline": "^# tok/s"},
    "token time": {"throughput headline": "^# a token"},
    "token energy": {"power headline": "· # a token"},
    "MFU": {"overview headline": "· MFU #", "live headline": "· MFU #"},
    "exposed communication": {
        "findings sentence": r"(?:^Exposed communication takes(?! \S+ \S+ per usual)"
        "|; with the waits) #"
    },
    "exposed": {
        "overview headline": "exposed #",
        "live headline": "exposed #",
        "findings sentence": r"(?:^Exposed communication takes \S+ \S+ per (?:GPU and )?step \("
        r"|; with the waits \S+ \S+, )#",
    },
    "low clock": {
        "findings sentence": "^A clock below nominal is the largest (?:known )?overhead: #"
    },
    "power": {
        "overview headline": r"· #$",
        "live headline": r"· #$",
        "power headline": "^# on",
    },
    "step energy": {"power headline": "· # a step"},
    "waiting": {"comms headline": "^# waiting"},
    "communication kernels": {"comms headline": r"(?:^|of )# collectives"},
}
"""Where a quantity stands in a sentence: the number at `#`."""
BARS: Final = {
    "step time": "", "exposed communication": "exposed communication", "idle": "idle",
    "low clock": "low clock",
}  # fmt: skip
"""The part of the overview's bar; the whole where it has no name."""
OF_GPUS: Final = {
    "power": np.sum,
    "lag": np.max,
    "bus bandwidth": np.max,
    "mean clock": np.mean,
    "low MHz": np.min,
}
"""How figures of GPUs make that of the run, where a column has no total."""


def place_of(quantity: Quantity, text: str) -> Place:
    """A place of the registry, as a function from a run to what it shows."""
    if text in (words := WORDS.get(quantity.name, {})):
        if text.startswith("live"):
            return of_newest_step(words[text])
        return said(text.partition(" ")[0], words[text])
    view, what = text.split(" ")
    if what == "bar":
        return bar(BARS[quantity.name])
    if what == "cards":
        return card
    scale = 1e-3 if what.endswith("_mj") else 1e-9 if quantity.unit == "s" else 1.0
    if view == "runs":
        return of_runs(quantity.name, what, scale)
    if view == "whatif" or quantity.name == "saving":
        return first_row(f"view={view}", what, scale)
    if quantity.name == "token time":
        return total(f"view={view}&by=part&columns={what}", what, scale, None)
    asked = f"columns={what}" if view == "tree" else f"view={view}&columns={what}"
    if view == "overview":
        asked = f"view={view}"  # Within a phase its table is of kernels, not of steps.
    return total(asked, what, scale, OF_GPUS.get(quantity.name))


PLACES: Final = {
    each.name: {text: place_of(each, text) for text in each.places} for each in QUANTITIES.values()
}


def planted_run(style: str) -> Run:
    folder = kept_files(f"planted-{style.replace(' ', '-')}", style, planted.clean(style, 1).write)
    return opened(str(folder))


def varying_run() -> Run:
    """Two ranks, whose sequences differ in length from step to step."""

    def make(folder: Path) -> None:
        ranks = [Rank(0, 2), Rank(1, 2)]
        for number, tokens in enumerate((512, 1024, 768, 2048)):
            name = f"ProfilerStep#{number}"
            with ranks[0].note_around(name), ranks[1].note_around(name):
                step(ranks, number, [tokens, tokens // 2])
                for each in ranks:
                    each.sync()
        for each in ranks:
            folder.mkdir(exist_ok=True)
            each.write(folder / f"rank{each.rank}.json")

    return opened(str(kept_files("account-varying", "", make)))


def plain_run(phases: Sequence[Phase], kind: str, load: Callable[[int, int], int]) -> Run:
    """Steps of a collective and three kernels on two GPUs, whose time is by GPU and step."""
    rows = [
        Row(
            (9 * number + 2 * place) * MS + 300_000,
            load(gpu, number) if place else 700_000,
            gpu=gpu,
            iteration=number,
            phase=phases[number % len(phases)],
            operation="mlp_up" if place else kind,
            kind=Kind.COMPUTE if place else Kind.COMM,
        )
        for gpu in (0, 1)
        for number in range(4)
        for place in range(4)
    ]
    return run_of(rows)


def inference_run() -> Run:
    """Prefill and decode with exposed collectives."""
    return plain_run((Phase.PREFILL, *[Phase.DECODE] * 3), "all_reduce", lambda gpu, step: MS)


def experts_run() -> Run:
    """Experts with more and less load, from GPU to GPU and from step to step."""
    return plain_run(
        (Phase.FORWARD, Phase.BACKWARD),
        "all_to_all",
        lambda gpu, step: MS * (1 + (gpu + step) % 2) * 2 // 3,
    )


def lacking_run() -> Run:
    """A GPU whose trace ends a step earlier."""
    return parts_run(lambda gpu, number: (gpu, number) != (1, 3))


def partial_run() -> Run:
    """Layers on half of the GPUs each, and an optimizer in every second step."""
    return parts_run()


def parts_run(keeps: Callable[[int, int], bool] = lambda gpu, number: True) -> Run:
    rows = [
        Row(
            (9 * number + 2 * place) * MS + 300_000,
            700_000 + 100_000 * gpu,
            gpu=gpu,
            iteration=number,
            phase=(Phase.FORWARD, Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER)[place],
            layer=place + 4 * (gpu // 2),
            operation="mlp_up" if place else "all_reduce",
            kind=Kind.COMPUTE if place else Kind.COMM,
        )
        for gpu in range(4)
        for number in range(4)
        for place in range(4)
        if keeps(gpu, number) and (place < 3 or number % 2)
    ]
    return run_of(rows)


def damaged_run() -> Run:
    """Two ranks, of which the file of one ends in the midst of its records."""

    def make(folder: Path) -> None:
        folder.mkdir(exist_ok=True)
        ranks = [Rank(0, 2), Rank(1, 2)]
        for number in range(4):
            name = f"ProfilerStep#{number}"
            with ranks[0].note_around(name), ranks[1].note_around(name):
                step(ranks, number, [512, 512])
        for each in ranks:
            each.write(folder / f"rank{each.rank}.json")
        whole = (folder / "rank1.json").read_bytes()
        (folder / "rank1.json").write_bytes(whole[: len(whole) * 4 // 5])

    return opened(str(kept_files("account-damaged", "", make)))


def sampled_run() -> Run:
    """Telemetry alone, of 32 GPUs."""
    return opened(str(kept_files("account-sampled", "", lambda folder: directory(folder))))


RUNS: Final[Mapping[str, Callable[[], Run]]] = {
    "inference": inference_run,
    "fsdp1": lambda: demo_run("fsdp1"),
    "fsdp2": demo_run,
    **{style: (lambda style=style: planted_run(style)) for style in planted.STYLES},
    "tp 2 pp 4 dp 4": lambda: pipeline_run()[0],
    "variable sequences": varying_run,
    "experts": experts_run,
    "a GPU lacks a step": lacking_run,
    "parts of some GPUs and steps": partial_run,
    "lost records": damaged_run,
    "telemetry alone": sampled_run,
    "shared tokens": lambda: opened("demo_data/fsdp2", "tp=2"),
}


def scopes_of(run: Run) -> list[str]:
    """A GPU, a step, a layer and so on, alone and in each other."""
    if not len(run.table):
        return [""]
    last, number = int(run.table.iteration.max()), newest(step_times(run, View(run.name)))
    phase = run.table.text_of("phase", int(run.table.phase[len(run.table) // 2]))
    layer = run.table.text_of("layer", int(run.table.layer.max()))
    return [
        "", "gpu=0", f"iteration={last}", f"gpu=0/iteration={last}", f"phase={phase}",
        "phase=optimizer", f"layer={layer}", f"gpu=0/phase={phase}",
        *([] if number in (None, last) else [f"iteration={number}"]),
    ]  # fmt: skip


OF_STEPS: Final = frozenset({"overview", "throughput", "findings", "whatif", "runs", "live"})
"""Views of steps: idle time before a launch call belongs to the step of its host."""


def counts(quantity: str, name: str, scope: str) -> bool:
    """Whether a place is about a scope alone; elsewhere notes say what it is about."""
    view, is_part = name.partition(" ")[0], "phase" in scope or "layer" in scope
    if view in ("runs", "whatif", "findings") or name.endswith("cards"):
        return not scope
    if view == "throughput":
        return not is_part
    if view == "ranks":
        return "gpu" not in scope
    # The overview notes what a step of its own has beyond its activities.
    of_tree = quantity in ("idle", "step time", "exposed", "MFU") and view not in OF_STEPS
    return not ("iteration" in scope and of_tree)


def disagreements(run: Run, scope: str = "") -> list[str]:
    """Each pair of places where a quantity differs in a digit that both show."""
    lines = []
    for quantity, places in PLACES.items():
        known = {
            name: found
            for name, place in places.items()
            if counts(quantity, name, scope) and (found := place(run, scope)) is not None
        }
        for one, other in combinations(known, 2):
            if not agrees(known[one], known[other]):
                lines.append(f"{quantity}: {one} {known[one]}, {other} {known[other]}")
    return lines


def agrees(one: Shown | float, other: Shown | float) -> bool:
    values = [each.value if isinstance(each, Shown) else each for each in (one, other)]
    halves = [each.half for each in (one, other) if isinstance(each, Shown)]
    return abs(values[0] - values[1]) <= (sum(halves) or 1e-6 * max(map(abs, values)))


@pytest.mark.parametrize("name", ["fsdp2", "tp 2 pp 4 dp 4"])
def test_the_straggler_of_ranks_lags_as_its_row_of_the_overview_says(name: str) -> None:
    run = RUNS[name]()
    text = query(run, View(run.name, name="ranks")).headline[0]
    found = re.search(rf"GPU (\d+) lags (?:most, )?{_NUMBER}", text)
    assert found, text
    lags = query(run, View(run.name, name="overview"))
    of_gpu = dict(zip(lags.labels, lags.values["lag_ns"].numbers * 1e-9, strict=True))
    assert agrees(Shown(found[2], found[3]), float(of_gpu[found[1]]))


def test_the_clock_of_the_slow_gpu_and_the_usual_one_are_those_of_the_tree() -> None:
    run = demo_run()
    text = query(run, View(run.name, name="power")).headline[1]
    found = re.search(r"GPU (\d+) (\d+) MHz while busy, median (\d+)", text)
    assert found, text
    tree = query(run, View(run.name))
    clocks = dict(zip(tree.labels, tree.values["gfx_mhz"].known().tolist(), strict=True))
    slow = clocks.pop(found[1])
    assert (found[2], found[3]) == (f"{slow:.0f}", f"{np.median([*clocks.values()]):.0f}")


@pytest.mark.parametrize("name", ["fsdp1", "fsdp2", "shared tokens"])
def test_rates_and_energies_follow_from_each_other(name: str) -> None:
    run = RUNS[name]()

    def shown(quantity: str, place: str) -> float:
        found = PLACES[quantity][place](run, "")
        assert isinstance(found, float)
        return found

    step_s = shown("step time", "runs step_time_ns")
    rate = shown("tokens/s", "runs run_tokens_per_s")
    step_j = shown("step energy", "runs j_per_step")
    assert shown("power", "power mean_power_w") * step_s == pytest.approx(step_j, rel=1e-5)
    token_j = shown("token energy", "power token_energy_mj")
    assert token_j == pytest.approx(step_j / (rate * step_s))
    of_gpu = shown("tokens/s per GPU", "throughput tokens_per_s")
    assert shown("token time", "throughput per_token_ns") == pytest.approx(1 / of_gpu)
    assert rate == pytest.approx(of_gpu * len(run.gpus))


def test_recomputation_is_no_work_of_the_model() -> None:
    """The same model takes longer with it, and its FLOPs are those of forward and backward once."""
    shares = ("mfu_pct", "recompute_pct")
    of_model, recomputed = [], []
    for style in ("module", "module recomputing"):
        run = planted_run(style)
        figures = figures_of_run(run).figures
        step_ns, mfu_pct = float(figures["step_time_ns"]), float(figures["mfu_pct"])
        found = query(run, View(run.name, name="overheads", columns=shares)).total
        assert found["mfu_pct"] == mfu_pct
        flops = query(run, View(run.name, columns=("model_flops",))).total["model_flops"]
        of_model.append((mfu_pct * step_ns, flops, sum(info.describe(run)["model_flops"].values())))
        recomputed.append(found["recompute_pct"])
    # The part of a kernel that other work overlaps differs a little.
    assert of_model[1] == pytest.approx(of_model[0], rel=0.005)
    assert recomputed[0] == 0 and recomputed[1] > 5


@pytest.mark.few(2)
@pytest.mark.parametrize("name", RUNS)
def test_a_quantity_is_the_same_wherever_it_appears(name: str) -> None:
    run = RUNS[name]()
    assert {scope: wrong for scope in scopes_of(run) if (wrong := disagreements(run, scope))} == {}


SHARES_OF_ALL: Final = (
    *("energy_pct", "host_idle_pct", "kernel_pct", "part_pct", "path_pct", "share_pct"),
)
"""Shares of the scope: a column of them adds up to its total, which is 100."""
STACKED: Final = {
    "time by ": ("elapsed_ns",),
    "idle time by cause": ("idle_ns",),
    "before compute starts": ("launch_overhead_ns",),
    "time without compute": ("exposed_comm_ns", "exposed_copy_ns", "idle_ns"),
}
"""How the titles of stacked bars begin, and the columns whose sum a bar is."""
PARTS_OF: Final = {"overheads": 100.0, "throughput": "iteration_ns"}
"""What the parts of a view with parts add up to in each row: a number, or a column."""


def partial_counters_run(*lacking: str) -> Run:
    """Two of four GPUs have some parts of compute; the time of the others is unattributed."""
    run = lacking_run()
    computes = run.table.kind == Kind.COMPUTE
    compute_ns = np.where(computes, run.table.compute_ns + run.table.overlap_ns, 0).astype(float)
    parts = dict.fromkeys((*BREAKDOWN, AT_PEAK), np.zeros(len(run.table)))
    shares = {"theoretical_ns": 3, "mfma_loss_ns": 2, "vector_ns": 1, "frequency_ns": 1}
    left = compute_ns.copy()
    for name, tenths in shares.items():
        has = (run.table.gpu % 2 == 1) | (name not in lacking)
        parts[name] = np.where(has, compute_ns // 10 * tenths, np.nan)
        left -= np.nan_to_num(parts[name])
    return replace(run, table=run.table.with_measured({**parts, "unmodelled_ns": left}))


SOME_GPUS: Final[Mapping[str, Callable[[], Run]]] = {
    "some counters": lambda: partial_counters_run("mfma_loss_ns", "vector_ns"),
    "some clocks": lambda: partial_counters_run("frequency_ns"),
    "some shapes": lambda: partial_counters_run("theoretical_ns", "mfma_loss_ns"),
}


def misfits(frame: Frame) -> list[str]:
    """The legends, bars and shares of a frame that don't add up to what they are parts of."""
    found: list[str] = []
    rows = np.arange(len(frame))[frame.counted()]

    def check(what: str, parts: Sequence[float], whole: float, digits: float = 1e-6) -> None:
        if abs(sum(parts) - whole) > digits * max(abs(whole), 1.0):
            found.append(f"{frame.address}: {what} add up to {sum(parts)} of {whole}")

    for name in SHARES_OF_ALL:
        own = frame.values[name].known()[rows] if name in frame.values else np.zeros(0)
        if np.isfinite(own).any():
            # Messages are a part of the longest path.
            whole = frame.total[name] if frame.view.by == "message" else 100.0
            check(name, np.nan_to_num(own).tolist(), whole or 0.0)
    spec = view_spec(frame.view.name) if frame.view.name else None
    names = [each.name for each in frame.columns if spec and each.name in spec.parts]
    for row in rows.tolist() if names else ():
        whole = PARTS_OF[frame.view.name]
        own = [frame.values[name].at(row) for name in names]
        number = frame.values[whole].at(row) if isinstance(whole, str) else whole
        # A row may take no time.
        if any(each is not None for each in own):
            check(f"parts of {frame.labels[row]}", [each or 0 for each in own], number or 0)
    if names and any(frame.total[name] is not None for name in names):
        whole = PARTS_OF[frame.view.name]
        number = frame.total[whole] if isinstance(whole, str) else whole
        check("parts of the total", [frame.total[name] or 0 for name in names], number or 0)
    for chart in frame.charts:
        if isinstance(chart, Composition):
            lines = draw(chart, 160, 12, UNICODE)
            text = "".join(text for line in lines for text, _ in line)
            shares = [float(each) for each in re.findall(r"([\d.]+) %", text)]
            # Each is rounded, and those too small to be seen are left out.
            check("the legend's shares", shares, 100.0, 0.0006 * len(chart.series))
        if not isinstance(chart, BarChart) or len(chart.series) < 2:
            continue
        of = next((STACKED[each] for each in STACKED if chart.title.startswith(each)), ())
        sums = np.nansum([each.numbers for each in chart.series], axis=0).tolist()
        for label, height in zip(chart.labels, sums, strict=True) if of else ():
            row = frame.row(frame.labels.index(label))
            whole_ns = sum(float(row[name] or 0) for name in of if name in row)
            check(f"the bar of {label}", [height * 1e6], whole_ns)
    return found


def all_frames(run: Run) -> Iterator[Frame]:
    """Each view by each of its splits, where it has something to show."""
    for spec in view_specs():
        for by in dict.fromkeys(("", *spec.by)):
            with suppress(ChopperError):
                yield query(run, View(run.name, name=spec.name, by=by))


@pytest.mark.few(2)
@pytest.mark.parametrize("name", [*SOME_GPUS, *RUNS])
def test_every_legend_bar_and_column_of_shares_adds_up(name: str) -> None:
    run = {**RUNS, **SOME_GPUS}[name]()
    assert [wrong for frame in all_frames(run) for wrong in misfits(frame)] == []


def test_those_of_several_runs_add_up(monkeypatch: pytest.MonkeyPatch) -> None:
    as_kept(monkeypatch)
    runs = open_runs("demo_data", ["demo_data"], jobs=1)
    while runs.waiting(wait=True):
        pass
    for name, whole in PARTS_OF.items():
        bars = query(runs, View("demo_data", name=name)).charts[0]
        assert isinstance(bars, BarChart) and len(bars.series) > 4
        sums = np.nansum([each.numbers for each in bars.series], axis=0)
        expected = np.full(len(sums), whole)
        if isinstance(whole, str):
            columns = query(runs, View("demo_data", name=name, columns=(whole,)))
            expected = columns.values[whole].known() / 1e6
        assert sums == pytest.approx(expected)


def test_parts_of_some_gpus_are_marked_and_measured_parts_stay() -> None:
    """What all GPUs distinguish is as measured; the rest is divided as on those that can."""
    run = SOME_GPUS["some counters"]()
    frame = query(run, View(run.name, name="overheads", by="kernel"))
    shares = {name: frame.values[name] for name in ("frequency_pct", "mfma_loss_pct")}
    assert frame.total_mark("mfma_loss_pct") == "~" and not frame.total_mark("frequency_pct")
    assert shares["mfma_loss_pct"].is_extrapolated(0)
    assert not shares["frequency_pct"].is_extrapolated(0)
    ratio = shares["mfma_loss_pct"].known()[0] / shares["frequency_pct"].known()[0]
    assert ratio == pytest.approx(2, rel=1e-4)
    for gpu, is_known in (("1", True), ("2", False)):
        own = query(run, View(run.name, (gpu,), name="overheads", by="kernel"))
        assert ("mfma_loss_pct" in own.total) == is_known and not own.total_mark("mfma_loss_pct")


def test_every_function_of_a_quantity_is_there() -> None:
    for each in QUANTITIES.values():
        path, _, metric = each.function.partition(" ")
        module, _, name = path.rpartition(".")
        found = getattr(import_module(f"chopper_core.{module}"), name)
        assert not metric or metric.strip("()") in found, each.name


_CELL: Final = re.compile(r"^[~*≤]*(<?)([+-]?\d+(?:\.\d+)?)$")
_IN_UNITS: Final = {
    "ms": 1e6, "µs": 1e3, "s": 1e9, "min": 6e10, "h": 3.6e12, "mJ": 1e-3, "kJ": 1e3,
    "kB": 1e3, "MB": 1e6, "GB": 1e9, "MFLOP": 1e6, "GFLOP": 1e9, "TFLOP": 1e12, "kW": 1e3,
}  # fmt: skip


def differing_cells(frame: Frame, width: int) -> list[str]:
    """The cells of a frame's table, drawn in a width, that aren't the frame's figures."""
    wrong = []
    for column in plan(frame, width, UNICODE).columns:
        name, values = column.name, frame.values[column.name]
        for row in range(len(frame) if values.words is None else 0):
            text, number = column.text.cell(values, row, UNICODE), values.at(row)
            if not shows(column.header, text, number, str(column.text.metric.unit)):
                wrong.append(f"{name} {row}: {text} for {number} under {column.header}")
    return wrong


def shows(header: str, text: str, number: int | float | None, own: str) -> bool:
    """Whether a cell under a header is a number, which has a unit of its own."""
    if number is None:
        return text == UNICODE.missing
    unit = header.rstrip("▲▼").rpartition(" ")[2]
    match = _CELL.match(text.lstrip("▲▼"))
    assert match, text
    scale = 1.0 if unit == own else _IN_UNITS.get(unit, 1.0)
    shown, step = float(match[2]) * scale, scale * 10.0 ** -len(match[2].partition(".")[2])
    if match[1]:
        return 0 < number < shown
    return abs(shown - number) <= 0.5000001 * step


VIEWS: Final = ("", *(each.name for each in view_specs()))


@pytest.mark.few(1)
@pytest.mark.parametrize("name", RUNS)
def test_a_table_shows_the_same_at_any_width_and_in_any_format(name: str) -> None:
    run, checked = RUNS[name](), 0
    for view in VIEWS:
        frame = _frame(run, f"view={view}" if view else "")
        if frame is None or not len(frame):
            continue
        checked += 1
        for width in (80, 120):
            assert differing_cells(frame, width) == [], (view, width)
        document = json.loads(render_frame(frame, "json"))
        rows = list(csv.DictReader(render_frame(frame, "csv").splitlines()))
        for place, (row, line) in enumerate(zip(document["rows"], rows, strict=True)):
            for column in frame.columns:
                cell = frame.values[column.name].cell(place)
                assert row[column.name] == cell, (view, column.name)
                text = line[column.name]
                assert text == cell or (text or None) == cell or float(text) == cell, view
    assert checked >= 4


@pytest.mark.sweep
@pytest.mark.parametrize("size", [(80, 24), (120, 36)])
@pytest.mark.parametrize("name", VIEWS)
async def test_a_screen_shows_the_figures_of_the_frame(name: str, size: tuple[int, int]) -> None:
    """Its headline; the cells of tables are compared in two widths above."""
    run = demo_run()
    async with explorer(size, run, View(run.name, name=name)) as at:
        text = " ".join(at.text().split())
        for line in at.frame.headline[:1]:
            assert " ".join(line.split()[:8]) in text


def _as_total(run: Run, asked: str) -> dict[str, dict[str, Any]]:
    """The rows of a view as sums over all steps, truncated ones too, by label."""
    frame = _frame(run, f"{asked}&base=total&cut=1")
    assert frame is not None
    return {frame.labels[row]: frame.row(row) for row in range(len(frame))}


@pytest.mark.few(2)
@pytest.mark.parametrize("name", RUNS)
def test_info_counts_what_the_views_count(name: str) -> None:
    """Its document and its text: time, kernels, collectives and copies of each GPU, model FLOPs."""
    run = RUNS[name]()
    if not len(run.table) or run.table.is_sampled:
        return
    found = info.describe(run)
    names = "kernels", "copies", "collectives"
    rows = _as_total(run, f"columns=elapsed_ns,{','.join(names)}")
    text = " ".join(info.info_text(run).split())
    for gpu in found["gpus"]:
        own = rows[str(gpu["gpu"])]
        assert gpu["span_ns"] == own["elapsed_ns"]
        assert [gpu[each] for each in names] == [own[each] for each in names]
        cells = gpu["gpu"], gpu["rank"], gpu["device"], f"{gpu['span_ns'] / 1e6:.3f}"
        assert f" {' '.join(map(str, (*cells, *(gpu[each] for each in names[::2]))))} " in text
    if (frame := _frame(run, "view=comms&base=total&cut=1&columns=collectives")) is not None:
        of_all = sum(each["count"] for each in found["collectives"])
        assert (
            of_all
            == frame.total["collectives"]
            == sum(each["collectives"] for each in found["gpus"])
        )
    flops = sum(row["model_flops"] or 0 for row in _as_total(run, "columns=model_flops").values())
    assert sum(found["model_flops"].values()) == pytest.approx(flops, rel=1e-9)


@pytest.mark.few(2)
@pytest.mark.parametrize("name", RUNS)
def test_the_report_shows_the_figures_of_the_views(name: str) -> None:
    """Each headline, finding and cell of a table of the page is that of the view it names."""
    run, checked = RUNS[name](), 0
    for section in page_of(run).split("<section ")[1:]:
        title = re.search("<h2>(.*?)</h2>", section)
        assert title is not None
        of_findings = title[1] == "Findings"
        for part in section.split("<li")[1:] if of_findings else [section]:
            addresses = re.findall(r"<code>chopper show (.*?)</code>", part)
            if title[1] in ("Sources", "Not known"):
                continue
            frame = query(run, parse(shlex.split(unescape(addresses[0 if of_findings else -1]))[0]))
            text = " ".join(unescape(re.sub("<[^>]*>", " ", part)).split())
            assert of_findings or all(" ".join(line.split()) in text for line in frame.headline)
            for table in re.findall(r"<table>.*?</table>", part, re.DOTALL):
                checked += _checked_cells(frame, _cells_of(table))
    assert checked > 20


def _checked_cells(frame: Frame, table: list[list[str]]) -> int:
    columns = {each.header: each.metric for each in column_texts(frame)}
    (_, *titles), *lines = table
    # Names are as short as tells the rows of the page apart, and evidence has few rows.
    named = [row_names(frame, UNICODE, most) for most in (200, len(lines), len(lines) - 1)]
    known = next(names for names in named if {line[0] for line in lines[:-1]} <= {*names})
    rows = {name: row for row, name in enumerate(known)}
    count = 0
    for label, *cells in lines:
        for title, cell in zip(titles, cells, strict=True):
            metric, row = columns[title], rows.get(label)
            values = frame.values[metric.name]
            number = frame.total.get(metric.name) if row is None else values.at(row)
            if values.words is None and (row is not None or cell):
                count += 1
                assert shows(title, cell, number, str(metric.unit)), (frame.address, label, title)
    return count


def _cells_of(table: str) -> list[list[str]]:
    rows = [re.findall(r"<t[hd].*?</t[hd]>", row) for row in table.split("<tr>")[1:]]
    return [[unescape(_WHOLE.sub(r"\1", each)) for each in row] for row in rows]


_WHOLE: Final = re.compile(r"""<td [^>]*title="([^"]*)".*|<[^>]*>""", re.DOTALL)
"""A cell whose text is cut, with all of it; other tags."""


LINKS: Final = ("pcie", "xgmi_read", "xgmi_write", "nvlink_read", "nvlink_write", "nvlink")
ONE_FIGURE: Final = (
    {"gfx_mhz", "now_gfx_mhz"}, {"edge_c", "now_edge_c"}, {"mean_hotspot_c", "now_hotspot_c"},
    {"gfx_util_pct", "now_gfx_util_pct"}, {"gpu_mhz", "mean_gfx_mhz"},
    {"delay_ns", "straggler_delay_ns"}, {"straggler", "behind"},
    {"step_ns", "step_time_ns", "logged_step_ns", "iteration_ns", "now_step_ns"},
    {"iteration", "now_step"}, {"tokens", "expert_tokens"}, {"rank_slower_pct", "stage_behind_pct"},
    {"samples_per_s", "logged_samples_per_s"},
    {"tokens_per_s", "logged_tokens_per_s"}, {"model_tflops", "logged_tflops"},
    {"mfu_pct", "logged_mfu_pct"}, {"p95_ns", "logged_p95_ns"},
    {"low_clock_pct", "gpu_low_clock_pct"}, {"last_gpu", "times_last"},
    {"window_ns", "step_window_ns"},
    {"throttled_pct", "gpu_throttled_pct", "now_throttle_pct"},
    {"saving_pct", "part_pct", "stage_pct"},
    {"saving_low_ns", "step_low_ns"}, {"saving_high_ns", "step_high_ns"},
    {"activities", "calls"}, {"slowdown", "slowdown_x"}, {"roof_pct", "model_roof_pct"},
    {"path_ns", "cause_ns"},
    {"intensity", "model_intensity"},
    {"energy_j", "window_energy_j", "sampled_energy_j"}, {"counters_matched", "occurrences"},
    {"host_longest_ns", "longest_burst_ns"},
    {"elapsed_ns", "part_ns", "collective_ns", "stage_ns"},
    {"compute_ns", "compute_step_ns"}, {"idle_ns", "idle_step_ns"},
    *({f"{name}_gbps", f"now_{name}_gbps"} for name in LINKS), {"fan_pct", "now_fan_pct"},
)  # fmt: skip
"""Columns of different tables with one title: the same figure, or of another thing of its row."""
OF_PLACES: Final = ("lane_", "at_", "cpu_")
"""Columns of lanes, of the cursor and of processors have the titles of those of GPUs."""


def test_no_title_stands_for_two_figures() -> None:
    titles: dict[str, set[str]] = {}

    def collect(thing: object, depth: int = 0) -> None:
        thing = getattr(thing, "metric", thing)
        if isinstance(thing, Metric):
            title, unit = thing.title, str(thing.unit)
            header = title if title.endswith(unit) else f"{title} {unit}"
            titles.setdefault(header, set()).add(thing.name)
        elif depth < 3 and isinstance(thing, Mapping | tuple | list):
            for part in thing.values() if isinstance(thing, Mapping) else thing:
                collect(part, depth + 1)

    collect([METRICS, RUN_COLUMNS])
    for room in (analyses, findings, views):
        for found in walk_packages(room.__path__, f"{room.__name__}."):
            collect(vars(import_module(found.name)))
    several = {
        title: own
        for title, names in titles.items()
        if len(own := {name for name in names if not name.startswith(OF_PLACES)}) > 1
    }
    assert len(titles) > 300
    assert {
        title: own for title, own in several.items() if not any(own <= each for each in ONE_FIGURE)
    } == {}


def test_every_place_is_found_in_some_run() -> None:
    """A place whose words changed would agree with nothing."""
    demo, other = demo_run(), demo_run("fsdp1")
    for quantity, places in PLACES.items():
        for name, place in places.items():
            scope = "iteration=12" * name.startswith("live")
            assert place(demo, scope) is not None or place(other, scope) is not None, (
                f"{quantity}: {name}"
            )


def test_a_difference_in_a_digit_that_both_show_is_found() -> None:
    assert not agrees(Shown("739.9", "ms"), 0.73985 - 1e-4)
    assert not agrees(Shown("740", "ms"), Shown("739.4", "ms"))
    assert agrees(Shown("740", "ms"), Shown("739.9", "ms"))
    assert not agrees(0.1, 0.1001)
