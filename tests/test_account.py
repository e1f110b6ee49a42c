"""One account: wherever a quantity appears, it is the same to the digits shown.

A row of `QUANTITIES` is a quantity and the places where it appears: exact figures of views, and
the words of headlines, bars and findings. Each pair agrees, in runs of many kinds.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from itertools import combinations
from typing import Final

import pytest

from chopper_core.extensions.runs.figures import figures_of_run
from chopper_core.model.address import parse
from chopper_core.model.charts import Composition
from chopper_core.model.run import Run
from chopper_core.util.errors import ChopperError
from chopper_core.views.frame import Frame
from chopper_core.views.query import query
from chopper_core.views.shared.step_times import step_times
from tests.bench.causes import planted
from tests.demo import demo_run, kept_files, opened
from tests.pipelines import pipeline_run

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


Place = Callable[[Run], Shown | float | None]


def _frame(run: Run, asked: str) -> Frame | None:
    try:
        return query(run, parse(f"R?{asked}"))
    except ChopperError:
        return None


def said(view: str, words: str) -> Place:
    """The number at `#` in the first headline of a view, or label of a finding, with such words."""
    before, _, after = words.partition("#")
    pattern = re.compile(f"{before}{_NUMBER}{after}")

    def found(run: Run) -> Shown | None:
        frame = _frame(run, f"view={view}")
        lines = () if frame is None else (*frame.headline, *frame.labels)
        match = next((match for line in lines if (match := pattern.search(line))), None)
        return match and Shown(match[1], match[2])

    return found


def total(asked: str, name: str, scale: float = 1.0, *, per_step: bool = False) -> Place:
    """A figure of the total row; with `per_step` over the GPUs and complete iterations."""

    def found(run: Run) -> float | None:
        frame = _frame(run, asked)
        value = None if frame is None else frame.total.get(name)
        if not isinstance(value, int | float):
            return None
        return float(value) * scale / (cells(run) if per_step else 1)

    return found


def cells(run: Run) -> int:
    """How many complete iterations the GPUs have, together."""
    return step_times(run, parse("R")).cells


def bar(title: str) -> Place:
    """A part of the overview's bar of all GPUs, in s."""

    def found(run: Run) -> float | None:
        frame = _frame(run, "view=overview")
        charts = () if frame is None else frame.charts
        bars = next((each for each in charts if isinstance(each, Composition)), None)
        if bars is None:
            return None
        numbers = [float(each.numbers[0]) for each in bars.series if each.name == title]
        return numbers[0] * _SCALES[bars.unit] if numbers and math.isfinite(numbers[0]) else None

    return found


def of_runs(name: str, scale: float = 1.0) -> Place:
    """A figure of the run in a table of runs."""

    def found(run: Run) -> float | None:
        value = figures_of_run(run).figures.get(name)
        return float(value) * scale if isinstance(value, int | float) else None

    return found


QUANTITIES: Final[Mapping[str, Mapping[str, Place]]] = {
    "step time, s": {
        "headline": said("overview", r"^(?:iteration|step) #"),
        "overview": total("view=overview", "step_ns", 1e-9),
        "throughput": total("view=throughput", "iteration_ns", 1e-9),
        "throughput's headline": said("throughput", "an iteration takes #"),
        "findings": said("findings", "activities, # per iteration"),
        "runs": of_runs("step_time_ns", 1e-9),
    },
    "tokens/s": {
        "headline": said("overview", r"· # tok/s"),
        "throughput's headline": said("throughput", r"per GPU, # on \d+ GPUs"),
    },
    "tokens/s of a GPU": {
        "throughput": total("view=throughput", "tokens_per_s"),
        "throughput's headline": said("throughput", "^# tokens/s"),
        "runs": of_runs("tokens_per_s"),
    },
    "power, W": {
        "headline": said("overview", r"· #$"),
        "power": total("view=power", "mean_power_w"),
        "power's headline": said("power", "GPUs? draw #"),
        "runs": lambda run: (found := of_runs("gpu_power_w")(run)) and found * len(run.gpus),
    },
    "energy of a step, J": {
        "power": total("view=power", "iteration_energy_j"),
        "power's headline": said("power", "an iteration takes #"),
        "runs": of_runs("j_per_step"),
    },
    "exposed communication, %": {
        "headline": said("overview", r"exposed #"),
        "overheads": total("view=overheads", "exposed_comm_pct"),
        "finding": said("findings", r"^exposed communication takes [^(]* \(#\)"),
        "runs": of_runs("exposed_comm_pct"),
    },
    "exposed communication, s": {
        "bar": bar("exposed communication"),
        "throughput": total("view=throughput", "communication_ns", 1e-9),
        "finding": said("findings", "^exposed communication takes #"),
        "tree": total("columns=exposed_comm_ns", "exposed_comm_ns", 1e-9, per_step=True),
        "collectives": total("view=comms", "exposed_comm_ns", 1e-9, per_step=True),
    },
    "cost of a low clock, s": {
        "bar": bar("frequency"),
        "overheads": total(
            "view=overheads&columns=frequency_ns", "frequency_ns", 1e-9, per_step=True
        ),
        "finding": said("findings", "^a clock below nominal is the largest (?:known )?overhead: #"),
    },
    "idle time, s": {
        "bar": bar("idle"),
        "tree": total("columns=idle_ns", "idle_ns", 1e-9, per_step=True),
        "overheads": total("view=overheads&columns=idle_ns", "idle_ns", 1e-9, per_step=True),
        "launch": total("view=launch", "idle_ns", 1e-9, per_step=True),
        "throughput": total("view=throughput", "launch_ns", 1e-9),
    },
    "use of the peak, %": {
        "headline": said("overview", "· # of peak ·"),
        "overheads": total("view=overheads", "theoretical_pct"),
        "runs": of_runs("mfu_pct"),
    },
}


def planted_run(style: str) -> Run:
    folder = kept_files(f"planted-{style.replace(' ', '-')}", style, planted.clean(style, 1).write)
    return opened(str(folder))


RUNS: Final[Mapping[str, Callable[[], Run]]] = {
    "fsdp1": lambda: demo_run("fsdp1"),
    "fsdp2": demo_run,
    **{style: (lambda style=style: planted_run(style)) for style in planted.STYLES},
    "tp 2 pp 4 dp 4": lambda: pipeline_run()[0],
}


def disagreements(run: Run) -> list[str]:
    """Each pair of places where a quantity differs in a digit that both show."""
    lines = []
    for quantity, places in QUANTITIES.items():
        known = {name: found for name, place in places.items() if (found := place(run)) is not None}
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
    assert disagreements(RUNS[name]()) == []


def test_every_place_is_found_in_some_run() -> None:
    """A place whose words changed would agree with nothing."""
    demo, other = demo_run(), demo_run("fsdp1")
    for quantity, places in QUANTITIES.items():
        for name, place in places.items():
            assert place(demo) is not None or place(other) is not None, f"{quantity}: {name}"


def test_a_difference_in_a_digit_that_both_show_is_found() -> None:
    assert not agrees(Shown("739.9", "ms"), 0.73985 - 1e-4)
    assert not agrees(Shown("740", "ms"), Shown("739.4", "ms"))
    assert agrees(Shown("740", "ms"), Shown("739.9", "ms"))
    assert not agrees(0.1, 0.1001)
