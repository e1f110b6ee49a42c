"""Findings of a set of runs: the fastest, the coolest at equal speed, the cheapest, the failed.

Runs of one model are compared.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np
from msgspec import Struct

from chopper_core.columns import worded
from chopper_core.extensions.runs.figures import HIGHER, is_better, known_column
from chopper_core.extensions.runs.run_rows import (
    FAILED,
    OK,
    RunRow,
    RunRows,
    setting_of,
    settings_of,
)
from chopper_core.extensions.runs.runs import frame_of_set, shown_rows
from chopper_core.extensions.runs.speed import MODEL, Speed, common_figure, figure_in, speed_of
from chopper_core.findings.rule import CONFIDENCE, DETAIL, Confidence, Finding, Threshold
from chopper_core.findings.titles import of_name, one_line
from chopper_core.model.phrases import count, listed, percent
from chopper_core.model.units import scaled_text
from chopper_core.model.view import View
from chopper_core.util.errors import NothingToShow
from chopper_core.util.grouping import grouped_by
from chopper_core.views import RUNS
from chopper_core.views.frame import Frame

COOLER: Final = Threshold(
    "temperature below that of the fastest run", 1.0, "°C", "sensors resolve a degree"
)
LESS_ENERGY: Final = Threshold(
    "energy below that of the next run", 1.0, "%", "power is measured to about a percent"
)
THROTTLED: Final = Threshold(
    "share of throttled time above that of the least throttled run", 5.0, "%",
    "throttling varies with the room's temperature",
)  # fmt: skip
_ENERGIES: Final = ("j_per_token", "j_per_sample", "j_per_step")
_STEP: Final = "step_time_ns"
_LEAST_FASTER: Final = 0.0005
"""A run that is faster by less is as fast: its lead would be written as 0.0 %."""
_HEAT: Final = "gpu_hotspot_c"
_PEAK: Final = "peak_hotspot_c"
_COLUMNS: Final = (_HEAT, _PEAK, "gpu_power_w", "gpu_mhz", "gpu_throttled_pct")


class _RunGroup(Struct, frozen=True):
    """The runs that are compared with each other."""

    rows: Sequence[RunRow]
    view: View
    where: str = ""
    """The term of a filter that they alone match; empty where they are all runs."""

    def by(self, figure: str) -> list[RunRow]:
        """The runs that have a figure, the one with least of it first."""
        known = [row for row in self.rows if figure in row.figures]
        return sorted(known, key=lambda row: figure_in(row, figure))

    def finding(
        self, sentence: str, figure: str, *more: str, sure: Confidence = Confidence.MEDIUM
    ) -> Finding:
        """A finding whose evidence is the runs sorted by a figure, with those next to it."""
        own = figure.removeprefix("-")
        if not figure.startswith("-") and is_better(own) == HIGHER:
            figure = f"-{figure}"
        columns = tuple(dict.fromkeys((own, *more, _STEP, *_COLUMNS)))
        evidence = _shown(self.view, figure, self.where, columns)
        prefix = f"{self.where.partition(':')[2]}: " if self.where else ""
        text = f"{prefix}{sentence}"
        return Finding(_title(text), text, evidence, sure)


def set_frame(run: RunRows, view: View, *, wait: bool = False) -> Frame:
    """A row per finding; raises UsageError for an unknown setting, NothingToShow without runs."""
    rows, reading = shown_rows(run, view, wait=wait)
    if not rows and not reading.waiting:
        raise NothingToShow("no run is shown; clear the filter")
    # The best of the runs that are read may not be the best of all.
    found = [] if reading.waiting else findings_of_runs(rows, view)
    headline = f"{count(len(found), 'finding')} in {count(len(rows), 'run')}"
    if reading.waiting:
        headline = f"{len(rows)} of {len(rows) + reading.waiting} runs are read; findings follow"
    texts = [each.confidence.text for each in found]
    return frame_of_set(
        run,
        view,
        "finding",
        [each.title for each in found],
        [(CONFIDENCE, worded(texts)), (DETAIL, worded([each.detail for each in found]))],
        lambda row: found[row].evidence,
        headline=(headline,),
        is_pending=bool(reading.waiting),
    )


def findings_of_runs(rows: Sequence[RunRow], view: View) -> list[Finding]:
    """The findings of each group of runs (by the view's setting, else by model), and the failed."""
    by = setting_of(view.by, settings_of(rows)) if view.by else MODEL
    groups = grouped_by(rows, lambda row: row.settings.get(by))
    found: list[Finding] = []
    for value, own in groups.items():
        is_named = len(groups) > 1 and value is not None
        found += _of_group(_RunGroup(own, view, f"{by}:{value}" if is_named else ""))
    return [*found, *_failed(rows, view)]


def _of_group(group: _RunGroup) -> Iterator[Finding]:
    speed = speed_of(group.rows)
    if speed is not None:
        yield _fastest(group, speed)
        yield from _coolest(group, speed)
    else:
        yield from _cool(group)
    yield from _cheapest(group)
    yield from _throttled(group)


def _fastest(group: _RunGroup, speed: Speed) -> Finding:
    first, second = speed.rows[:2]
    on_gpus = ""
    if len({row.figures.get("gpus") for row in speed.rows}) > 1:
        on_gpus = f" on {figure_in(first, 'gpus'):.0f} GPUs"
    equal = [speed.rows[place].name for place in speed.equal[1:]]
    factor = float(speed.values[0] / speed.values[1])
    faster = (
        f"{percent(factor - 1)} faster than" if factor < 2 else f"{factor:.1f} times as fast as"
    )
    how = f"{faster} {second.name}"
    if equal:
        verb = "is" if len(equal) == 1 else "are"
        how = f"but {listed(equal)} {verb} as fast within the noise of the steps"
    is_sure = bool(np.isfinite(speed.chances[1]))
    if not is_sure:
        how += "; too few steps to know their noise"
    elif not equal:
        chance = max(float(speed.chances[1]), 0.001)
        how += f", beyond noise ({'below ' if chance == 0.001 else ''}{percent(chance)} by chance)"
    what = f"{first.name} is the fastest: {_with_unit(first, speed.figure)}{on_gpus}, {how}"
    if equal:
        every = listed((first.name, *equal))
        noise = "within the noise of the steps"
        what = f"{every} are equally fast {noise}: {_with_unit(first, speed.figure)}{on_gpus}"
    elif factor - 1 < _LEAST_FASTER:
        both = f"{first.name} and {second.name} are equally fast"
        what = f"{both}: {_with_unit(first, speed.figure)}{on_gpus}"
    sizes = [figure_in(row, "gpus") for row in (first, second)]
    if sizes[0] != sizes[1] and np.isfinite(sizes).all():
        one, other = (
            f"{row.name} ({count(int(size), 'GPU')})"
            for row, size in zip((first, second), sizes, strict=True)
        )
        what = (
            f"{one} leads {other}: {_with_unit(first, speed.figure)}, {how}; jobs of different "
            "sizes say little about their settings"
        )
    return group.finding(
        what,
        speed.figure,
        sure=Confidence.HIGH if is_sure else Confidence.MEDIUM,
    )


def _coolest(group: _RunGroup, speed: Speed) -> Iterator[Finding]:
    """The run to take of those equally fast, by temperature; else what the coolest costs."""
    rows, heats = speed.rows, np.array([figure_in(row, _HEAT) for row in speed.rows])
    if not np.isfinite(heats[0]) or np.isfinite(heats).sum() < 2:
        return
    equal = [place for place in speed.equal if np.isfinite(heats[place])]
    is_choice = len(equal) > 1
    best = min(equal, key=lambda at: (heats[at], at)) if is_choice else int(np.nanargmin(heats))
    hottest = max(equal, key=lambda place: heats[place])
    cool, hot = rows[best], rows[hottest]
    is_same = heats[hottest] - heats[best] < COOLER.value
    names = listed(rows[place].name for place in equal)
    if is_same:
        text = f"{names} are equally fast and equally hot, within a degree: {_degrees(cool)}"
        if not is_choice:
            text = f"{names} is as cool as the coolest: {_degrees(hot)}; no run is faster"
    elif is_choice:
        text = (
            f"{cool.name} is the coolest at equal speed: {_degrees(cool)}, against "
            f"{_degrees(hot)} of {hot.name}; equally fast are {names}"
        )
    else:
        slower = percent(1 - speed.values[best] / speed.values[0])
        text = (
            f"{cool.name} is the coolest, {_degrees(cool)} against {_degrees(hot)} of the "
            f"fastest, {hot.name}, and {slower} slower; no cooler run is as fast"
        )
    yield group.finding(text, _HEAT, speed.figure)


def _cool(group: _RunGroup) -> Iterator[Finding]:
    known = group.by(_HEAT)
    if len(known) > 1 and figure_in(known[-1], _HEAT) - figure_in(known[0], _HEAT) >= COOLER.value:
        yield group.finding(
            f"{known[0].name} is the coolest: {_degrees(known[0])}, against "
            f"{_degrees(known[-1])} of {known[-1].name}; their speed is unknown",
            _HEAT,
        )


def _cheapest(group: _RunGroup) -> Iterator[Finding]:
    figure = common_figure(group.rows, _ENERGIES)
    if figure is None:
        return
    best, second = group.by(figure)[:2]
    less = 1 - figure_in(best, figure) / figure_in(second, figure)
    is_same = less < LESS_ENERGY.share
    than = f"{second.name} the same within a percent"
    yield group.finding(
        f"{best.name} needs the least energy: {_with_unit(best, figure)} "
        f"{figure.removeprefix('j_').replace('_', ' ')}, "
        f"{than if is_same else f'{percent(less)} less than {second.name}'}",
        figure,
    )


def _throttled(group: _RunGroup) -> Iterator[Finding]:
    for figure in ("gpu_throttled_pct", "gpu_low_clock_pct"):
        known = group.by(figure)
        if len(known) < 2:
            continue
        least, most = known[0], max(known, key=lambda row: figure_in(row, figure))
        if figure_in(most, figure) - figure_in(least, figure) >= THROTTLED.value:
            yield group.finding(
                f"{most.name} is throttled most, {figure_in(most, figure):.0f} % of the time, and "
                f"{least.name} least, {figure_in(least, figure):.0f} %",
                f"-{figure}",
            )


def _failed(rows: Sequence[RunRow], view: View) -> Iterator[Finding]:
    bad = [row for row in rows if row.status != OK]
    if bad:
        stopped = sum(row.status == FAILED for row in bad)
        verb = "is" if len(bad) == 1 else "are"
        text = f"{len(bad)} of {count(len(rows), 'run')} {verb} incomplete"
        if stopped:
            text += f", {stopped} without figures"
        named = f"{listed(row.name for row in bad)}; " if len(bad) > 1 else ""
        yield Finding(
            one_line(text),
            f"{text}: {named}{bad[0].name}: {bad[0].reason}",
            _shown(view, "", "status:failed,short,partial", ("status", "reason")),
            Confidence.HIGH,
        )


def _title(text: str) -> str:
    """The beginning of a sentence as one line."""
    core, *more = text.replace("; ", ", ").split(",")
    return of_name(core, *(f",{part}" for part in more))


def _shown(view: View, sort: str, where: str, columns: tuple[str, ...]) -> View:
    terms = " ".join(filter(None, (view.filter, where)))
    return View(
        view.run, name=RUNS, columns=columns, sort=sort, filter=terms, overrides=view.overrides
    )


def _with_unit(row: RunRow, figure: str) -> str:
    return scaled_text(figure_in(row, figure), known_column(figure).unit)


def _degrees(row: RunRow) -> str:
    peak = figure_in(row, _PEAK)
    own = f"{figure_in(row, _HEAT):.1f} °C"
    return f"{own} (peak {peak:.0f})" if np.isfinite(peak) else own
