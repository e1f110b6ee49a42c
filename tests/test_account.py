"""One account: wherever a quantity appears, it is the same to the digits shown.

`QUANTITIES` of `chopper_core.metrics.quantities` has the places where each appears: columns of
views and of `runs`, headlines, bars and sentences. Each pair agrees, in runs of many kinds and in
their parts; and a table shows the same at any width, as JSON and as CSV.
"""

from __future__ import annotations

import csv
import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from itertools import combinations
from pathlib import Path
from pkgutil import walk_packages
from typing import Final

import numpy as np
import pytest

from chopper_core import views
from chopper_core.extensions.runs.figures import RUN_COLUMNS, figures_of_run
from chopper_core.metrics import METRICS, Metric
from chopper_core.metrics.quantities import QUANTITIES, Quantity
from chopper_core.model.address import parse
from chopper_core.model.charts import Cards, Composition
from chopper_core.model.run import Run
from chopper_core.model.table import LEVELS, Kind, Phase
from chopper_core.model.view import View
from chopper_core.render import render
from chopper_core.render.glyphs import UNICODE
from chopper_core.util.errors import ChopperError
from chopper_core.views import view_specs
from chopper_core.views.frame import Frame
from chopper_core.views.query import preview, query
from chopper_tui.draw.table import plan
from tests.bench.causes import planted
from tests.charllm import directory
from tests.demo import demo_run, kept_files, opened
from tests.pipelines import pipeline_run
from tests.support import Row, run_of
from tests.training import Rank, step
from tests.tui.explorer import explorer

_SCALES: Final = {
    "ns": 1e-9, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "W": 1.0, "kW": 1e3, "J": 1.0, "kJ": 1e3,
    "k": 1e3, "M": 1e6, "%": 1.0, "": 1.0,
}  # fmt: skip
_NUMBER: Final = r"(\d[\d,]*(?:\.\d+)?) ?(ns|µs|ms|s|kW|W|kJ|J|k|M|%|)(?![\w.])"


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
    view = parse(f"R{f':{scope}' * bool(scope)}?{asked}&order={order}")
    try:
        # Of parts, the overview without its findings, which are compared in runs.
        return preview(run, view) if scope and view.name == "overview" else query(run, view)
    except ChopperError:
        return None


def said(view: str, words: str) -> Place:
    """The number at `#` in the first headline of a view, or label of a finding, with such words."""
    before, _, after = words.partition("#")
    pattern = re.compile(f"{before}{_NUMBER}{after}")

    def found(run: Run, scope: str) -> Shown | None:
        frame = _frame(run, f"view={view}", scope)
        lines = () if frame is None else (*frame.headline, *frame.labels)
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
        value = figures_of_run(run).figures.get(name)
        times = scale * (len(run.gpus) if quantity == "power" else 1)
        return float(value) * times if isinstance(value, int | float) else None

    return found


def first_row(asked: str, name: str) -> Place:
    """A time of the first row, in s."""

    def found(run: Run, scope: str) -> float | None:
        frame = _frame(run, asked, scope)
        value = frame.values[name].at(0) if frame is not None and len(frame) else None
        return None if value is None else value * 1e-9

    return found


def card(run: Run, scope: str) -> Shown | None:
    """The saving of the overview's first card."""
    frame = _frame(run, "view=overview", scope)
    charts = () if frame is None else frame.charts
    cards = [each for chart in charts if isinstance(chart, Cards) for each in chart.cards]
    figures = [each.figures[-1] for each in cards[:1] if each.figures]
    match = re.fullmatch(_NUMBER, figures[0]) if figures else None
    return match and Shown(match[1], match[2])


WORDS: Final[Mapping[str, Mapping[str, str]]] = {
    "step time": {
        "overview headline": r"^(?:iteration|step) #",
        "throughput headline": "an iteration takes #",
        "findings headline": "activities, # per iteration",
        "whatif headline": "instead of #,",
    },
    "tokens/s": {
        "overview headline": "· # tok/s",
        "throughput headline": r"per GPU, # on \d+ GPUs",
    },
    "tokens/s per GPU": {"throughput headline": "^# tokens/s"},
    "MFU": {"overview headline": "· # of peak"},
    "exposed communication": {
        "findings sentence": "^exposed communication takes # per (?:GPU and )?iteration"
    },
    "exposed": {
        "overview headline": "exposed #",
        "findings sentence": r"^exposed communication takes \S+ \S+ per (?:GPU and )?it\S+ \(#\)",
    },
    "low clock": {
        "findings sentence": "^a clock below nominal is the largest (?:known )?overhead: #"
    },
    "power": {"overview headline": r"· #$", "power headline": "GPUs? draw #"},
    "step energy": {"power headline": "an iteration takes #"},
    "waiting": {"comms headline": "GPUs wait #"},
    "collectives": {"comms headline": "^# collectives?"},
}
"""Where a quantity stands in a sentence: the number at `#`."""
BARS: Final = {
    "step time": "", "exposed communication": "exposed communication", "idle": "idle",
    "low clock": "frequency",
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
        return said(text.partition(" ")[0], words[text])
    view, what = text.split(" ")
    if what == "bar":
        return bar(BARS[quantity.name])
    if what == "cards":
        return card
    scale = 1e-9 if quantity.unit == "s" else 1.0
    if view == "runs":
        return of_runs(quantity.name, what, scale)
    if view == "whatif" or quantity.name == "saving":
        return first_row(f"view={view}", what)
    asked = f"columns={what}" if view == "tree" else f"view={view}&columns={what}"
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
    """A GPU whose trace ends an iteration earlier."""
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
    "a GPU lacks an iteration": lacking_run,
    "parts of some GPUs and steps": partial_run,
    "lost records": damaged_run,
    "telemetry alone": sampled_run,
}


def scopes_of(run: Run) -> list[str]:
    """A GPU, an iteration, a layer and so on, alone and in each other."""
    if not len(run.table):
        return [""]
    last = int(run.table.iteration.max())
    phase = run.table.text_of("phase", int(run.table.phase[len(run.table) // 2]))
    layer = run.table.text_of("layer", int(run.table.layer.max()))
    return [
        "", "gpu=0", f"iteration={last}", f"gpu=0/iteration={last}", f"phase={phase}",
        "phase=optimizer", f"layer={layer}", f"gpu=0/phase={phase}",
    ]  # fmt: skip


OF_STEPS: Final = frozenset({"overview", "throughput", "findings", "whatif", "runs"})
"""Views of steps: idle time before a launch call belongs to the iteration of its host."""


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


@pytest.mark.few(4)
@pytest.mark.parametrize("name", RUNS)
def test_a_quantity_is_the_same_wherever_it_appears(name: str) -> None:
    run = RUNS[name]()
    assert {scope: wrong for scope in scopes_of(run) if (wrong := disagreements(run, scope))} == {}


def test_every_function_of_a_quantity_is_there() -> None:
    for each in QUANTITIES.values():
        path, _, metric = each.function.partition(" ")
        module, _, name = path.rpartition(".")
        found = getattr(import_module(f"chopper_core.{module}"), name)
        assert not metric or metric.strip("()") in found, each.name


_CELL: Final = re.compile(r"^[~*]*(<?)([+-]?\d+(?:\.\d+)?)$")
_IN_UNITS: Final = {
    "ms": 1e6, "µs": 1e3, "s": 1e9, "min": 6e10, "h": 3.6e12, "mJ": 1e-3, "kJ": 1e3,
    "kB": 1e3, "MB": 1e6, "GB": 1e9, "MFLOP": 1e6, "GFLOP": 1e9, "TFLOP": 1e12, "kW": 1e3,
}  # fmt: skip


def differing_cells(frame: Frame, width: int) -> list[str]:
    """The cells of a frame's table, drawn in a width, that aren't the frame's figures."""
    layout, wrong = plan(frame, width, UNICODE), []
    for column in layout.columns:
        values = frame.values[column.name]
        if values.words is not None:
            continue
        metric = next(each for each in frame.columns if each.name == column.name)
        unit = column.header.rstrip("▲▼").rpartition(" ")[2]
        unit = "" if unit == str(metric.unit) else unit
        for row in range(len(frame)):
            text, number = column.text.cell(values, row, UNICODE), values.at(row)
            match = _CELL.match(text)
            if number is None:
                if text != UNICODE.missing:
                    wrong.append(f"{column.name} {row}: {text} for nothing")
                continue
            assert match, text
            shown, scale = float(match[2]), _IN_UNITS.get(unit, 1.0)
            step = scale * 10.0 ** -len(match[2].partition(".")[2])
            is_same = (
                0 < number < shown * scale
                if match[1]
                else (abs(shown * scale - number) <= 0.5000001 * step)
            )
            if not is_same:
                wrong.append(f"{column.name} {row}: {text} {unit} for {number}")
    return wrong


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
        document = json.loads(render(frame, "json"))
        rows = list(csv.DictReader(render(frame, "csv").splitlines()))
        for place, (row, line) in enumerate(zip(document["rows"], rows, strict=True)):
            for column in frame.columns:
                cell = frame.values[column.name].cell(place)
                assert row[column.name] == cell, (view, column.name)
                text = line[column.name]
                assert (text or None) == cell or float(text) == cell, (view, column.name)
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


ONE_FIGURE: Final = (
    {"gfx_mhz", "now_gfx_mhz"}, {"edge_c", "now_edge_c"}, {"mean_hotspot_c", "now_hotspot_c"},
    {"gfx_util_pct", "now_gfx_util_pct"}, {"gpu_mhz", "mean_gfx_mhz"},
    {"delay_ns", "straggler_delay_ns"}, {"straggler", "behind"}, {"step_ns", "step_time_ns"},
    {"low_clock_pct", "gpu_low_clock_pct"}, {"last_gpu", "times_last"},
    {"window_ns", "step_window_ns"},
    {"throttled_pct", "gpu_throttled_pct", "now_throttle_pct"}, {"saving_pct", "part_pct"},
    {"saving_low_ns", "step_low_ns"}, {"saving_high_ns", "step_high_ns"},
    {"activities", "calls"}, {"slowdown", "slowdown_x"}, {"roof_pct", "model_roof_pct"},
    {"intensity", "model_intensity"},
    {"energy_j", "window_energy_j", "sampled_energy_j"}, {"counters_matched", "occurrences"},
    {"host_longest_ns", "longest_burst_ns"}, {"elapsed_ns", "part_ns", "collective_ns"},
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
    for found in walk_packages(views.__path__, f"{views.__name__}."):
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
            assert place(demo, "") is not None or place(other, "") is not None, (
                f"{quantity}: {name}"
            )


def test_a_difference_in_a_digit_that_both_show_is_found() -> None:
    assert not agrees(Shown("739.9", "ms"), 0.73985 - 1e-4)
    assert not agrees(Shown("740", "ms"), Shown("739.4", "ms"))
    assert agrees(Shown("740", "ms"), Shown("739.9", "ms"))
    assert not agrees(0.1, 0.1001)
