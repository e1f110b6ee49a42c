"""CPU: which of the host's processors are busy, logical and physical."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from chopper_core.analyses.base import base_of
from chopper_core.analyses.rows import LabelledRows, Own
from chopper_core.analyses.samples import even_places
from chopper_core.columns import Values, columns, numbered
from chopper_core.columns.metric import absent, quotient
from chopper_core.model.charts import Chart, HeatMap, LineChart
from chopper_core.model.phrases import facts
from chopper_core.model.run import Run
from chopper_core.model.signals import CpuSamples
from chopper_core.model.table import NO_LABEL
from chopper_core.model.view import View, child_of
from chopper_core.util.arrays import Float64, Int64, Mask
from chopper_core.util.errors import NothingToShow, UsageError
from chopper_core.util.grouping import median_of, ranked, sums_of
from chopper_core.views.shared.table_view import columns_of, table_view
from chopper_core.views.spec import ViewResult, ViewSpec, options_of

SPEC: Final = ViewSpec(
    name="cpu",
    title="GPUs · CPU",
    question="How many of the host's processors are busy, logical and physical, and which?",
    by=("iteration", "cpu", "core"),
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
_NO_SAMPLE: Final = "no sample in the row's time"
_NO_CORES: Final = "the file doesn't give the physical core of every logical processor"

OF_ITERATIONS: Final = columns(
    f"""
    active_cpus | | active
        Logical processors above the level (of=above:PERCENT, 0 by default), mean. Samples taken
        within the scope's time on any GPU.
    max_active_cpus | | max
        The largest number of logical processors above the level in a sample.
    cpu_work | | work
        Sum of the processors' shares of time, mean over the samples: the number of processors
        that, fully loaded, would do the same work; the original's C_min.
        source: CPU samples; UnaryLab/chopper cpu_active_cores.py
    logical_pct | % | logical
        Median over the samples of the share of logical processors above the level.
        source: CPU samples; UnaryLab/chopper cpu_phys_log.py
    active_cores | | cores
        Physical cores with a logical processor above the level, mean over the samples.
        missing: {_NO_SAMPLE}, or {_NO_CORES}
    physical_pct | % | physical
        Median over the samples of the share of physical cores with a logical processor above the
        level.
        missing: {_NO_SAMPLE}, or {_NO_CORES}
        source: CPU samples; UnaryLab/chopper cpu_phys_log.py
    shared_cores | | shared
        Physical cores with two or more logical processors above the level, mean.
        missing: {_NO_SAMPLE}, or {_NO_CORES}
    cpu_samples | | samples
        Samples in the row's time.
        missing:
""",
    missing=_NO_SAMPLE,
    source="CPU samples",
)
OF_PROCESSORS: Final = columns(
    f"""
    cpu_busy_pct | % | busy
        Mean share of time in which the processor was busy; of a core the sum of its processors'.
    active_pct | % | active
        Share of the samples in which the processor, or one of the core's, is above the level.
    core | | core
        The physical core.
        missing: {_NO_CORES}
    busy_threads | | threads
        Logical processors of the core above the level, mean over the samples.
""",
    missing=_NO_SAMPLE,
    source="CPU samples",
)


class _Use(Struct, frozen=True, eq=False):
    """The samples of one host in a span of time, and which are above the level."""

    samples: CpuSamples
    percent: Float64
    times_ns: Int64
    active: Mask
    cores: Int64
    """The place of each processor's core in `core_names`; empty where cores aren't known."""
    core_names: Int64

    @classmethod
    def of(cls, samples: CpuSamples, level: float) -> _Use:
        names, cores = ranked(samples.cores if samples.has_cores else np.empty(0, np.int64))
        with np.errstate(invalid="ignore"):
            active = np.asarray(samples.percent > level)
        return cls(samples, samples.percent, samples.times_ns, active, cores, names)

    def between(self, begin_ns: int, end_ns: int) -> _Use:
        own = (self.times_ns >= begin_ns) & (self.times_ns <= end_ns)
        times, percent, active = (each[own] for each in (self.times_ns, self.percent, self.active))
        return replace(self, times_ns=times, percent=percent, active=active)

    @property
    def busy_threads(self) -> Float64:
        """Samples x cores: how many of a core's processors are above the level."""
        threads = np.zeros((len(self.times_ns), len(self.core_names)))
        for cpu, core in enumerate(self.cores.tolist()):
            threads[:, core] += self.active[:, cpu]
        return threads

    @property
    def work(self) -> Float64:
        return np.asarray(np.nansum(self.percent, axis=1) / 100.0, np.float64)

    def figures(self) -> dict[str, float]:
        """The figures of `OF_ITERATIONS`; NaN where not known."""
        found = dict.fromkeys(OF_ITERATIONS, np.nan)
        found["cpu_samples"] = count = float(len(self.times_ns))
        if count:
            active = self.active.sum(axis=1)
            found["active_cpus"] = float(active.mean())
            found["max_active_cpus"] = float(active.max())
            found["cpu_work"] = float(self.work.mean())
            found["logical_pct"] = 100.0 * median_of(active) / self.active.shape[1]
        if count and len(self.core_names):
            threads = self.busy_threads
            cores = (threads > 0).sum(axis=1)
            found["active_cores"] = float(cores.mean())
            found["physical_pct"] = 100.0 * median_of(cores) / len(self.core_names)
            found["shared_cores"] = float((threads > 1).sum(axis=1).mean())
        return found


def missing_from(run: Run) -> str:
    """Why no scope of a run has an answer; empty: one may."""
    if any(samples.offset_ns is not None for samples in run.cpu):
        return ""
    return f"{_NO_SAMPLES}{_unplaced(run)}"


def _unplaced(run: Run) -> str:
    """Why the samples that there are aren't on the run's clock."""
    reasons = "; ".join(f"{Path(each.path).name}: {each.method}" for each in run.cpu)
    return f" ({reasons})" if reasons else ""


def answer(run: Run, view: View) -> ViewResult:
    level, samples = _chosen(run, view)
    use = _Use.of(samples, level)
    if run.is_sampled_only:
        return _of_samples(run, view, use, level)
    by = view.by or "iteration"
    node = run.tree_of(view).node(view.path)
    use = use.between(int(node.min("start_ns")[0]), int(node.max("end_ns")[0]))
    is_along_time = by == "iteration"
    if is_along_time:
        labels, own = _by_iteration(run, view, use)
    else:
        labels, own = (_by_cpu if by == "cpu" else _by_core)(use)
    return table_view(
        view,
        LabelledRows(by, labels),
        own,
        whole=_figures([use]) if is_along_time else (),
        opens=lambda row: child_of(view, by, labels[row]) if is_along_time else view,
        sort="" if is_along_time else "-cpu_busy_pct",
        headline=_headline(use, level),
        notes=_notes(run, use, level),
        charts=_charts(run, use),
    )


def _of_samples(run: Run, view: View, use: _Use, level: float) -> ViewResult:
    """The processors of a run of telemetry alone, over all of its time."""
    by = view.by or "cpu"
    if by == "iteration":
        raise NothingToShow("steps need a trace; by=cpu has a row per processor")
    labels, own = (_by_cpu if by == "cpu" else _by_core)(use)
    found = table_view(
        view,
        LabelledRows(by, labels),
        own,
        opens=lambda row: view,
        sort="-cpu_busy_pct",
        headline=_headline(use, level),
        notes=_notes(run, use, level),
        charts=_charts(run, use),
        base=base_of(run, view).applied,
    )
    return replace(found, by=by)


def _chosen(run: Run, view: View) -> tuple[float, CpuSamples]:
    placed = [samples for samples in run.cpu if samples.offset_ns is not None]
    if not placed:
        raise NothingToShow(f"{_NO_SAMPLES}{_unplaced(run)}")
    given = options_of(view, SPEC, above=r"\d{1,3}(\.\d+)?", file="[^,:]+")
    level, name = float(given.get("above", 0.0)), given.get("file", "")
    found = [samples for samples in placed if name in samples.path]
    if not found:
        there = ", ".join(Path(samples.path).name for samples in placed)
        raise UsageError(f"no CPU samples in a file {name!r}; the files are {there}")
    return level, found[0]


def _by_iteration(run: Run, view: View, use: _Use) -> tuple[list[str], Own]:
    steps = run.tree_of(view).split(view.path, ("iteration",))
    codes, starts, ends = steps.codes("iteration"), steps.min("start_ns"), steps.max("end_ns")
    kept = np.flatnonzero(codes != NO_LABEL).tolist()
    own = _figures([use.between(starts[place], ends[place]) for place in kept])
    return [str(codes[place]) for place in kept], own


def _figures(uses: Sequence[_Use]) -> Own:
    figures = [use.figures() for use in uses]
    own = {name: numbered([each[name] for each in figures]) for name in OF_ITERATIONS}
    for name in ("max_active_cpus", "cpu_samples"):
        own[name] = Values(own[name].known(0.0).astype(np.int64), own[name].missing)
    return columns_of(own, OF_ITERATIONS)


def _means(values: Float64) -> Values:
    """Means over the known samples; missing without any."""
    known = np.isfinite(values)
    return quotient(np.where(known, values, 0.0).sum(axis=0), known.sum(axis=0))


def _by_cpu(use: _Use) -> tuple[list[str], Own]:
    cores = use.core_names[use.cores]
    figures = {
        "cpu_busy_pct": _means(use.percent),
        "active_pct": _means(np.where(np.isfinite(use.percent), 100.0 * use.active, np.nan)),
        "core": Values(cores) if len(cores) else absent(len(use.samples.cpus), 0),
    }
    return list(map(str, use.samples.cpus.tolist())), columns_of(figures, OF_PROCESSORS)


def _by_core(use: _Use) -> tuple[list[str], Own]:
    if not len(use.core_names):
        raise NothingToShow(f"no rows by core: {_NO_CORES}")
    threads = use.busy_threads
    busy = sums_of(_means(use.percent).known(0.0), use.cores, len(use.core_names))
    figures = {
        "cpu_busy_pct": Values(busy) if len(threads) else absent(len(busy)),
        "active_pct": _means(np.where(threads > 0, 100.0, 0.0)),
        "busy_threads": _means(threads),
    }
    return list(map(str, use.core_names.tolist())), columns_of(figures, OF_PROCESSORS)


def _headline(use: _Use, level: float) -> tuple[str, ...]:
    figures = use.figures()
    if not figures["cpu_samples"]:
        return ("no CPU sample in the scope's time",)
    above = f"above {level:g} %" if level else "active"
    text = facts(
        f"{figures['active_cpus']:.1f} of {len(use.samples.cpus)} logical processors {above}, "
        f"most {figures['max_active_cpus']:.0f}",
        f"work {figures['cpu_work']:.1f}",
        f"median {figures['logical_pct']:.1f} %",
    )
    if not len(use.core_names):
        return (text,)
    cores = facts(
        f"{figures['active_cores']:.1f} of {len(use.core_names)} physical cores",
        f"median {figures['physical_pct']:.1f} %",
        f"{figures['shared_cores']:.1f} shared by both threads",
    )
    return text, cores


def _notes(run: Run, use: _Use, level: float) -> tuple[str, ...]:
    samples, name = use.samples, Path(use.samples.path).name
    notes = [f"{name}: a sample every {samples.period_ns / 1e6:.3g} ms; {samples.method}"]
    others = [Path(each.path).name for each in run.cpu if each is not samples]
    if others:
        notes.append(f"of=file:NAME takes another file: {', '.join(others)}")
    if not len(use.core_names):
        notes.append(f"physical cores are unknown: {_NO_CORES}")
    if not level:
        notes.append(
            "a processor counts as active with any load above 0 %, as in the original; "
            "of=above:5 counts those above 5 %"
        )
    return tuple(notes)


def _charts(run: Run, use: _Use) -> tuple[Chart, ...]:
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


def _heat(run: Run, use: _Use, threads: Float64) -> HeatMap:
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
