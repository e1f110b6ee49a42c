"""The overview's two lines: how fast the run is, and what it is."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Final

from msgspec import Struct

from chopper_core.metrics import is_measured
from chopper_core.model.column_names import CYCLES
from chopper_core.views.overheads import THEORY
from chopper_core.views.overview.step import Step
from chopper_core.views.shared.phrases import count, time

_SMALLEST_CHANGE_PCT: Final = 0.05
_MAX_UNKNOWN_FLOPS_PCT: Final = 5.0
"""Of the time of matrix kernels: with more, the share of the peak would be far too small."""


class _Fact(Struct, frozen=True):
    """A figure of the first line: its number and how it is written; `of` names it."""

    number: float | None
    text: Callable[[float], str]
    before: str = ""
    after: str = ""
    is_share: bool = False
    """Whether a change is in percentage points."""


def headline_of(step: Step, base: Step | None = None) -> str:
    """The figures that are known, the most important first; with a baseline, how each changed."""
    others = _figures(base) if base is not None else (None,) * 5
    said = [
        _said(figure, other)
        for figure, other in zip(_figures(step), others, strict=True)
        if figure.number is not None
    ]
    return " · ".join(said)


def _figures(step: Step) -> tuple[_Fact, ...]:
    whole = step.parts_of(step.whole)
    knows_flops = THEORY in whole and step.without_flops_pct <= _MAX_UNKNOWN_FLOPS_PCT
    elapsed = max(int(step.whole.elapsed_ns[0]), 1)
    theory = 100.0 * int(whole[THEORY][0]) / elapsed if knows_flops else None
    communicates = int(step.whole.sum("collectives")[0]) > 0 and not step.run.is_reconstructed
    exposed = 100.0 * int(whole["exposed_comm_ns"][0]) / elapsed if communicates else None
    return (
        _Fact(step.median_ns, time, before=f"{step.word} "),
        _Fact(step.tokens_per_s(), _thousands, after=" tok/s"),
        _Fact(theory, _percent, after=" of peak", is_share=True),
        _Fact(exposed, _percent, before="exposed ", is_share=True),
        _Fact(_power_w(step), _power),
    )


def _said(figure: _Fact, other: _Fact | None) -> str:
    assert figure.number is not None
    text = f"{figure.before}{figure.text(figure.number)}{figure.after}"
    if other is None or other.number is None:
        return text
    if figure.is_share:
        change, unit = figure.number - other.number, "points"
    else:
        change, unit = 100.0 * (figure.number / other.number - 1.0) if other.number else 0.0, "%"
    text = f"{figure.before}{other.text(other.number)} → {figure.text(figure.number)}{figure.after}"
    if abs(change) < _SMALLEST_CHANGE_PCT:
        return f"{text} (same)"
    return f"{text} ({change:+.1f} {unit})"


def _power_w(step: Step) -> float | None:
    """The mean power of all GPUs together; None if that of any is unknown."""
    if not is_measured("power_w", step.run.table):
        return None
    values = step.figure("power_w")
    return float(values.numbers.sum()) if values.present().all() else None


def _percent(number: float) -> str:
    return f"{number:.1f} %" if number < 10 else f"{number:.0f} %"


def _thousands(number: float) -> str:
    for least, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if number >= least:
            return f"{number / least:.{_decimals(number / least)}f}{unit}"
    return f"{number:.{_decimals(number)}f}"


def _decimals(number: float) -> int:
    return 0 if number >= 100 else 1 if number >= 10 else 2


def _power(watts: float) -> str:
    return f"{watts / 1e3:.1f} kW" if watts >= 1000 else f"{watts:.0f} W"


def facts_of(step: Step) -> list[str]:
    """The run in a line: its GPUs, ranks, iterations, and the sources that it lacks."""
    run = step.run
    products = Counter(gpu.hardware or "unknown GPU" for gpu in run.gpus if gpu.index in step.gpus)
    facts = [f"{count} × {name}" for name, count in products.most_common()]
    ranks = len({gpu.rank for gpu in run.gpus})
    world = max((int(w) for s in run.sources if (w := s.facts.get("world size", "")).isdigit()),
                default=0)  # fmt: skip
    if world > ranks:
        facts.append(f"{ranks} of {world} ranks")
    facts.append(_iterations(step))
    facts.append(_sources(step))
    return [fact for fact in facts if fact]


def _iterations(step: Step) -> str:
    used = len(step.iterations)
    known = used + len(step.left_out) + len(step.irregular)
    if not known:
        return "no iterations"
    return count(known, step.word) if used == known else f"{used} of {known} {step.word}s"


def _sources(step: Step) -> str:
    """Which GPUs have counters and telemetry, or that they don't."""
    run, table = step.run, step.run.table
    counted = sorted({each.gpu for each in run.counters if each.gpu in step.gpus})
    counters = "no counters"
    if counted:
        every = len(counted) == len(step.gpus)
        counters = "counters" if every else f"counters on {count(len(counted), 'GPU')}"
    elif CYCLES in table.measured:
        counters = "counters"
    measured = [name for name in ("gfx_mhz", "power_w") if is_measured(name, table)]
    if len(measured) == 2:
        return f"{counters} · telemetry"
    lacks = {"gfx_mhz": "clock", "power_w": "power"}
    if measured:
        return f"{counters} · no {next(lacks[name] for name in lacks if name not in measured)}"
    return f"{counters} · no telemetry" if counters != "no counters" else "trace only"
