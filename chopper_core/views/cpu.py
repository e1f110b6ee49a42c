"""CPU: which of the host's processors are busy, logical and physical."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import numpy as np
from msgspec.structs import replace

from chopper_core.analyses.base import base_of
from chopper_core.analyses.cpu_use import (
    CPU_STEP_ROWS,
    NO_CORES,
    PROCESSOR_ROWS,
    CpuUse,
    by_core,
    by_processor,
    cpu_by_step,
)
from chopper_core.analyses.rows import FigureRows
from chopper_core.analyses.samples import even_places
from chopper_core.model.charts import Chart, HeatMap, LineChart
from chopper_core.model.phrases import facts
from chopper_core.model.run import Run, SideSource
from chopper_core.model.signals import CpuSamples
from chopper_core.model.view import View, child_of
from chopper_core.util.arrays import Float64
from chopper_core.util.errors import NothingToShow, UsageError
from chopper_core.views.shared.table_view import columns_of, table_view
from chopper_core.views.spec import ViewResult, ViewSpec, options_of

SPEC: Final = ViewSpec(
    name="cpu",
    title="GPUs · CPU",
    question="How many of the host's processors are busy, logical and physical, and which?",
    by=("iteration", "cpu", "core"),
    rows=(CPU_STEP_ROWS, PROCESSOR_ROWS),
    of="above:PERCENT, file:NAME",
    no_statistic="shows means over samples of all processors",
    takes_samples=True,
)

_NO_SAMPLES: Final = (
    "no CPU samples on the run's clock; docs/telemetry.md describes the file format and has a "
    "sampler"
)
_MAX_BINS: Final = 120
_MAX_CORES: Final = 24


def missing_from(run: Run) -> str:
    """Why no scope of a run has an answer; empty: one may."""
    if any(samples.offset_ns is not None for samples in run.cpu):
        return ""
    return run.still_reading(SideSource.CPU) or f"{_NO_SAMPLES}{_unplaced(run)}"


def _unplaced(run: Run) -> str:
    """Why the samples that there are aren't on the run's clock."""
    reasons = "; ".join(f"{Path(each.path).name}: {each.method}" for each in run.cpu)
    return f" ({reasons})" if reasons else ""


def answer(run: Run, view: View) -> ViewResult:
    level, samples = _chosen(run, view)
    use = CpuUse.of(samples, level)
    if run.is_sampled_only:
        return _of_samples(run, view, use, level)
    by = view.by or "iteration"
    node = run.tree_of(view).node(view.path)
    use = use.between(int(node.min("start_ns")[0]), int(node.max("end_ns")[0]))
    is_along_time = by == "iteration"
    rows = cpu_by_step(run, view, use) if is_along_time else _processors(use, by)
    return table_view(
        view,
        rows,
        columns_of(rows.figures),
        columns_of(rows.whole),
        opens=lambda row: child_of(view, by, rows.labels[row]) if is_along_time else view,
        sort="" if is_along_time else "-cpu_busy_pct",
        headline=_headline(use, level),
        notes=_notes(run, use, level),
        charts=_charts(run, use),
    )


def _of_samples(run: Run, view: View, use: CpuUse, level: float) -> ViewResult:
    """The processors of a run of telemetry alone, over all of its time."""
    by = view.by or "cpu"
    if by == "iteration":
        raise NothingToShow("steps need a trace; by=cpu has a row per processor")
    rows = _processors(use, by)
    found = table_view(
        view,
        rows,
        columns_of(rows.figures),
        opens=lambda row: view,
        sort="-cpu_busy_pct",
        headline=_headline(use, level),
        notes=_notes(run, use, level),
        charts=_charts(run, use),
        base=base_of(run, view).applied,
    )
    return replace(found, by=by)


def _processors(use: CpuUse, by: str) -> FigureRows:
    return by_processor(use) if by == "cpu" else by_core(use)


def _chosen(run: Run, view: View) -> tuple[float, CpuSamples]:
    placed = [samples for samples in run.cpu if samples.offset_ns is not None]
    if not placed:
        run.check_read(SideSource.CPU)
        raise NothingToShow(f"{_NO_SAMPLES}{_unplaced(run)}")
    given = options_of(view, SPEC, above=r"\d{1,3}(\.\d+)?", file="[^,:]+")
    level, name = float(given.get("above", 0.0)), given.get("file", "")
    found = [samples for samples in placed if name in samples.path]
    if not found:
        there = ", ".join(Path(samples.path).name for samples in placed)
        raise UsageError(f"no CPU samples in a file {name!r}; the files are {there}")
    return level, found[0]


def _headline(use: CpuUse, level: float) -> tuple[str, ...]:
    figures = use.figures()
    if not figures["cpu_samples"]:
        return ("no CPU sample in the scope's time",)
    above = f"above {level:g} %" if level else "active"
    text = facts(
        f"{figures['active_cpus']:.1f} of {len(use.samples.cpus)} logical processors {above}, "
        f"at most {figures['max_active_cpus']:.0f}",
        f"their work would keep {figures['cpu_work']:.1f} fully busy",
    )
    if not len(use.core_names):
        return (text,)
    cores = facts(
        f"{figures['active_cores']:.1f} of {len(use.core_names)} physical cores {above}",
        f"on {figures['shared_cores']:.1f} of them two threads or more",
    )
    return text, cores


def _notes(run: Run, use: CpuUse, level: float) -> tuple[str, ...]:
    samples, name = use.samples, Path(use.samples.path).name
    notes = [f"{name}: a sample every {samples.period_ns / 1e6:.3g} ms; {samples.method}"]
    others = [Path(each.path).name for each in run.cpu if each is not samples]
    if others:
        notes.append(f"of=file:NAME takes another file: {', '.join(others)}")
    notes.append("the samples don't say which rank or thread ran on a processor")
    if not len(use.core_names):
        notes.append(f"physical cores are unknown: {NO_CORES}")
    if not level:
        notes.append(
            "a processor counts as active with any load above 0 %, as in the original; "
            "of=above:5 counts those above 5 %"
        )
    return tuple(notes)


def _charts(run: Run, use: CpuUse) -> tuple[Chart, ...]:
    if not len(use.times_ns):
        return ()
    some, threads = even_places(len(use.times_ns)), use.busy_threads
    lines = {"logical active": use.active.sum(axis=1)[some].astype(np.float64)}
    if threads.size:
        lines["physical active"] = (threads > 0).sum(axis=1)[some].astype(np.float64)
    lines["work"] = use.work[some]
    times = (use.times_ns[some] - run.origin_ns) / 1e6
    chart = LineChart.over("active processors", "", "time", "ms", times, lines)
    chart = replace(chart, is_nested=True)
    return (chart, _heat(run, use, threads)) if threads.size else (chart,)


def _heat(run: Run, use: CpuUse, threads: Float64) -> HeatMap:
    busy = np.flatnonzero(threads.any(axis=0))
    most = busy[np.argsort(-threads[:, busy].mean(axis=0), kind="stable")[:_MAX_CORES]]
    shown = np.sort(most)
    edges = np.linspace(0, len(use.times_ns), min(len(use.times_ns), _MAX_BINS) + 1).astype(np.intp)
    means = np.add.reduceat(threads[:, shown], edges[:-1], axis=0) / np.diff(edges)[:, None]
    starts = (use.times_ns[edges[:-1]] - run.origin_ns) / 1e6
    return HeatMap(
        "busy logical processors of each physical core",
        "",
        tuple(f"core {core}" for core in use.core_names[shown].tolist()),
        tuple(f"{start:.0f}" for start in starts.tolist()),
        "ms",
        means.T,
    )
